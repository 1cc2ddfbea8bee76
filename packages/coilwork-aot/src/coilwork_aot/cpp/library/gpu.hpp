// The GPU that a package is loaded for.
#pragma once
#include <memory>
#include <string>

#include "interfaces/modules.hpp"
#include "program/model.hpp"

namespace coilwork_aot {

// A kernel's machine code, as coilwork_runtime/triton_kernels/compilation.py stores it.
struct GpuBinary {
  std::string name, image;
  unsigned shared_bytes = 0, threads = 0, cluster = 1;
  uint64_t scratch_bytes = 0;
  bool cooperative = false;
};

// Throws NotThere: the bytes are something else.
GpuBinary decode_binary(std::string_view data);

class Gpu {
 public:
  // The device number `index`; below 0 the one that torch has as current. Throws Refusal: missing-device.
  explicit Gpu(int index);

  int index() const { return device_->index; }
  // The driver's context that torch uses, too.
  void* context() const { return device_->context; }
  // Its architecture, such as `sm_90`.
  const std::string& name() const { return name_; }
  // Fills in how a kernel is launched. Modules stay loaded as long as the process. Throws Refusal: damaged-kernels.
  void load(const GpuBinary& binary, coilwork::Form& form) const;

 private:
  std::unique_ptr<coilwork::GpuDevice> device_;
  std::string name_;
};

// Whether machine code for `target` runs on the GPU `present`, as coilwork_runtime.devices.can_run_on.
bool can_run_on(const std::string& target, const std::string& present);

}  // namespace coilwork_aot
