extern "C" {
// Of libtorch_cuda.
struct CUDAGuardOpaque;
using CUDAGuardHandle = CUDAGuardOpaque*;
AOTITorchError aoti_torch_get_current_device_index(int32_t* result);
AOTITorchError aoti_torch_create_cuda_guard(int32_t index, CUDAGuardHandle* result);
AOTITorchError aoti_torch_delete_cuda_guard(CUDAGuardHandle guard);
AOTITorchError aoti_torch_get_current_cuda_stream(int32_t index, void** result);
}

namespace rt {

// Where the program was compiled, until a loader chooses.
static const int32_t compiled_on = gpu_index = @GPU@;

// The program's GPU is the current one during a call, and its work goes to the stream that is current there.
class OnGpu {
 public:
  OnGpu() {
    int32_t current = -1;
    check(aoti_torch_get_current_device_index(&current));
    if (current != gpu().index) check(aoti_torch_create_cuda_guard(gpu().index, &guard_));
    if (aoti_torch_get_current_cuda_stream(gpu().index, &stream) == 0) return;
    leave();
    check(1);
  }
  ~OnGpu() { leave(); }
  OnGpu(const OnGpu&) = delete;

 private:
  void leave() {
    if (guard_) aoti_torch_delete_cuda_guard(guard_);
    guard_ = nullptr;
  }
  CUDAGuardHandle guard_ = nullptr;
};

}  // namespace rt
