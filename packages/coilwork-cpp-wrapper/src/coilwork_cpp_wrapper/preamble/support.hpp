namespace rt {

enum Kind {
  OPERATOR_FAILED = 1, CHECK_FAILED = 2, INDEX_FAILED = 3, LAYOUT_FAILED = 4, RESULT_FAILED = 5, DIVISION_FAILED = 6,
  OVERFLOW_FAILED = 7, HOST_FAILED = 8
};

// Thrown inside a program, caught by `coilwork_run`; the words are in `last_error`.
struct Failure {
  int kind;
};

static thread_local char last_error[8192];
// What the program is doing: operations and source lines of the current instruction.
static thread_local const char* step = "";

static void at(const char* words) { step = words; }

[[noreturn]] static void fail(int kind, const char* format, ...) {
  va_list values;
  va_start(values, format);
  int used = vsnprintf(last_error, sizeof last_error, format, values);
  va_end(values);
  if (used >= 0 && used < (int)sizeof last_error && step[0])
    snprintf(last_error + used, sizeof last_error - used, "\n%s", step);
  throw Failure{kind};
}

// Turns the error code of a C function of torch into a failure.
static void check(AOTITorchError code) {
  if (code == 0) return;
  const char* said = torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace() : "";
  fail(OPERATOR_FAILED, "%s", said[0] ? said : "a torch operator failed; its message is on stderr");
}

// As `check`, for memory: running out of it has nothing to do with the current instruction.
static void check_memory(AOTITorchError code) {
  if (code != 0) step = "";
  check(code);
}

static int64_t floordiv(int64_t a, int64_t b) {
  if (b == 0) fail(CHECK_FAILED, "a size is divided by zero");
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}
static int64_t mod(int64_t a, int64_t b) {
  if (b == 0) fail(CHECK_FAILED, "a size is divided by zero");
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t greatest(int64_t a, int64_t b) { return a > b ? a : b; }

// Sizes or strides, written `{s0, 4}` at the call.
struct Ints {
  const int64_t* data;
  int64_t count;
  Ints(std::initializer_list<int64_t> values) : data(values.begin()), count((int64_t)values.size()) {}
  Ints(const int64_t* values, int64_t number) : data(values), count(number) {}
};

// Keeps what is called in many places small there: most of what compiling a program takes is the size of its functions.
#define COILWORK_OUT_OF_LINE __attribute__((noinline))

// Owns one handle; moving hands it on.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(other.handle_), owned_(other.owned_) { other.handle_ = nullptr; }
  COILWORK_OUT_OF_LINE Tensor& operator=(Tensor&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = other.handle_;
      owned_ = other.owned_;
      other.handle_ = nullptr;
    }
    return *this;
  }
  Tensor& keep(Tensor&& other) noexcept { return *this = static_cast<Tensor&&>(other); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { reset(); }

  // A tensor that somebody else deletes.
  static Tensor borrowed(AtenTensorHandle handle) {
    Tensor tensor(handle);
    tensor.owned_ = false;
    return tensor;
  }
  COILWORK_OUT_OF_LINE void reset() noexcept {
    if (handle_ && owned_) aoti_torch_delete_tensor_object(handle_);
    handle_ = nullptr;
    owned_ = true;
  }
  AtenTensorHandle release() noexcept {
    AtenTensorHandle handle = handle_;
    handle_ = nullptr;
    return handle;
  }
  AtenTensorHandle get() const { return handle_; }
  // Where a C function that takes an optional tensor reads it.
  AtenTensorHandle* pointer() const { return const_cast<AtenTensorHandle*>(&handle_); }
  // Where a C function puts its result.
  AtenTensorHandle* out() {
    reset();
    return &handle_;
  }
  // A second handle on the same tensor.
  Tensor alias() const {
    Tensor copy;
    check(aoti_torch_new_tensor_handle(handle_, copy.out()));
    return copy;
  }
  COILWORK_OUT_OF_LINE char* data() const {
    void* result = nullptr;
    check(aoti_torch_get_data_ptr(handle_, &result));
    return (char*)result;
  }
  int64_t rank() const {
    int64_t result = 0;
    check(aoti_torch_get_dim(handle_, &result));
    return result;
  }
  const int64_t* sizes() const {
    int64_t* result = nullptr;
    check(aoti_torch_get_sizes(handle_, &result));
    return result;
  }
  const int64_t* strides() const {
    int64_t* result = nullptr;
    check(aoti_torch_get_strides(handle_, &result));
    return result;
  }
  int64_t size(int64_t dim) const {
    if (dim >= rank()) fail(LAYOUT_FAILED, "an input of rank %lld has no dimension %lld", (long long)rank(), (long long)dim);
    return sizes()[dim];
  }
  int64_t stride(int64_t dim) const {
    if (dim >= rank()) fail(LAYOUT_FAILED, "an input of rank %lld has no dimension %lld", (long long)rank(), (long long)dim);
    return strides()[dim];
  }
  int32_t dtype() const {
    int32_t result = 0;
    check(aoti_torch_get_dtype(handle_, &result));
    return result;
  }

 private:
  AtenTensorHandle handle_ = nullptr;
  bool owned_ = true;
};

static Tensor&& move(Tensor& tensor) { return static_cast<Tensor&&>(tensor); }

// Where memory is.
struct Device {
  int32_t type, index;
};
static int32_t gpu_index = 0;
// The stream of a call on a GPU.
static thread_local void* stream = nullptr;
static Device host() { return {aoti_torch_device_type_cpu(), 0}; }
static Device gpu() { return {aoti_torch_device_type_cuda(), gpu_index}; }
static bool is_on(const Tensor& value, Device device) {
  int32_t type = 0, index = 0;
  check(aoti_torch_get_device_type(value.get(), &type));
  if (type != device.type) return false;
  if (type == aoti_torch_device_type_cpu()) return true;
  check(aoti_torch_get_device_index(value.get(), &index));
  return index == device.index;
}

static Tensor empty(Ints shape, Ints strides, int32_t dtype, Device device = host()) {
  Tensor result;
  check_memory(aoti_torch_empty_strided(shape.count, shape.data, strides.data, dtype, device.type, device.index,
                                        result.out()));
  return result;
}

static Tensor empty_pool(int64_t bytes, Device device = host()) {
  return empty({bytes}, {1}, aoti_torch_dtype_uint8(), device);
}

static Tensor carve(const Tensor& pool, int64_t offset_bytes, Ints shape, Ints strides, int32_t dtype) {
  Tensor result;
  check_memory(aoti_torch__alloc_from_pool(pool.get(), offset_bytes, dtype, shape.count, shape.data, strides.data,
                                           result.out()));
  return result;
}

// The memory of `source` under another layout, `offset` elements after its first.
static Tensor view(const Tensor& source, Ints shape, Ints strides, int64_t offset) {
  Tensor result;
  check_memory(aoti_torch__reinterpret_tensor(source.get(), shape.count, shape.data, strides.data, offset,
                                              result.out()));
  return result;
}

// As `view`, with the bits read as `dtype`; `offset` counts elements of `dtype`.
static Tensor view_bits(const Tensor& source, Ints shape, Ints strides, int64_t offset, int32_t dtype) {
  int64_t start = 0;
  check(aoti_torch_get_storage_offset(source.get(), &start));
  const int64_t bytes = start * (int64_t)aoti_torch_dtype_element_size(source.dtype());
  const int64_t width = (int64_t)aoti_torch_dtype_element_size(dtype);
  if (bytes % width)
    fail(RESULT_FAILED, "memory at byte %lld of its storage cannot be read as elements of %lld bytes", (long long)bytes,
         (long long)width);
  const Tensor whole = view(source, {0}, {1}, -start);
  return carve(whole, bytes + offset * width, shape, strides, dtype);
}

static bool same_strides(const Tensor& value, Ints shape, Ints strides) {
  const int64_t* actual = value.strides();
  bool same = true;
  for (int64_t d = 0; d < shape.count; ++d) {
    if (shape.data[d] == 0) return true;
    same = same && (shape.data[d] == 1 || actual[d] == strides.data[d]);
  }
  return same;
}

static bool same_shape(const Tensor& value, Ints shape) {
  return value.rank() == shape.count && (shape.count == 0 || memcmp(value.sizes(), shape.data, shape.count * 8) == 0);
}

static void show(char* text, size_t room, const int64_t* values, int64_t count) {
  size_t used = (size_t)snprintf(text, room, "(");
  for (int64_t d = 0; d < count && used < room; ++d)
    used += (size_t)snprintf(text + used, room - used, d ? ", %lld" : "%lld", (long long)values[d]);
  if (used < room) snprintf(text + used, room - used, count == 1 ? ",)" : ")");
}

static void check_shape(const Tensor& value, Ints shape) {
  if (same_shape(value, shape)) return;
  char found[256], wanted[256];
  show(found, sizeof found, value.sizes(), value.rank());
  show(wanted, sizeof wanted, shape.data, shape.count);
  fail(RESULT_FAILED, "an operator returned shape %s where %s was expected", found, wanted);
}

// The elements of `value` in fresh memory of this layout, where `value` is.
static Tensor copied(const Tensor& value, Ints shape, Ints strides, int32_t dtype) {
  check_shape(value, shape);
  Tensor copy = empty(shape, strides, dtype, is_on(value, host()) ? host() : gpu());
  check(aoti_torch_copy_(copy.get(), value.get(), 0));
  return copy;
}

// The result of an operator in the layout that the program was planned with; copied if the operator chose another one.
static Tensor with_layout(Tensor&& value, Ints shape, Ints strides, int32_t dtype) {
  check_shape(value, shape);
  if (shape.count == 0 || memcmp(value.strides(), strides.data, shape.count * 8) == 0) return move(value);
  if (same_strides(value, shape, strides)) return view(value, shape, strides, 0);
  return copied(value, shape, strides, dtype);
}

// Refuses an input that differs from what the program was compiled for. Strides of dimensions with one element, and of
// empty tensors, do not matter.
static void check_layout(const Tensor& value, const char* name, Ints shape, Ints strides, int32_t dtype,
                         const char* dtype_name, Device device = host()) {
  if (!is_on(value, device)) {
    if (device.type == aoti_torch_device_type_cpu()) fail(LAYOUT_FAILED, "input %s is not on the CPU", name);
    fail(LAYOUT_FAILED, "input %s is not on GPU %d", name, (int)device.index);
  }
  if (value.dtype() != dtype) fail(LAYOUT_FAILED, "input %s has another element type, expected %s", name, dtype_name);
  char found[256], wanted[256];
  if (!same_shape(value, shape)) {
    show(found, sizeof found, value.sizes(), value.rank());
    show(wanted, sizeof wanted, shape.data, shape.count);
    fail(LAYOUT_FAILED, "input %s has shape %s, expected %s", name, found, wanted);
  }
  if (!same_strides(value, shape, strides)) {
    show(found, sizeof found, value.strides(), value.rank());
    show(wanted, sizeof wanted, strides.data, strides.count);
    fail(LAYOUT_FAILED, "input %s has strides %s, expected %s", name, found, wanted);
  }
}

// `value`, or a copy of it if its address is no multiple of 16 bytes. Torch refuses to write to elements that are one in
// memory: of those a single one is copied, and repeated again.
static Tensor aligned(Tensor&& value, Ints shape, Ints strides, int32_t dtype) {
  if ((uintptr_t)value.data() % 16 == 0) return move(value);
  int64_t sizes[64];
  bool repeats = false;
  for (int64_t d = 0; d < shape.count; ++d) {
    const bool repeated = strides.data[d] == 0 && shape.data[d] > 1;
    sizes[d] = repeated ? 1 : shape.data[d];
    repeats = repeats || repeated;
  }
  if (!repeats) return copied(value, shape, strides, dtype);
  const Ints single(sizes, shape.count);
  return view(copied(view(value, single, strides, 0), single, strides, dtype), shape, strides, 0);
}

// The layout of an input, if no size changes it.
struct Layout {
  const char* name;
  int position;
  int64_t rank;
  int64_t shape[8];
  int64_t strides[8];
  int32_t (*dtype)();
  const char* dtype_name;
  bool aligned;
  bool on_gpu = false;
};

// Refuses inputs that differ from their rows in the table, and copies those that should be aligned and are not.
static void check_layouts(Tensor* inputs, const Layout* layouts, int count) {
  for (const Layout* wanted = layouts; wanted < layouts + count; ++wanted) {
    Tensor& value = inputs[wanted->position];
    const Ints shape(wanted->shape, wanted->rank), strides(wanted->strides, wanted->rank);
    check_layout(value, wanted->name, shape, strides, wanted->dtype(), wanted->dtype_name, wanted->on_gpu ? gpu() : host());
    if (wanted->aligned) value = aligned(move(value), shape, strides, wanted->dtype());
  }
}

// A kernel with run-time checks returns 0, or 1 + the number of the one that failed.
static void check_kernel(int64_t failed, const char* const* messages, const char* kernel) {
  if (failed == 0) return;
  const char* message = messages[failed - 1];
  int kind = CHECK_FAILED;
  if (strncmp(message, "IndexError: ", 12) == 0) {
    kind = INDEX_FAILED;
    message += 12;
  } else if (strncmp(message, "ZeroDivisionError: ", 19) == 0) {
    kind = DIVISION_FAILED;
    message += 19;
  } else if (strncmp(message, "RuntimeError: ", 14) == 0) {
    message += 14;
  }
  fail(kind, "%s (in kernel %s)", message, kernel);
}

static void require(bool holds, const char* message) {
  if (!holds) fail(CHECK_FAILED, "%s", message);
}

template <class T>
static int64_t read(AOTITorchError (*item)(AtenTensorHandle, T*), const Tensor& tensor) {
  T value{};
  check(item(tensor.get(), &value));
  return (int64_t)value;
}

// The only element of an integer or boolean tensor.
static int64_t item(const Tensor& tensor) {
  const int32_t dtype = tensor.dtype();
  if (dtype == aoti_torch_dtype_int64()) return read(aoti_torch_item_int64, tensor);
  if (dtype == aoti_torch_dtype_int32()) return read(aoti_torch_item_int32, tensor);
  if (dtype == aoti_torch_dtype_int16()) return read(aoti_torch_item_int16, tensor);
  if (dtype == aoti_torch_dtype_int8()) return read(aoti_torch_item_int8, tensor);
  if (dtype == aoti_torch_dtype_uint8()) return read(aoti_torch_item_uint8, tensor);
  if (dtype == aoti_torch_dtype_bool()) return read(aoti_torch_item_bool, tensor);
  fail(CHECK_FAILED, "a number is to be read from a tensor whose element type is no integer");
}

// Programs run without recording gradients, whatever the caller's mode.
class NoGrad {
 public:
  NoGrad() : before_(aoti_torch_grad_mode_is_enabled()) { aoti_torch_grad_mode_set_enabled(false); }
  ~NoGrad() { aoti_torch_grad_mode_set_enabled(before_); }
  NoGrad(const NoGrad&) = delete;

 private:
  bool before_;
};

}  // namespace rt
