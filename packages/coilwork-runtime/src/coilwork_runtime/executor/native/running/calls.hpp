// Calling torch's operators: through an operator's own C function, through the dispatcher's C function, or by the host.
#pragma once
#include "libraries/convolutions.hpp"
#include "libraries/products.hpp"
#include "running/launches.hpp"

namespace coilwork {

// What arguments refer to while a C function runs.
class Room {
 public:
  explicit Room(size_t words) : storage_(words + 1) {}
  uint64_t* take(size_t words) {
    if (used_ + words > storage_.size()) throw Failed{"a call has more arguments than planned"};
    uint64_t* start = &storage_[used_];
    used_ += words;
    return start;
  }

 private:
  List<uint64_t> storage_;
  size_t used_ = 0;
};

template <class T>
static uint64_t bits_of(T value) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

class Calls {
 public:
  Calls(Call& call, Frame& frame, Memory& memory, Launches& launches)
      : call_(call), frame_(frame), memory_(memory), launches_(launches), products_(call, memory), convolutions_(call, frame, memory) {}

  void run(const Step& step) {
    const Plan& plan = *call_.program.plans[step.a];
    look_for_signals(call_);
    bool done = plan.multiplication ? multiply(plan) : plan.convolving && convolve(plan, step);
    if (!done && plan.route == Plan::LAUNCH) done = launches_.launch_alike(plan);
    if (!done) call_.settle();
    if (!done) switch (plan.route) {
      case Plan::FUNCTION:
        done = by_function(plan, step);
        break;
      case Plan::DISPATCHER:
        done = by_dispatcher(plan, step);
        break;
      case Plan::ITEM:
        done = item(plan, step);
        break;
      case Plan::PYTHON:
      case Plan::LAUNCH:
        break;
    }
    // what fails is done again by the host: in Python it may work, and if not, the error is that of torch
    if (!done) call_slowly(call_, frame_, memory_, plan, step);
    const uint32_t* outputs = frame_.words(step.list);
    const uint32_t* binds = frame_.words(step.more);
    for (uint32_t k = 0; k < step.more.count; k += 1, binds += 3) bind(binds[0], outputs[2 * binds[1] + 1], binds[2]);
  }

 private:
  bool multiply(const Plan& plan) {
    const bool done = products_.run(*plan.multiplication);
    Counters& counters = call_.program.counters;
    (done ? counters.products : counters.refused_products).fetch_add(1, std::memory_order_relaxed);
    return done;
  }

  bool convolve(const Plan& plan, const Step& step) {
    const bool done = convolutions_.run(*plan.convolving, step);
    Counters& counters = call_.program.counters;
    (done ? counters.convolutions : counters.refused_convolutions).fetch_add(1, std::memory_order_relaxed);
    return done;
  }

  void bind(uint32_t target, uint32_t slot, uint32_t dimension) {
    int64_t rank = 0;
    int64_t* sizes = nullptr;
    AtenTensorHandle tensor = memory_.tensor(slot);
    if (torch.aoti_torch_get_dim(tensor, &rank) != 0 || dimension >= rank ||
        torch.aoti_torch_get_sizes(tensor, &sizes) != 0)
      throw Failed{"a size is read of a dimension that is not there"};
    frame_.registers[target] = sizes[dimension];
  }

  // Puts a result, which it takes over, where the program wants it.
  void put(const uint32_t* output, AtenTensorHandle made) {
    if (output[0] == TENSOR) {
      memory_.slot(output[1]).own(made);
    } else {
      torch.aoti_torch_delete_tensor_object(made);
      if (output[0] == NUMBER) throw Failed{"an operator returned a tensor where a number was expected"};
    }
  }

  void put_number(const uint32_t* output, int64_t value) {
    if (output[0] == NUMBER) frame_.registers[output[1]] = value;
    if (output[0] == TENSOR) throw Failed{"an operator returned a number where a tensor was expected"};
  }

  bool by_function(const Plan& plan, const Step& step) {
    uint64_t words[64];
    double reals[8] = {};
    size_t count = 0, floats = 0;
    Room room(plan.words);
    for (const Value& value : plan.values) {
      if (count + 4 > 64 || floats == 8) throw Failed{"a function has too many parameters"};
      pass(value, words, count, reals, floats, room);
    }
    uint64_t made[16] = {};
    const size_t results = plan.in_place ? 0 : plan.results.size();
    if (count + results > 64 || results > 16) throw Failed{"a function has too many results"};
    for (size_t k = 0; k < results; ++k) words[count++] = bits_of(&made[k]);
    memset(words + count, 0, (64 - count) * sizeof *words);
    if (invoke(plan.function, words, count, reals) != 0) return false;
    const uint32_t* outputs = frame_.words(step.list);
    if (plan.in_place) {
      for (uint32_t k = 0; k < step.list.count; ++k)
        if (outputs[2 * k] == TENSOR) put(outputs + 2 * k, alias(memory_.tensor(plan.values[0].number)));
      return true;
    }
    put_all(plan, step, made);
    return true;
  }

  // Results as tensor handles or numbers, those that the program does not declare included.
  void put_all(const Plan& plan, const Step& step, const uint64_t* made) {
    static const uint32_t unwanted[2] = {IGNORED, 0};
    const uint32_t* outputs = frame_.words(step.list);
    for (size_t k = 0; k < plan.results.size(); ++k) {
      const uint32_t* output = k < step.list.count ? outputs + 2 * k : unwanted;
      if (plan.results[k] == 0)
        put(output, reinterpret_cast<AtenTensorHandle>(made[k]));
      else
        put_number(output, static_cast<int64_t>(made[k]));
    }
  }

  // Integers and pointers go in their registers and on the stack, doubles in theirs, whatever their order among each other.
  template <size_t... I>
  static int32_t invoke_with(void* function, const uint64_t* w, const double* d, std::index_sequence<I...>) {
    using Function = int32_t (*)(decltype((void)I, uint64_t{})..., double, double, double, double, double, double,
                                 double, double);
    return reinterpret_cast<Function>(function)(w[I]..., d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]);
  }
  static int32_t invoke(void* function, const uint64_t* words, size_t count, const double* reals) {
    if (count <= 6) return invoke_with(function, words, reals, std::make_index_sequence<6>{});
    if (count <= 16) return invoke_with(function, words, reals, std::make_index_sequence<16>{});
    return invoke_with(function, words, reals, std::make_index_sequence<64>{});
  }

  int64_t integer(const Value& value) {
    return value.kind == Value::SIZE ? frame_.registers[value.number] : value.integer;
  }
  double real(const Value& value) {
    return value.kind == Value::REAL_OF_SIZE ? static_cast<double>(frame_.registers[value.number]) : value.real;
  }

  void pass(const Value& value, uint64_t* words, size_t& count, double* reals, size_t& floats, Room& room) {
    switch (value.kind) {
      case Value::REAL:
      case Value::REAL_OF_SIZE:
        reals[floats++] = real(value);
        return;
      case Value::TENSOR_AT: {
        uint64_t* at = room.take(1);
        *at = bits_of(memory_.tensor(value.number));
        words[count++] = bits_of(at);
        return;
      }
      case Value::INTS:
      case Value::TENSORS: {
        uint64_t* at = room.take(value.items.size());
        for (size_t k = 0; k < value.items.size(); ++k) at[k] = word(value.items[k]);
        words[count++] = bits_of(at);
        words[count++] = value.items.size();
        return;
      }
      case Value::INTS_AT: {
        uint64_t* at = room.take(value.items.size() + 1);
        for (size_t k = 0; k < value.items.size(); ++k) at[k + 1] = word(value.items[k]);
        *at = bits_of(at + 1);
        words[count++] = bits_of(at);
        words[count++] = value.items.size();
        return;
      }
      case Value::BOOLS: {  // as int32_t
        uint64_t* at = room.take(value.items.size());
        for (size_t k = 0; k < value.items.size(); ++k) {
          const int32_t truth = word(value.items[k]) != 0;
          memcpy(reinterpret_cast<char*>(at) + 4 * k, &truth, sizeof truth);
        }
        words[count++] = bits_of(at);
        words[count++] = value.items.size();
        return;
      }
      case Value::INT_AT: {
        uint64_t* at = room.take(1);
        *at = word(value.items[0]);
        words[count++] = bits_of(at);
        return;
      }
      case Value::REAL_AT: {
        uint64_t* at = room.take(1);
        *at = bits_of(real(value.items[0]));
        words[count++] = bits_of(at);
        return;
      }
      case Value::CODE_AT: {
        uint64_t* at = room.take(1);
        *at = bits_of(static_cast<int32_t>(value.integer));
        words[count++] = bits_of(at);
        return;
      }
      case Value::DEVICE_AT: {
        uint64_t* at = room.take(1);
        *at = bits_of(static_cast<int32_t>(value.integer));
        words[count++] = bits_of(at);
        words[count++] = value.number;
        return;
      }
      default:
        words[count++] = word(value);
    }
  }

  uint64_t word(const Value& value) {
    switch (value.kind) {
      case Value::TENSOR:
        return bits_of(memory_.tensor(value.number));
      case Value::UNDEFINED:
        return bits_of(undefined());
      case Value::SIZE:
      case Value::INT:
      case Value::BOOL:
      case Value::CODE:
        return static_cast<uint64_t>(integer(value));
      case Value::TEXT:
        return bits_of(value.text.c_str());
      default:
        return 0;
    }
  }

  // The 64-bit form that the dispatcher's C interface prescribes; what it refers to is the dispatcher's to delete.
  StableIValue stable(const Value& value) {
    switch (value.kind) {
      case Value::TENSOR:
        return bits_of(alias(memory_.tensor(value.number)));
      case Value::UNDEFINED:
        return bits_of(alias(undefined()));
      case Value::CODE:
        return static_cast<uint32_t>(value.integer);
      case Value::BOOL:
        return value.integer != 0;
      case Value::REAL:
      case Value::REAL_OF_SIZE:
        return bits_of(real(value));
      case Value::DEVICE:
        return static_cast<uint64_t>(static_cast<uint32_t>(value.integer)) << 32 | value.number;
      case Value::SOME:
        return bits_of(new StableIValue(stable(value.items[0])));
      case Value::TEXT: {
        StringHandle text = nullptr;
        if (torch.torch_new_string_handle(value.text.c_str(), value.text.size(), &text) != 0)
          throw Failed{"a text cannot be handed over"};
        return bits_of(text);
      }
      case Value::LIST: {
        StableListHandle list = nullptr;
        if (torch.torch_new_list_reserve_size(value.items.size(), &list) != 0)
          throw Failed{"a list cannot be handed over"};
        for (const Value& item : value.items) torch.torch_list_push_back(list, stable(item));
        return bits_of(list);
      }
      default:
        return static_cast<uint64_t>(integer(value));
    }
  }

  bool by_dispatcher(const Plan& plan, const Step& step) {
    StableIValue stack[64] = {};
    if (plan.values.size() > 64 || plan.results.size() > 64) throw Failed{"an operator has too many arguments"};
    for (size_t k = 0; k < plan.values.size(); ++k) stack[k] = stable(plan.values[k]);
    if (torch.torch_call_dispatcher(plan.name.c_str(), plan.overload.c_str(), stack, torch.aoti_torch_abi_version()) !=
        0)
      return false;
    if (plan.results.size() == 1 && plan.results[0] == 2)
      take_list(reinterpret_cast<StableListHandle>(stack[0]), step);
    else
      put_all(plan, step, stack);
    return true;
  }

  void take_list(StableListHandle list, const Step& step) {
    const uint32_t* outputs = frame_.words(step.list);
    size_t size = 0;
    torch.torch_list_size(list, &size);
    for (size_t k = 0; k < size; ++k) {
      StableIValue item = 0;
      if (torch.torch_list_get_item(list, k, &item) != 0) continue;
      if (k < step.list.count)
        put(outputs + 2 * k, reinterpret_cast<AtenTensorHandle>(item));
      else
        torch.aoti_torch_delete_tensor_object(reinterpret_cast<AtenTensorHandle>(item));
    }
    torch.torch_delete_list(list);
    if (size < step.list.count) throw Failed{"an operator returned fewer tensors than expected"};
  }

  template <class T>
  static bool read(AOTITorchError (*item)(AtenTensorHandle, T*), AtenTensorHandle tensor, int64_t& number) {
    T value{};
    if (item(tensor, &value) != 0) return false;
    number = static_cast<int64_t>(value);
    return true;
  }

  // The only element of an integer or boolean tensor.
  bool item(const Plan& plan, const Step& step) {
    if (plan.values.empty()) return false;
    AtenTensorHandle tensor = memory_.tensor(plan.values[0].number);
    const uint32_t* outputs = frame_.words(step.list);
    if (step.list.count != 1 || outputs[0] != NUMBER) return false;
    int64_t& target = frame_.registers[outputs[1]];
    int32_t dtype = -1;
    torch.aoti_torch_get_dtype(tensor, &dtype);
    if (dtype == torch.aoti_torch_dtype_int64()) return read(torch.aoti_torch_item_int64, tensor, target);
    if (dtype == torch.aoti_torch_dtype_int32()) return read(torch.aoti_torch_item_int32, tensor, target);
    if (dtype == torch.aoti_torch_dtype_int16()) return read(torch.aoti_torch_item_int16, tensor, target);
    if (dtype == torch.aoti_torch_dtype_int8()) return read(torch.aoti_torch_item_int8, tensor, target);
    if (dtype == torch.aoti_torch_dtype_uint8()) return read(torch.aoti_torch_item_uint8, tensor, target);
    if (dtype == torch.aoti_torch_dtype_bool()) return read(torch.aoti_torch_item_bool, tensor, target);
    return false;
  }

  Call& call_;
  Frame& frame_;
  Memory& memory_;
  Launches& launches_;
  Products products_;
  Convolutions convolutions_;
};

}  // namespace coilwork
