namespace rt {

// Storage for an optional number whose address a C function takes; it lives until the end of the full expression.
template <class T>
struct Slot {
  T value;
  T* data;
  explicit Slot(T initial) : value(initial), data(&value) {}
  Slot(const Slot&) = delete;
};

// A list of tensors for a C function.
struct Handles {
  const AtenTensorHandle* data;
  int64_t count;
  Handles(std::initializer_list<AtenTensorHandle> values) : data(values.begin()), count((int64_t)values.size()) {}
};

// A list of truth values for a C function.
struct Codes {
  const int32_t* data;
  Codes(std::initializer_list<int32_t> values) : data(values.begin()) {}
};

// A tensor that is undefined, for a C function; it lives until the end of the full expression.
struct Undefined {
  Tensor tensor;
  AtenTensorHandle handle;
  Undefined() {
    check(aoti_torch_new_uninitialized_tensor(tensor.out()));
    handle = tensor.get();
  }
};

// One argument for torch's dispatcher, in the 64-bit form that its C interface prescribes. What it refers to is deleted
// with it unless the dispatcher has taken it over. Of a list and an optional only the outer memory is: that a part of
// theirs is lost takes running out of memory between the parts.
class Value {
 public:
  explicit Value(uint64_t bits, void (*drop)(uint64_t) = nullptr) : bits_(bits), drop_(drop) {}
  Value(Value&& other) noexcept : bits_(other.bits_), drop_(other.drop_) { other.drop_ = nullptr; }
  Value(const Value&) = delete;
  ~Value() {
    if (drop_) drop_(bits_);
  }
  // const, because the elements of an initializer list are.
  uint64_t release() const {
    drop_ = nullptr;
    return bits_;
  }

 private:
  uint64_t bits_;
  mutable void (*drop_)(uint64_t);
};

static Value none() { return Value(0); }
static Value integer(int64_t value) { return Value((uint64_t)value); }
static Value boolean(bool value) { return Value(value ? 1 : 0); }
static Value code(int32_t value) { return Value((uint32_t)value); }
static Value place(Device device) {
  return Value((uint64_t)(uint32_t)device.type << 32 | (uint32_t)device.index);
}
static Value real(double value) {
  uint64_t bits;
  memcpy(&bits, &value, 8);
  return Value(bits);
}
static Value tensor(const Tensor& value) {
  return Value((uint64_t)value.alias().release(),
               [](uint64_t bits) { aoti_torch_delete_tensor_object((AtenTensorHandle)bits); });
}
static Value undefined() { return tensor(Undefined().tensor); }
static Value text(const char* value) {
  StringHandle handle = nullptr;
  check(torch_new_string_handle(value, strlen(value), &handle));
  return Value((uint64_t)handle, [](uint64_t bits) { torch_delete_string((StringHandle)bits); });
}
static Value list(std::initializer_list<Value> items) {
  StableListHandle handle = nullptr;
  check(torch_new_list_reserve_size(items.size(), &handle));
  Value result((uint64_t)handle, [](uint64_t bits) { torch_delete_list((StableListHandle)bits); });
  for (const Value& item : items) check(torch_list_push_back(handle, item.release()));
  return result;
}
static Value optional(Value&& value) {
  return Value((uint64_t) new StableIValue(value.release()), [](uint64_t bits) { delete (StableIValue*)bits; });
}

constexpr int MOST_ARGUMENTS = 64;

// Calls a torch operator; `results` receives what it returns.
static void call(const char* name, const char* overload, std::initializer_list<Value> args, uint64_t* results,
                 int count) {
  StableIValue stack[MOST_ARGUMENTS] = {};
  int used = 0;
  for (const Value& arg : args) stack[used++] = arg.release();
  check(torch_call_dispatcher(name, overload, stack, TORCH_VERSION));
  for (int k = 0; k < count; ++k) results[k] = stack[k];
}

// A tensor that an operator returned.
static Tensor take(uint64_t bits) { return Tensor((AtenTensorHandle)bits); }

// The tensors of a list that an operator returned.
static void take_list(uint64_t bits, Tensor* into, size_t count) {
  StableListHandle list = (StableListHandle)bits;
  Value owner(bits, [](uint64_t b) { torch_delete_list((StableListHandle)b); });
  size_t size = 0;
  check(torch_list_size(list, &size));
  for (size_t k = 0; k < size; ++k) {
    StableIValue element = 0;
    check(torch_list_get_item(list, k, &element));
    Tensor part = take(element);
    if (k < count) into[k] = move(part);
  }
  if (size < count) fail(CHECK_FAILED, "an operator returned %zu tensors where %zu were expected", size, count);
}

}  // namespace rt
