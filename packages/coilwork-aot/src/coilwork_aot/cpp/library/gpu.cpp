#include "gpu.hpp"

#include <stdlib.h>

#include "json.hpp"
#include "refusal.hpp"
#include "tensors.hpp"

namespace coilwork_aot {
namespace {

// Declared after NVIDIA's cuda.h.
#define COILWORK_DRIVER_FUNCTIONS(F)                                      \
  F(cuInit, (unsigned))                                                   \
  F(cuDeviceGetCount, (int*))                                             \
  F(cuDeviceGet, (int*, int))                                             \
  F(cuDeviceGetAttribute, (int*, int, int))                               \
  F(cuDevicePrimaryCtxRetain, (void**, int))                              \
  F(cuCtxSetCurrent, (void*))                                             \
  F(cuModuleLoadData, (void**, const void*))                              \
  F(cuModuleGetFunction, (void**, void*, const char*))                    \
  F(cuFuncSetAttribute, (void*, int, int))                                \
  F(cuLaunchKernel, (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**))

constexpr int MAJOR = 75, MINOR = 76;                                   // attributes of a device
constexpr int MAX_DYNAMIC_SHARED_MEMORY = 8, NON_PORTABLE_CLUSTER = 14;  // attributes of a function
constexpr unsigned STATIC_SHARED_LIMIT_BYTES = 48 * 1024, MOST_PORTABLE_CLUSTER = 8;

struct Driver {
#define COILWORK_FIELD(name, parameters) int(*name) parameters = nullptr;
  COILWORK_DRIVER_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD
  coilwork::DriverLaunchEx cuLaunchKernelEx = nullptr;  // null before CUDA 11.8
};

[[noreturn]] void refuse_device(const std::string& what) { refuse_target("missing-device", what); }

const Driver& open_driver() {
  static const Driver opened = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) refuse_device("the GPU driver libcuda.so.1 does not load");
    Driver made;
#define COILWORK_FIND(name, parameters)                                     \
  made.name = reinterpret_cast<int(*) parameters>(dlsym(library, #name));   \
  if (!made.name) refuse_device("the GPU driver has no " #name);
    COILWORK_DRIVER_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
    made.cuLaunchKernelEx = reinterpret_cast<coilwork::DriverLaunchEx>(dlsym(library, "cuLaunchKernelEx"));
    return made;
  }();
  return opened;
}

int64_t read_natural(const Json& header, const char* name, int64_t otherwise) {
  const int64_t value = header.has(name) ? header[name].integer() : otherwise;
  if (value < 0) throw NotThere("a kernel's binary lacks " + std::string(name));
  return value;
}

}  // namespace

GpuBinary decode_binary(std::string_view data) {
  uint64_t length = 0;
  if (data.size() < 16 || data.substr(0, 8) != "COILTRIT") throw NotThere("no compiled Triton kernel");
  memcpy(&length, data.data() + 8, 8);
  if (length >= data.size() - 16) throw NotThere("no compiled Triton kernel");
  const Json header = Json::parse(data.substr(16, length));
  GpuBinary made;
  made.name = header["name"].text();
  made.image = data.substr(16 + length);
  made.shared_bytes = static_cast<unsigned>(read_natural(header, "shared_bytes", -1));
  made.threads = static_cast<unsigned>(read_natural(header, "threads", -1));
  made.scratch_bytes = static_cast<uint64_t>(read_natural(header, "scratch_bytes", -1));
  made.cluster = static_cast<unsigned>(read_natural(header, "cluster", 1));
  made.cooperative = read_natural(header, "cooperative", 0) != 0;
  return made;
}

Gpu::Gpu(int index) : index_(index) {
  if (!torch.cuda) refuse_device("this torch is built without CUDA");
  const Driver& driver = open_driver();
  int count = 0, device = 0, major = 0, minor = 0;
  if (driver.cuInit(0) || driver.cuDeviceGetCount(&count)) refuse_device("the GPU driver sees no device");
  int32_t current = 0;
  if (index_ < 0) {
    if (torch.aoti_torch_get_current_device_index && torch.aoti_torch_get_current_device_index(&current)) current = 0;
    index_ = current;
  }
  if (index_ >= count) refuse_device("the GPU driver sees " + std::to_string(count) + " devices");
  if (driver.cuDeviceGet(&device, index_) || driver.cuDeviceGetAttribute(&major, MAJOR, device) ||
      driver.cuDeviceGetAttribute(&minor, MINOR, device) || driver.cuDevicePrimaryCtxRetain(&context_, device))
    refuse_device("the GPU driver does not give device " + std::to_string(index_));
  name_ = "sm_" + std::to_string(major) + std::to_string(minor);
}

void Gpu::load(const GpuBinary& binary, coilwork::Form& form) const {
  const Driver& driver = open_driver();
  const auto check = [&](int result, const char* what) {
    if (result)
      refuse_package("damaged-kernels", std::string("the GPU driver cannot ") + what + " kernel " + binary.name + ": error " + std::to_string(result));
  };
  void *module = nullptr, *function = nullptr;
  check(driver.cuCtxSetCurrent(context_), "use the device for");
  check(driver.cuModuleLoadData(&module, binary.image.data()), "load");
  check(driver.cuModuleGetFunction(&function, module, binary.name.c_str()), "find");
  if (binary.shared_bytes > STATIC_SHARED_LIMIT_BYTES)
    check(driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_MEMORY, static_cast<int>(binary.shared_bytes)), "reserve shared memory for");
  const bool is_plain = binary.cluster == 1 && !binary.cooperative;
  if (!is_plain && !driver.cuLaunchKernelEx) check(1, "launch clusters of");
  if (binary.cluster > MOST_PORTABLE_CLUSTER) check(driver.cuFuncSetAttribute(function, NON_PORTABLE_CLUSTER, 1), "allow clusters for");
  form.function = form.how.function = function;
  form.how.launch = driver.cuLaunchKernel;
  form.how.launch_ex = is_plain ? nullptr : driver.cuLaunchKernelEx;
  form.how.threads = binary.threads;
  form.how.shared_bytes = binary.shared_bytes;
  form.how.cluster = binary.cluster;
  form.how.cooperative = binary.cooperative;
  form.set_context = reinterpret_cast<void*>(driver.cuCtxSetCurrent);
  form.context = context_;
  form.device = index_;
  form.compiler_scratch_bytes = binary.scratch_bytes;
}

bool can_run_on(const std::string& target, const std::string& present) {
  const bool both = target.rfind("sm_", 0) == 0 && present.rfind("sm_", 0) == 0;
  if (!both) return target == present;
  const int wanted = atoi(target.c_str() + 3), here = atoi(present.c_str() + 3);
  return wanted / 10 == here / 10 && wanted <= here && (wanted == here || wanted < 90);
}

}  // namespace coilwork_aot
