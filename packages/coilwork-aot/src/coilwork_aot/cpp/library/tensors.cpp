#include "tensors.hpp"

#include <algorithm>
#include <iterator>
#include <mutex>

#include "json.hpp"
#include "refusal.hpp"

namespace coilwork_aot {
namespace {

struct Named {
  const char *name, *torchs;
};
// coilwork_runtime/dtypes.py
constexpr Named DTYPES[] = {
    {"f64", "float64"}, {"f32", "float32"}, {"f16", "float16"}, {"bf16", "bfloat16"},
    {"f8e4m3", "float8_e4m3fn"}, {"f8e5m2", "float8_e5m2"}, {"i64", "int64"}, {"i32", "int32"},
    {"i16", "int16"}, {"i8", "int8"}, {"u64", "uint64"}, {"u32", "uint32"}, {"u16", "uint16"},
    {"u8", "uint8"}, {"bool", "bool"}, {"c32", "complex32"}, {"c64", "complex64"}, {"c128", "complex128"},
    {"f8e4m3fnuz", "float8_e4m3fnuz"}, {"f8e5m2fnuz", "float8_e5m2fnuz"}, {"f8e8m0", "float8_e8m0fnu"},
    {"f4e2m1x2", "float4_e2m1fn_x2"}, {"qi8", "qint8"}, {"qu8", "quint8"}, {"qi32", "qint32"},
    {"qu4x2", "quint4x2"}, {"qu2x4", "quint2x4"}, {"bits8", "bits8"}, {"bits16", "bits16"},
    {"bits4x2", "bits4x2"}, {"bits2x4", "bits2x4"}, {"bits1x8", "bits1x8"}};

std::string find_fault(const std::string& path) {
  const auto is_loaded = [] { return dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY) != nullptr; };
  if (!is_loaded()) {
    if (!dlopen(path.empty() ? "libtorch_cpu.so" : path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return dlerror();
    // its kernels for GPUs register themselves
    const size_t folder = path.rfind('/');
    const std::string beside = folder == std::string::npos ? "" : path.substr(0, folder + 1);
    dlopen((beside + "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (!is_loaded()) return path + " is no libtorch_cpu.so";
  }
  const char* missing = coilwork::find_torch();
  return missing ? std::string("torch does not export ") + missing : "";
}

}  // namespace

void open_torch(const std::string& path) {
  static std::mutex opening;
  static bool is_open = false;
  const std::lock_guard<std::mutex> lock(opening);
  if (is_open) return;
  const std::string fault = find_fault(path);
  if (!fault.empty()) refuse_target("no-torch", "torch's libraries are not there: " + fault);
  is_open = true;
}

std::pair<int, int> read_torch_version() {
  const uint64_t version = torch.aoti_torch_abi_version();
  return {static_cast<int>(version >> 56), static_cast<int>(version >> 48 & 0xff)};
}

std::string read_torch_error() {
  using Asked = const char* (*)();
  const auto asked = reinterpret_cast<Asked>(coilwork::torch_symbol("torch_exception_get_what_without_backtrace"));
  const char* found = asked ? asked() : nullptr;
  return found ? found : "torch does not tell why";
}

TensorFacts::TensorFacts(AtenTensorHandle tensor) {
  int64_t *all_sizes = nullptr, *all_strides = nullptr;
  if (torch.aoti_torch_get_dim(tensor, &rank) || torch.aoti_torch_get_sizes(tensor, &all_sizes) ||
      torch.aoti_torch_get_strides(tensor, &all_strides) || torch.aoti_torch_get_dtype(tensor, &dtype) ||
      torch.aoti_torch_get_device_type(tensor, &device) || torch.aoti_torch_get_device_index(tensor, &device_index))
    throw Refusal(COILWORK_CALL_ERROR, "call-failed", "torch does not tell what a tensor is: " + read_torch_error());
  sizes = all_sizes;
  strides = all_strides;
}

int64_t TensorFacts::count() const {
  int64_t product = 1;
  for (int64_t k = 0; k < rank; ++k) product *= sizes[k];
  return product;
}

int64_t compute_span(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  int64_t span = 1, part = 0;
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 0) return 0;
    if (__builtin_mul_overflow(sizes[k] - 1, strides[k], &part) || __builtin_add_overflow(span, part, &span))
      throw NotThere("a tensor is larger than any memory");
  }
  return span;
}

bool is_dtype(const std::string& name) {
  return std::any_of(std::begin(DTYPES), std::end(DTYPES), [&](const Named& one) { return name == one.name; });
}

int32_t find_dtype(const std::string& name) {
  for (const Named& one : DTYPES) {
    if (name != one.name) continue;
    const auto asked = reinterpret_cast<int32_t (*)()>(coilwork::torch_symbol((std::string("aoti_torch_dtype_") + one.torchs).c_str()));
    return asked ? asked() : -1;
  }
  return -1;
}

size_t get_width(int32_t dtype) { return torch.aoti_torch_dtype_element_size(dtype); }

Handle share(AtenTensorHandle tensor) {
  AtenTensorHandle made = nullptr;
  if (torch.aoti_torch_new_tensor_handle(tensor, &made)) throw Refusal(COILWORK_CALL_ERROR, "call-failed", read_torch_error());
  return Handle(made);
}

Handle make_empty(const int64_t* sizes, const int64_t* strides, int64_t rank, int32_t dtype, const Place& place) {
  AtenTensorHandle made = nullptr;
  if (torch.aoti_torch_empty_strided(rank, sizes, strides, dtype, place.type, place.index, &made))
    throw Refusal(COILWORK_CALL_ERROR, "call-failed", "memory cannot be allocated: " + read_torch_error());
  return Handle(made);
}

Handle make_on_memory(void* data, const int64_t* sizes, const int64_t* strides, int64_t rank, int32_t dtype, const Place& place,
                      void (*release)(void*, void*), void* context) {
  using Make = AOTITorchError (*)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t, AtenTensorHandle*,
                                  int32_t, const uint8_t*, int64_t, void (*)(void*, void*), void*);
  static const auto make = reinterpret_cast<Make>(coilwork::torch_symbol("torch_from_blob"));
  if (!make) refuse_target("no-torch", "torch does not export torch_from_blob");
  AtenTensorHandle made = nullptr;
  // memory of the CPU has no index; layout 0: strided
  const int32_t index = place.is_cpu() ? -1 : place.index;
  if (make(data, rank, sizes, strides, 0, dtype, place.type, index, &made, 0, nullptr, 0, release, context))
    throw Refusal(COILWORK_CALL_ERROR, "call-failed", "memory cannot be seen as a tensor: " + read_torch_error());
  return Handle(made);
}

void copy(AtenTensorHandle to, AtenTensorHandle from) {
  if (torch.aoti_torch_copy_(to, from, 0)) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "a tensor cannot be copied: " + read_torch_error());
}

}  // namespace coilwork_aot
