// The C interface: every exception becomes an error that the caller reads.
#include <string.h>

#include <algorithm>
#include <new>

#include "coilwork/model_c.h"
#include "model.hpp"
#include "refusal.hpp"

using namespace coilwork_aot;

struct CoilworkError {
  CoilworkErrorKind kind;
  std::string code, message;
};

struct CoilworkModel {
  std::unique_ptr<Model> model;
  // what is handed out of inputs, by entry, variant and input
  std::vector<std::vector<std::vector<std::vector<CoilworkExtent>>>> extents;
};

namespace {

template <class Act>
CoilworkError* guard(Act act) noexcept {
  try {
    act();
    return nullptr;
  } catch (const Refusal& refusal) {
    return new CoilworkError{refusal.kind, refusal.code, refusal.what()};
  } catch (const std::bad_alloc&) {
    return new CoilworkError{COILWORK_CALL_ERROR, "call-failed", "there is no memory left"};
  } catch (const std::exception& error) {
    return new CoilworkError{COILWORK_CALL_ERROR, "call-failed", error.what()};
  }
}

// A structure of the caller's, which may be shorter or longer than this library's.
template <class T>
T read_sized(const T* given) {
  T made{};
  memcpy(static_cast<void*>(&made), given, std::min(given->size, sizeof made));
  return made;
}
template <class T>
void write_sized(T made, T* to) {
  made.size = to->size;
  memcpy(static_cast<void*>(to), &made, std::min(to->size, sizeof made));
}

std::string text_of(const char* text) { return text ? text : ""; }

NamedTensors read_named(const CoilworkNamedTensor* values, size_t count) {
  NamedTensors made;
  for (size_t k = 0; k < count; ++k)
    if (!made.emplace(values[k].name, values[k].tensor).second) refuse_package("wrong-state", std::string("two tensors are called ") + values[k].name);
  return made;
}

const EntryPoint& entry_of(const CoilworkModel* model, size_t entry) {
  if (entry >= model->model->entries.size()) refuse_package("unknown-entry", "there is no entry point of this number");
  return model->model->entries[entry];
}

std::vector<CoilworkExtent> list_extents(const Variant& variant, const Leaf& leaf) {
  std::vector<CoilworkExtent> made;
  for (const Size& size : leaf.sizes) {
    if (size.is_number) {
      made.push_back({size.number, size.number, ""});
    } else if (size.text.empty()) {
      made.push_back({0, -1, ""});
    } else {
      const auto found = variant.symbols.find(size.text);
      made.push_back({found->second.low, found->second.high, found->first.c_str()});
    }
  }
  return made;
}

Place read_place(const CoilworkMemory& memory) {
  Place made;
  made.type = memory.device;
  made.index = memory.device_index;
  return made;
}

CoilworkValue read_fixed(const Json& value) {
  CoilworkValue made{};
  switch (value.kind()) {
    case Json::TRUTH:
      made.kind = COILWORK_TRUTH;
      made.integer = value.truth();
      break;
    case Json::INTEGER:
      made.kind = COILWORK_INTEGER;
      made.integer = value.integer();
      break;
    case Json::REAL:
      made.kind = COILWORK_REAL;
      made.real = value.real();
      break;
    case Json::TEXT:
      made.kind = COILWORK_TEXT;
      made.text = value.text().c_str();
      break;
    default:
      break;
  }
  return made;
}

}  // namespace

extern "C" {

CoilworkErrorKind coilwork_error_kind(const CoilworkError* error) { return error->kind; }
const char* coilwork_error_code(const CoilworkError* error) { return error->code.c_str(); }
const char* coilwork_error_message(const CoilworkError* error) { return error->message.c_str(); }
void coilwork_error_delete(CoilworkError* error) { delete error; }

CoilworkError* coilwork_open_torch(const char* path) {
  return guard([&] { open_torch(text_of(path)); });
}

CoilworkError* coilwork_tensor_make(const CoilworkMemory* given, void (*release)(void*, void*), void* context, CoilworkTensor* made) {
  return guard([&] {
    open_torch();
    const CoilworkMemory memory = read_sized(given);
    if (memory.rank < 0 || (memory.rank && !memory.sizes)) refuse_input("shape", "a tensor has no such shape");
    std::vector<int64_t> strides(static_cast<size_t>(memory.rank));
    for (int64_t k = memory.rank, step = 1; k-- > 0; step *= std::max<int64_t>(memory.sizes[k], 1)) strides[static_cast<size_t>(k)] = step;
    const int64_t* steps = memory.strides ? memory.strides : strides.data();
    *made = make_on_memory(memory.data, memory.sizes, steps, memory.rank, memory.dtype, read_place(memory), release, context).release();
  });
}

CoilworkError* coilwork_tensor_describe(CoilworkTensor tensor, CoilworkMemory* memory) {
  return guard([&] {
    if (!tensor) refuse_input("no-tensor", "there is no tensor");
    const TensorFacts facts(tensor);
    CoilworkMemory made{sizeof made, nullptr, facts.rank, facts.sizes, facts.strides, facts.dtype, facts.device, facts.device_index};
    if (torch.aoti_torch_get_data_ptr(tensor, &made.data)) throw Refusal(COILWORK_CALL_ERROR, "call-failed", read_torch_error());
    write_sized(made, memory);
  });
}

CoilworkError* coilwork_tensor_share(CoilworkTensor tensor, CoilworkTensor* made) {
  return guard([&] {
    open_torch();
    *made = share(tensor).release();
  });
}

CoilworkError* coilwork_tensor_copy(CoilworkTensor to, CoilworkTensor from) {
  return guard([&] { copy(to, from); });
}

void coilwork_tensor_delete(CoilworkTensor tensor) {
  if (tensor) torch.aoti_torch_delete_tensor_object(tensor);
}

CoilworkError* coilwork_model_open(const char* path, const CoilworkOptions* given, CoilworkModel** made) {
  return guard([&] {
    const CoilworkOptions options = given ? read_sized(given) : CoilworkOptions{};
    LoadOptions wanted;
    wanted.device = text_of(options.device);
    wanted.digest = text_of(options.digest);
    wanted.torch_library = text_of(options.torch_library);
    wanted.verify_weights = !options.skips_weight_hash;
    wanted.left = {options.leaves_libraries != 0, options.leaves_graphs != 0};
    if (options.share) wanted.share = options.share->model->state;
    std::unique_ptr<SafetensorsFile> file;
    NamedTensors weights;
    if (options.weights_path) {
      open_torch(wanted.torch_library);
      file = std::make_unique<SafetensorsFile>(options.weights_path);
      weights = file->named();
    } else {
      weights = read_named(options.weights, options.weight_count);
    }
    if (options.weights_path || options.weight_count) wanted.weights = &weights;
    auto model = std::make_unique<CoilworkModel>();
    model->model = load_model(path, wanted);
    for (const EntryPoint& entry : model->model->entries) {
      model->extents.emplace_back();
      for (size_t k = 0; k < entry.count(); ++k) {
        model->extents.back().emplace_back();
        for (const Leaf* leaf : entry.inputs(k)) model->extents.back().back().push_back(list_extents(entry.variant(k), *leaf));
      }
    }
    *made = model.release();
  });
}

void coilwork_model_close(CoilworkModel* model) { delete model; }
const char* coilwork_model_name(const CoilworkModel* model) { return model->model->name.c_str(); }
const char* coilwork_model_device(const CoilworkModel* model) { return model->model->place.text.c_str(); }

size_t coilwork_model_entry_count(const CoilworkModel* model) { return model->model->entries.size(); }

const char* coilwork_model_entry_name(const CoilworkModel* model, size_t entry) {
  return entry < model->model->entries.size() ? model->model->entries[entry].name.c_str() : nullptr;
}

CoilworkError* coilwork_model_find_entry(const CoilworkModel* model, const char* name, size_t* entry) {
  return guard([&] {
    const std::vector<EntryPoint>& entries = model->model->entries;
    const std::string wanted = *name || entries.size() == 1 ? name : "forward";
    for (size_t k = 0; k < entries.size(); ++k) {
      if (!wanted.empty() && entries[k].name != wanted) continue;
      *entry = k;
      return;
    }
    refuse_package("unknown-entry", "there is no entry point " + wanted);
  });
}

size_t coilwork_model_variant_count(const CoilworkModel* model, size_t entry) {
  return entry < model->model->entries.size() ? model->model->entries[entry].count() : 0;
}

size_t coilwork_model_input_count(const CoilworkModel* model, size_t entry, size_t variant) {
  return variant < coilwork_model_variant_count(model, entry) ? model->model->entries[entry].inputs(variant).size() : 0;
}

size_t coilwork_model_result_count(const CoilworkModel* model, size_t entry, size_t variant) {
  return variant < coilwork_model_variant_count(model, entry) ? model->model->entries[entry].variant(variant).results.size() : 0;
}

CoilworkError* coilwork_model_input(const CoilworkModel* model, size_t entry, size_t variant, size_t number, CoilworkInput* input) {
  return guard([&] {
    if (number >= coilwork_model_input_count(model, entry, variant)) refuse_package("unknown-entry", "there is no such input");
    const Leaf& leaf = *model->model->entries[entry].inputs(variant)[number];
    const std::vector<CoilworkExtent>& extents = model->extents[entry][variant][number];
    const bool is_tensor = leaf.kind == Leaf::TENSOR;
    const int32_t device = !is_tensor || leaf.device == "cpu" ? torch.aoti_torch_device_type_cpu() : model->model->place.type;
    const CoilworkInput made{sizeof made, leaf.name.c_str(), is_tensor ? COILWORK_TENSOR : COILWORK_INTEGER,
                             is_tensor ? find_dtype(leaf.dtype) : torch.aoti_torch_dtype_int64(), device,
                             static_cast<int64_t>(extents.size()), extents.data(), leaf.is_written};
    write_sized(made, input);
  });
}

CoilworkError* coilwork_model_call(const CoilworkModel* model, size_t entry, const CoilworkValue* inputs, size_t input_count,
                                   CoilworkValue* results, size_t* result_count) {
  return guard([&] {
    const EntryPoint& point = entry_of(model, entry);
    std::vector<Given> given(input_count);
    for (size_t k = 0; k < input_count; ++k) {
      if (inputs[k].kind != COILWORK_TENSOR && inputs[k].kind != COILWORK_INTEGER) refuse_input("no-tensor", "an input is neither a tensor nor an integer");
      given[k] = {inputs[k].kind == COILWORK_TENSOR ? inputs[k].tensor : nullptr, inputs[k].integer, inputs[k].kind == COILWORK_INTEGER};
    }
    size_t chosen = 0;
    std::vector<Result> made = point.call(std::move(given), &chosen);
    const std::vector<Leaf>& leaves = point.variant(chosen).results;
    if (leaves.size() > *result_count) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "there is too little room for the results");
    for (size_t k = 0; k < leaves.size(); ++k) {
      if (leaves[k].kind == Leaf::FIXED) {
        results[k] = read_fixed(leaves[k].value);
        continue;
      }
      // positions are those of results, each once: the manifest was checked
      Result& one = made.at(static_cast<size_t>(leaves[k].position));
      results[k] = {one.kind, nullptr, one.integer, one.real, nullptr};
    }
    // nothing fails from here on, so that no handle is lost
    for (size_t k = 0; k < leaves.size(); ++k)
      if (leaves[k].kind != Leaf::FIXED) results[k].tensor = made[static_cast<size_t>(leaves[k].position)].tensor.release();
    *result_count = leaves.size();
  });
}

void coilwork_model_count(const CoilworkModel* model, CoilworkCounters* counters) {
  CoilworkCounters made{};
  for (const EntryPoint& entry : model->model->entries) entry.count(made);
  write_sized(made, counters);
}

size_t coilwork_model_state_count(const CoilworkModel* model) { return model->model->state->entries.size(); }

CoilworkError* coilwork_model_state(const CoilworkModel* model, size_t number, CoilworkStateInfo* info, CoilworkTensor* made) {
  return guard([&] {
    const State& state = *model->model->state;
    if (number >= state.entries.size()) refuse_package("wrong-state", "there is no state of this number");
    const StateEntry& entry = state.entries[number];
    if (info) write_sized(CoilworkStateInfo{sizeof *info, entry.name.c_str(), entry.kind.c_str(), entry.is_persistent}, info);
    if (made) *made = share((*state.tensors())[number]->get()).release();
  });
}

CoilworkError* coilwork_model_load_state(CoilworkModel* model, const CoilworkNamedTensor* values, size_t count, int32_t assigns) {
  return guard([&] { model->model->state->load(read_named(values, count), assigns != 0); });
}

CoilworkError* coilwork_model_load_state_file(CoilworkModel* model, const char* path, int32_t assigns) {
  return guard([&] {
    const SafetensorsFile file(path);
    model->model->state->load(file.named(), assigns != 0);
  });
}

}  // extern "C"
