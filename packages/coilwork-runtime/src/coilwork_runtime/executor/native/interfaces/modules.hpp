// The driver of NVIDIA's GPUs, found when it is first wanted: devices, and modules of machine code. Declared after NVIDIA's cuda.h.
// Python has the same in coilwork_runtime/triton_kernels/driver.py.
#pragma once
#include <dlfcn.h>
#include <stdio.h>

#include <utility>

#include "containers/text.hpp"
#include "interfaces/driver.hpp"

namespace coilwork {

// The driver or a device is missing, or the driver does not take machine code.
struct DriverRefusal {
  bool of_device;
  Text what;
};

// A kernel's machine code, as coilwork_runtime/triton_kernels/compilation.py describes it.
struct GpuCode {
  const char* name = "";
  const void* image = nullptr;
  unsigned shared_bytes = 0, threads = 0, cluster = 1;
  bool cooperative = false;
  uint64_t scratch_bytes = 0;
};

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

struct Driver {
#define COILWORK_FIELD(name, parameters) int(*name) parameters = nullptr;
  COILWORK_DRIVER_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD
  DriverLaunchEx cuLaunchKernelEx = nullptr;  // null before CUDA 11.8
};

[[noreturn]] inline void refuse_device(const char* what, long long number = 0) {
  char text[160];
  snprintf(text, sizeof text, what, number);
  throw DriverRefusal{true, Text(text)};
}

// Throws DriverRefusal.
inline const Driver& open_driver() {
  static const Driver opened = [] {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) refuse_device("the GPU driver libcuda.so.1 does not load");
    Driver made;
#define COILWORK_FIND(name, parameters)                                     \
  made.name = reinterpret_cast<int(*) parameters>(dlsym(library, #name));   \
  if (!made.name) refuse_device("the GPU driver has no " #name);
    COILWORK_DRIVER_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
    made.cuLaunchKernelEx = reinterpret_cast<DriverLaunchEx>(dlsym(library, "cuLaunchKernelEx"));
    return made;
  }();
  return opened;
}

class GpuDevice {
 public:
  // Throws DriverRefusal.
  explicit GpuDevice(int index) : driver(open_driver()), index(index) {
    int count = 0, device = 0;
    if (driver.cuInit(0) || driver.cuDeviceGetCount(&count)) refuse_device("the GPU driver sees no device");
    if (index < 0 || index >= count) refuse_device("the GPU driver sees %lld devices", count);
    if (driver.cuDeviceGet(&device, index) || driver.cuDeviceGetAttribute(&major, MAJOR, device) ||
        driver.cuDeviceGetAttribute(&minor, MINOR, device) || driver.cuDevicePrimaryCtxRetain(&context, device))
      refuse_device("the GPU driver does not give device %lld", index);
  }

  // How a kernel is launched. Modules stay loaded as long as the process. Throws DriverRefusal.
  HowToLaunch load(const GpuCode& code) const {
    const auto check = [&](int result, const char* what) {
      if (!result) return;
      char text[512];
      snprintf(text, sizeof text, "the GPU driver cannot %s kernel %s: error %d", what, code.name, result);
      throw DriverRefusal{false, Text(text)};
    };
    void *module = nullptr, *function = nullptr;
    check(driver.cuCtxSetCurrent(context), "use the device for");
    check(driver.cuModuleLoadData(&module, code.image), "load");
    check(driver.cuModuleGetFunction(&function, module, code.name), "find");
    if (code.shared_bytes > STATIC_SHARED_LIMIT_BYTES)
      check(driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_MEMORY, static_cast<int>(code.shared_bytes)), "reserve shared memory for");
    const bool is_plain = code.cluster == 1 && !code.cooperative;
    if (!is_plain && !driver.cuLaunchKernelEx) check(1, "launch clusters of");
    if (code.cluster > MOST_PORTABLE_CLUSTER) check(driver.cuFuncSetAttribute(function, NON_PORTABLE_CLUSTER, 1), "allow clusters for");
    return HowToLaunch{driver.cuLaunchKernel, is_plain ? nullptr : driver.cuLaunchKernelEx, function, code.threads,
                       code.shared_bytes, code.cluster, code.cooperative};
  }

  const Driver& driver;
  int index, major = 0, minor = 0;
  void* context = nullptr;

 private:
  static constexpr int MAJOR = 75, MINOR = 76;                                    // attributes of a device
  static constexpr int MAX_DYNAMIC_SHARED_MEMORY = 8, NON_PORTABLE_CLUSTER = 14;  // attributes of a function
  static constexpr unsigned STATIC_SHARED_LIMIT_BYTES = 48 * 1024, MOST_PORTABLE_CLUSTER = 8;
};

#undef COILWORK_DRIVER_FUNCTIONS

}  // namespace coilwork
