#include "state.hpp"

#include <string.h>

#include <algorithm>

#include "refusal.hpp"

namespace coilwork_aot {
namespace {

constexpr uint64_t MOST_HEADER_BYTES = 100'000'000;

struct Named {
  const char *stored, *name;
};
constexpr Named STORED_DTYPES[] = {{"F64", "f64"},   {"F32", "f32"}, {"F16", "f16"}, {"BF16", "bf16"}, {"F8_E4M3", "f8e4m3"},
                                   {"F8_E5M2", "f8e5m2"}, {"I64", "i64"}, {"I32", "i32"}, {"I16", "i16"}, {"I8", "i8"},
                                   {"U64", "u64"},   {"U32", "u32"}, {"U16", "u16"}, {"U8", "u8"},     {"BOOL", "bool"}};

// A tensor of a safetensors record.
struct Stored {
  std::string dtype;
  std::vector<int64_t> shape;
  char* data = nullptr;
  uint64_t size = 0;
};

Stored read_entry(const std::string& key, const Json& entry, char* body, uint64_t room) {
  Stored made;
  const std::vector<Json>& offsets = entry["data_offsets"].list();
  if (offsets.size() != 2) throw NotThere(key + " has other than two offsets");
  const int64_t begin = offsets[0].integer(), end = offsets[1].integer();
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > room) throw NotThere(key + " is said to lie where no bytes are");
  for (const Named& one : STORED_DTYPES)
    if (entry["dtype"].text() == one.stored) made.dtype = one.name;
  const int32_t dtype = find_dtype(made.dtype);
  if (dtype < 0) throw NotThere(key + " has an element type of no known name");
  int64_t size = static_cast<int64_t>(get_width(dtype));
  for (const Json& extent : entry["shape"].list()) {
    made.shape.push_back(extent.integer());
    if (made.shape.back() < 0 || __builtin_mul_overflow(size, made.shape.back(), &size)) throw NotThere(key + " has no such shape");
  }
  if (size != end - begin) throw NotThere(key + " has other bytes than its shape");
  made.data = body + begin;
  made.size = static_cast<uint64_t>(size);
  return made;
}

std::map<std::string, Stored> read_weights(char* data, uint64_t size) try {
  uint64_t length = 0;
  if (size >= 8) memcpy(&length, data, 8);
  if (size < 8 || length > std::min(size - 8, MOST_HEADER_BYTES)) throw NotThere("the header is longer than the file");
  std::map<std::string, Stored> made;
  const Json header = Json::parse({data + 8, length});
  for (const auto& [key, entry] : header.record())
    if (key != "__metadata__") made[key] = read_entry(key, entry, data + 8 + length, size - 8 - length);
  return made;
} catch (const NotThere& error) {
  refuse_package("damaged-weights", std::string("the weights cannot be read: ") + error.what());
}

// Keeps the file mapped as long as a tensor sees it.
void release_file(void*, void* context) { delete static_cast<std::shared_ptr<MappedFile>*>(context); }

Handle make_on_file(const std::shared_ptr<MappedFile>& file, void* data, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                    int32_t dtype) {
  auto owner = std::make_unique<std::shared_ptr<MappedFile>>(file);
  Place cpu;
  cpu.type = torch.aoti_torch_device_type_cpu();
  const auto rank = static_cast<int64_t>(sizes.size());
  Handle made = make_on_memory(data, sizes.data(), strides.data(), rank, dtype, cpu, release_file, owner.get());
  owner.release();
  return made;
}

std::vector<int64_t> make_contiguous(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t k = sizes.size(); k-- > 0;) {
    strides[k] = step;
    step *= std::max<int64_t>(sizes[k], 1);
  }
  return strides;
}

[[noreturn]] void refuse_state(const std::string& reason) { refuse_package("wrong-state", "the state does not fit the model: " + reason); }

void check_fits(const StateEntry& entry, AtenTensorHandle value, bool with_strides) {
  const TensorFacts facts(value);
  const TensorPlace& place = entry.place;
  const bool same_shape = facts.rank == static_cast<int64_t>(place.size.size()) && std::equal(place.size.begin(), place.size.end(), facts.sizes);
  if (facts.dtype != find_dtype(place.dtype) || !same_shape) refuse_state(entry.name + " has another shape or element type");
  if (with_strides && !std::equal(place.stride.begin(), place.stride.end(), facts.strides)) refuse_state(entry.name + " has other strides");
}

Handle copy_to(AtenTensorHandle value, const TensorPlace& place, int32_t dtype, const Place& device) {
  Handle made = make_empty(place.size.data(), place.stride.data(), static_cast<int64_t>(place.size.size()), dtype, device);
  copy(made.get(), value);
  return made;
}

bool is_on(AtenTensorHandle value, const Place& place) {
  const TensorFacts facts(value);
  return facts.device == place.type && (place.is_cpu() || facts.device_index == place.index);
}

// The tensor itself if it lies so already, as in Python.
Handle take_given(const StateEntry& entry, AtenTensorHandle value, const Place& device) {
  check_fits(entry, value, false);
  const TensorFacts facts(value);
  const bool lies_so = std::equal(entry.place.stride.begin(), entry.place.stride.end(), facts.strides);
  return lies_so && is_on(value, device) ? share(value) : copy_to(value, entry.place, facts.dtype, device);
}

// Checks that a tensor lies in its storage. Throws Refusal.
void check_place(const TensorPlace& place, const Stored& stored) try {
  const int32_t dtype = find_dtype(place.dtype);
  if (dtype < 0 || place.size.size() != place.stride.size() || place.offset < 0) throw NotThere("a tensor of no known form");
  for (size_t k = 0; k < place.size.size(); ++k)
    if (place.size[k] < 0 || place.stride[k] < 0) throw NotThere("a tensor of no known form");
  int64_t end = 0;
  const auto width = static_cast<int64_t>(get_width(dtype));
  if (__builtin_add_overflow(place.offset, compute_span(place.size, place.stride), &end) || __builtin_mul_overflow(end, width, &end) ||
      static_cast<uint64_t>(end) > stored.size)
    throw NotThere("a tensor does not lie in its storage");
  if (reinterpret_cast<uintptr_t>(stored.data) % static_cast<uintptr_t>(width)) throw NotThere("a tensor begins inside of an element");
} catch (const NotThere& error) {
  refuse_package("damaged-weights", error.what());
}

// Makes the tensors of a package: on the CPU on the mapped file, else on memory for whole storages, whose bytes are added to `uploads`.
class TensorMaker {
 public:
  TensorMaker(std::shared_ptr<MappedFile> file, const Place& device, std::vector<Upload>& uploads)
      : file_(std::move(file)), device_(device), uploads_(uploads) {}

  Handle make(const TensorPlace& place, const Stored& stored) {
    check_place(place, stored);
    const int32_t dtype = find_dtype(place.dtype);
    const int64_t offset = place.offset * static_cast<int64_t>(get_width(dtype));
    if (device_.is_cpu()) return make_on_file(file_, stored.data + offset, place.size, place.stride, dtype);
    Handle& storage = storages_[place.storage];
    if (!storage.get()) storage = reserve(stored);
    AtenTensorHandle made = nullptr;
    if (torch.aoti_torch__alloc_from_pool(storage.get(), offset, dtype, static_cast<int64_t>(place.size.size()), place.size.data(),
                                          place.stride.data(), &made))
      throw Refusal(COILWORK_CALL_ERROR, "call-failed", "a tensor cannot be made: " + read_torch_error());
    return Handle(made);
  }

 private:
  Handle reserve(const Stored& stored) {
    const auto size = static_cast<int64_t>(stored.size);
    const int64_t one = 1;
    Handle made = make_empty(&size, &one, 1, torch.aoti_torch_dtype_uint8(), device_);
    void* address = nullptr;
    if (torch.aoti_torch_get_data_ptr(made.get(), &address)) throw Refusal(COILWORK_CALL_ERROR, "call-failed", read_torch_error());
    if (size) uploads_.push_back({stored.data, stored.size, reinterpret_cast<uint64_t>(address)});
    return made;
  }

  std::shared_ptr<MappedFile> file_;
  const Place& device_;
  std::vector<Upload>& uploads_;
  std::map<std::string, Handle> storages_;
};

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) {
  const auto file = std::make_shared<MappedFile>(path);
  for (const auto& [name, one] : read_weights(file->data(), file->size()))
    tensors.emplace(name, make_on_file(file, one.data, one.shape, make_contiguous(one.shape), find_dtype(one.dtype)));
}

NamedTensors SafetensorsFile::named() const {
  NamedTensors made;
  for (const auto& [name, tensor] : tensors) made[name] = tensor.get();
  return made;
}

void State::load(const NamedTensors& values, bool assigns) {
  const std::lock_guard<std::mutex> lock(loading_);
  size_t wanted = 0;
  for (const StateEntry& entry : entries) {
    if (!entry.is_persistent) continue;
    ++wanted;
    const auto found = values.find(entry.name);
    if (found == values.end()) refuse_state("missing: " + entry.name);
    check_fits(entry, found->second, assigns);
  }
  if (values.size() != wanted) refuse_state("there are tensors of names that the model has not");
  const std::shared_ptr<const Tensors> before = tensors();
  Tensors after = *before;
  for (size_t k = 0; k < entries.size(); ++k) {
    if (!entries[k].is_persistent) continue;
    AtenTensorHandle value = values.at(entries[k].name);
    if (!assigns)
      copy((*before)[k]->get(), value);
    else
      after[k] = std::make_shared<Handle>(is_on(value, place) ? share(value) : copy_to(value, entries[k].place, TensorFacts(value).dtype, place));
  }
  if (assigns) std::atomic_store(&tensors_, std::make_shared<const Tensors>(std::move(after)));
}

std::shared_ptr<State> open_state(const Archive& archive, const std::vector<StateEntry>& entries, const Place& place,
                                  const NamedTensors* given, std::vector<Upload>& uploads) {
  const Record* record = archive.find(WEIGHTS);
  const auto stored = record ? read_weights(archive.data(*record), record->size) : std::map<std::string, Stored>();
  TensorMaker maker(archive.file, place, uploads);
  Tensors tensors;
  for (size_t k = 0; k < entries.size(); ++k) {
    const StateEntry& entry = entries[k];
    if (given && entry.is_persistent) {
      const auto found = given->find(entry.name);
      if (found == given->end()) refuse_state("missing: " + entry.name);
      tensors.push_back(std::make_shared<Handle>(take_given(entry, found->second, place)));
      continue;
    }
    const auto found = stored.find(entry.place.storage);
    if (found == stored.end()) refuse_package("missing-weights", "the package brings no values for " + entry.name);
    // tied weights are one tensor
    std::shared_ptr<Handle> made;
    for (size_t other = 0; other < k && !made; ++other)
      if (entries[other].place == entry.place && !(given && entries[other].is_persistent)) made = tensors[other];
    if (!made) made = std::make_shared<Handle>(maker.make(entry.place, found->second));
    tensors.push_back(std::move(made));
  }
  return std::make_shared<State>(entries, place, std::move(tensors));
}

}  // namespace coilwork_aot
