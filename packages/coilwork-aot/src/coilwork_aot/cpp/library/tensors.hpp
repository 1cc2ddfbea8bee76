// Torch, as a process without Python has it, and handles on its tensors.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "interfaces/torch.hpp"

namespace coilwork_aot {

using coilwork::torch;

// Finds torch's functions, once: in what the process has loaded, else in `path`, else where the system's loader looks. Throws Refusal.
void open_torch(const std::string& path = "");

// Major and minor version.
std::pair<int, int> read_torch_version();

// What torch said last in this thread, if it tells.
std::string read_torch_error();

// Owns a handle.
class Handle {
 public:
  Handle() = default;
  explicit Handle(AtenTensorHandle handle) : handle_(handle) {}
  Handle(Handle&& other) noexcept : handle_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle(const Handle&) = delete;
  ~Handle() {
    if (handle_) torch.aoti_torch_delete_tensor_object(handle_);
  }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

 private:
  AtenTensorHandle handle_ = nullptr;
};

struct Place {
  int32_t type = 0, index = 0;
  std::string text = "cpu";

  bool is_cpu() const { return type == torch.aoti_torch_device_type_cpu(); }
};

// What torch tells of a tensor. The arrays are the tensor's.
struct TensorFacts {
  int64_t rank = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0, device = 0, device_index = 0;

  explicit TensorFacts(AtenTensorHandle tensor);
  int64_t count() const;
};

// Elements from the first one in memory to behind the last; throws NotThere if that is beyond 64 bits.
int64_t compute_span(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);

// Whether kernels call an element type so.
bool is_dtype(const std::string& name);
// The number of an element type that kernels call `name`, -1 without one; and its bytes.
int32_t find_dtype(const std::string& name);
size_t get_width(int32_t dtype);

Handle share(AtenTensorHandle tensor);
Handle make_empty(const int64_t* sizes, const int64_t* strides, int64_t rank, int32_t dtype, const Place& place);
// On memory that `release(data, context)` gives back; null if somebody else does.
Handle make_on_memory(void* data, const int64_t* sizes, const int64_t* strides, int64_t rank, int32_t dtype, const Place& place,
                      void (*release)(void*, void*), void* context);
void copy(AtenTensorHandle to, AtenTensorHandle from);

}  // namespace coilwork_aot
