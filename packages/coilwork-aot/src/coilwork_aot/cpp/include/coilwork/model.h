// Loads packages that coilwork.export wrote, and runs them without Python.
//
//   coilwork::Model model("model.cw");
//   std::vector<float> data(3 * 16);
//   std::vector<coilwork::Value> results = model({coilwork::Tensor(data.data(), {3, 16})});
//   const float* first = results[0].tensor().data<float>();
//
// A tensor of torch's stable interface goes in and out by its handle: `Tensor::share(t.get())`, `torch::stable::Tensor(x.release())`.
// Link with coilwork::model of CMake's package `coilwork`.
#pragma once
#include <algorithm>
#include <complex>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coilwork/model_c.h"

namespace coilwork {

// A refusal; `code` is one of coilwork_aot.errors.CODES.
class Error : public std::runtime_error {
 public:
  Error(const std::string& code, const std::string& message) : std::runtime_error("[" + code + "] " + message), code_(code) {}
  const std::string& code() const { return code_; }

 private:
  std::string code_;
};

// A package cannot be read, or is not what it says.
class PackageError : public Error {
  using Error::Error;
};
// A package does not run here.
class TargetError : public Error {
  using Error::Error;
};
// A call's inputs are not what the model was exported for.
class InputError : public Error {
  using Error::Error;
};
// A call failed: a check in a kernel, an operator of torch's, the device.
class CallError : public Error {
  using Error::Error;
};

namespace detail {

inline void check(CoilworkError* error) {
  if (!error) return;
  const std::string code = coilwork_error_code(error), message = coilwork_error_message(error);
  const CoilworkErrorKind kind = coilwork_error_kind(error);
  coilwork_error_delete(error);
  switch (kind) {
    case COILWORK_PACKAGE_ERROR:
      throw PackageError(code, message);
    case COILWORK_TARGET_ERROR:
      throw TargetError(code, message);
    case COILWORK_INPUT_ERROR:
      throw InputError(code, message);
    default:
      throw CallError(code, message);
  }
}

template <class T>
struct DtypeOf;
#define COILWORK_DTYPE_OF(type, number) \
  template <>                           \
  struct DtypeOf<type> {                \
    static constexpr int32_t value = number; \
  };
COILWORK_DTYPE_OF(uint8_t, COILWORK_UINT8)
COILWORK_DTYPE_OF(int8_t, COILWORK_INT8)
COILWORK_DTYPE_OF(int16_t, COILWORK_INT16)
COILWORK_DTYPE_OF(int32_t, COILWORK_INT32)
COILWORK_DTYPE_OF(int64_t, COILWORK_INT64)
COILWORK_DTYPE_OF(float, COILWORK_FLOAT32)
COILWORK_DTYPE_OF(double, COILWORK_FLOAT64)
COILWORK_DTYPE_OF(bool, COILWORK_BOOL)
COILWORK_DTYPE_OF(std::complex<float>, COILWORK_COMPLEX64)
COILWORK_DTYPE_OF(std::complex<double>, COILWORK_COMPLEX128)
#undef COILWORK_DTYPE_OF

}  // namespace detail

// Loads torch from the path of libtorch_cpu.so, where the process has not linked or loaded it: for tensors that are made before a model
// is opened. Throws TargetError.
inline void open_torch(const std::string& path = "") { detail::check(coilwork_open_torch(path.empty() ? nullptr : path.c_str())); }

// Owns a handle on a tensor; copies are further handles on the same one.
class Tensor {
 public:
  Tensor() = default;
  // On contiguous memory of the caller's, on the CPU, which outlives all tensors on it.
  template <class T>
  Tensor(T* data, const std::vector<int64_t>& sizes)
      : Tensor(CoilworkMemory{sizeof(CoilworkMemory), data, static_cast<int64_t>(sizes.size()), sizes.data(), nullptr,
                              detail::DtypeOf<T>::value, COILWORK_CPU, 0}) {}
  // On any memory. `release(data, context)` is called when no tensor sees it any more.
  explicit Tensor(const CoilworkMemory& memory, void (*release)(void*, void*) = nullptr, void* context = nullptr) {
    detail::check(coilwork_tensor_make(&memory, release, context, &handle_));
  }
  // Takes over a handle of torch's stable C interface.
  static Tensor own(CoilworkTensor handle) {
    Tensor made;
    made.handle_ = handle;
    return made;
  }
  // A further handle on the tensor of `handle`, which stays the caller's.
  static Tensor share(CoilworkTensor handle) {
    Tensor made;
    detail::check(coilwork_tensor_share(handle, &made.handle_));
    return made;
  }
  Tensor(const Tensor& other) {
    if (other.handle_) detail::check(coilwork_tensor_share(other.handle_, &handle_));
  }
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor& operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_) coilwork_tensor_delete(handle_);
  }

  CoilworkTensor get() const { return handle_; }
  CoilworkTensor release() { return std::exchange(handle_, nullptr); }
  explicit operator bool() const { return handle_ != nullptr; }

  CoilworkMemory memory() const {
    CoilworkMemory found{};
    found.size = sizeof found;
    detail::check(coilwork_tensor_describe(handle_, &found));
    return found;
  }
  std::vector<int64_t> sizes() const {
    const CoilworkMemory found = memory();
    return {found.sizes, found.sizes + found.rank};
  }
  std::vector<int64_t> strides() const {
    const CoilworkMemory found = memory();
    return {found.strides, found.strides + found.rank};
  }
  int32_t dtype() const { return memory().dtype; }
  int64_t count() const {
    int64_t product = 1;
    for (int64_t size : sizes()) product *= size;
    return product;
  }
  // The first element.
  template <class T>
  T* data() const {
    const CoilworkMemory found = memory();
    if (found.dtype != detail::DtypeOf<T>::value) throw CallError("dtype", "a tensor has another element type than is asked for");
    return static_cast<T*>(found.data);
  }
  // Copies the elements of a tensor of the same shape, of any device.
  void copy_from(const Tensor& other) { detail::check(coilwork_tensor_copy(handle_, other.handle_)); }

 private:
  CoilworkTensor handle_ = nullptr;
};

// A tensor or number that goes in, or a tensor, number, text or nothing that comes out.
class Value {
 public:
  Value() = default;
  Value(Tensor tensor) : tensor_(std::move(tensor)) { value_.kind = COILWORK_TENSOR; }
  Value(int64_t number) {
    value_.kind = COILWORK_INTEGER;
    value_.integer = number;
  }
  Value(int number) : Value(static_cast<int64_t>(number)) {}
  // Takes over the handle of a result.
  explicit Value(const CoilworkValue& result) : value_(result) {
    if (result.kind == COILWORK_TENSOR) tensor_ = Tensor::own(result.tensor);
    if (result.kind == COILWORK_TEXT) text_ = result.text;
  }

  CoilworkKind kind() const { return value_.kind; }
  const Tensor& tensor() const {
    expect(COILWORK_TENSOR);
    return tensor_;
  }
  int64_t integer() const {
    expect(COILWORK_INTEGER);
    return value_.integer;
  }
  double real() const {
    expect(COILWORK_REAL);
    return value_.real;
  }
  bool truth() const {
    expect(COILWORK_TRUTH);
    return value_.integer != 0;
  }
  const std::string& text() const {
    expect(COILWORK_TEXT);
    return text_;
  }

  CoilworkValue as_input() const {
    CoilworkValue given = value_;
    given.tensor = tensor_.get();
    given.text = nullptr;
    return given;
  }

 private:
  void expect(CoilworkKind kind) const {
    if (value_.kind != kind) throw CallError("no-tensor", "a result is of another kind than is asked for");
  }

  CoilworkValue value_{};
  Tensor tensor_;
  std::string text_;
};

class Model;

struct Options {
  std::string device;         // "cpu", "cuda", "cuda:1"; empty: what the package is for
  std::string digest;         // insists on the package with this digest
  std::string weights_path;   // a safetensors file instead of the package's own weights
  std::vector<std::pair<std::string, Tensor>> weights;  // or tensors by name
  const Model* share = nullptr;  // uses the tensors of this model
  std::string torch_library;  // path of libtorch_cpu.so, if the process has not loaded it
  bool verify_weights = true;
  bool uses_libraries = true;  // on a GPU, cuBLASLt and cuDNN do products and convolutions without torch, as in Python
  bool uses_graphs = true;     // on a GPU, work that repeats goes to the driver as graphs
};

// A dimension's sizes; `high` is -1 without an upper bound. Dimensions of one symbol are equal.
struct Extent {
  int64_t low, high;
  std::string symbol;
};

struct Input {
  std::string name;
  CoilworkKind kind;
  int32_t dtype, device;
  std::vector<Extent> extents;
  bool is_written;
};

// A loaded model. Several threads may call it at once, on a GPU each with a stream of its own.
class Model {
 public:
  // Loads a package. Throws PackageError or TargetError.
  explicit Model(const std::string& path, const Options& options = {}) {
    const auto text = [](const std::string& one) { return one.empty() ? nullptr : one.c_str(); };
    CoilworkOptions given{};
    given.size = sizeof given;
    given.device = text(options.device);
    given.digest = text(options.digest);
    given.weights_path = text(options.weights_path);
    const std::vector<CoilworkNamedTensor> weights = list_named(options.weights);
    given.weights = weights.data();
    given.weight_count = weights.size();
    given.share = options.share ? options.share->model_.get() : nullptr;
    given.torch_library = text(options.torch_library);
    given.skips_weight_hash = !options.verify_weights;
    given.leaves_libraries = !options.uses_libraries;
    given.leaves_graphs = !options.uses_graphs;
    CoilworkModel* made = nullptr;
    detail::check(coilwork_model_open(path.c_str(), &given, &made));
    model_.reset(made);
  }

  std::string name() const { return coilwork_model_name(model_.get()); }
  std::string device() const { return coilwork_model_device(model_.get()); }
  CoilworkCounters counters() const {
    CoilworkCounters made{};
    made.size = sizeof made;
    coilwork_model_count(model_.get(), &made);
    return made;
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names(coilwork_model_entry_count(model_.get()));
    for (size_t k = 0; k < names.size(); ++k) names[k] = coilwork_model_entry_name(model_.get(), k);
    return names;
  }
  // The inputs of an entry point, for one of its ranges of shapes.
  std::vector<Input> inputs(const std::string& entry = "", size_t variant = 0) const {
    const size_t number = find(entry);
    std::vector<Input> made;
    for (size_t k = 0; k < coilwork_model_input_count(model_.get(), number, variant); ++k) {
      CoilworkInput found{};
      found.size = sizeof found;
      detail::check(coilwork_model_input(model_.get(), number, variant, k, &found));
      Input input{found.name, found.kind, found.dtype, found.device, {}, found.is_written != 0};
      for (int64_t d = 0; d < found.rank; ++d)
        input.extents.push_back({found.extents[d].low, found.extents[d].high, found.extents[d].symbol});
      made.push_back(std::move(input));
    }
    return made;
  }
  size_t variants(const std::string& entry = "") const { return coilwork_model_variant_count(model_.get(), find(entry)); }

  // Number of an entry point, for calls that should not look it up; the empty name is `forward`, or the only one.
  size_t find(const std::string& entry = "") const {
    size_t number = 0;
    detail::check(coilwork_model_find_entry(model_.get(), entry.c_str(), &number));
    return number;
  }

  // Runs an entry point. Throws InputError or CallError.
  std::vector<Value> operator()(const std::vector<Value>& inputs) const { return call(find(), inputs); }
  std::vector<Value> call(const std::string& entry, const std::vector<Value>& inputs) const { return call(find(entry), inputs); }
  std::vector<Value> call(size_t entry, const std::vector<Value>& inputs) const {
    std::vector<CoilworkValue> given;
    given.reserve(inputs.size());
    for (const Value& one : inputs) given.push_back(one.as_input());
    size_t count = 0;
    for (size_t k = 0; k < coilwork_model_variant_count(model_.get(), entry); ++k)
      count = std::max(count, coilwork_model_result_count(model_.get(), entry, k));
    std::vector<CoilworkValue> made(count);
    detail::check(coilwork_model_call(model_.get(), entry, given.data(), given.size(), made.data(), &count));
    std::vector<Value> results;
    results.reserve(count);
    for (size_t k = 0; k < count; ++k) results.emplace_back(made[k]);
    return results;
  }

  // Parameters, buffers and constants by name, in the order of the exported module; persistent ones alone by default.
  std::vector<std::pair<std::string, Tensor>> state(bool with_others = false) const {
    std::vector<std::pair<std::string, Tensor>> made;
    for (size_t k = 0; k < coilwork_model_state_count(model_.get()); ++k) {
      CoilworkStateInfo info{};
      info.size = sizeof info;
      CoilworkTensor handle = nullptr;
      detail::check(coilwork_model_state(model_.get(), k, &info, &handle));
      Tensor tensor = Tensor::own(handle);
      if (with_others || info.is_persistent) made.emplace_back(info.name, std::move(tensor));
    }
    return made;
  }
  // Other values for all persistent state: copied, or with `assign` the tensors themselves. Throws PackageError.
  void load_state(const std::vector<std::pair<std::string, Tensor>>& values, bool assign = false) {
    const std::vector<CoilworkNamedTensor> given = list_named(values);
    detail::check(coilwork_model_load_state(model_.get(), given.data(), given.size(), assign));
  }
  void load_state(const std::string& safetensors_path, bool assign = false) {
    detail::check(coilwork_model_load_state_file(model_.get(), safetensors_path.c_str(), assign));
  }

 private:
  static std::vector<CoilworkNamedTensor> list_named(const std::vector<std::pair<std::string, Tensor>>& values) {
    std::vector<CoilworkNamedTensor> made;
    for (const auto& one : values) made.push_back({one.first.c_str(), one.second.get()});
    return made;
  }
  struct Close {
    void operator()(CoilworkModel* model) const { coilwork_model_close(model); }
  };
  std::unique_ptr<CoilworkModel, Close> model_;
};

}  // namespace coilwork
