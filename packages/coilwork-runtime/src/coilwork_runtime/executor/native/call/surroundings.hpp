// What torch is told while a program runs.
#pragma once
#include "call/frames.hpp"

namespace coilwork {

// No gradients are recorded inside of a program, and its GPU is the current one.
class Surroundings {
 public:
  explicit Surroundings(Call& call) : recorded_(torch.aoti_torch_grad_mode_is_enabled()) {
    if (recorded_) torch.aoti_torch_grad_mode_set_enabled(false);
    const Program& program = call.program;
    if (program.cuda_device < 0 || program.several_devices || !knows_streams()) return;
    int32_t current = -1;
    if (torch.aoti_torch_get_current_device_index(&current) != 0) return;
    if (current != program.cuda_device && torch.aoti_torch_create_cuda_guard(program.cuda_device, &guard_) != 0) return;
    call.stream_known = torch.aoti_torch_get_current_cuda_stream(program.cuda_device, &call.stream) == 0;
  }
  ~Surroundings() {
    if (guard_) torch.aoti_torch_delete_cuda_guard(guard_);
    if (recorded_) torch.aoti_torch_grad_mode_set_enabled(true);
  }
  Surroundings(const Surroundings&) = delete;

 private:
  static bool knows_streams() {
    return torch.aoti_torch_get_current_cuda_stream && torch.aoti_torch_get_current_device_index &&
           torch.aoti_torch_create_cuda_guard;
  }

  bool recorded_;
  CUDAGuardHandle guard_ = nullptr;
};

}  // namespace coilwork
