// Capture regions whose kernels Python launches, on a device that a back end brings: `region_replay.py` puts the launches off, and is
// told here where regions begin and end, and of what is freed meanwhile.
#pragma once
#include "replay/issuing.hpp"
#include "running/host_calls.hpp"

namespace coilwork {

// A call with regions. `finish` it, unless something is thrown.
class HostRegions final : public WorkQueue {
 public:
  explicit HostRegions(Call& call) : call_(call) { call_.work_queue = this; }
  HostRegions(const HostRegions&) = delete;
  ~HostRegions() {
    call_.work_queue = nullptr;
    if (!inside_) return;
    // an exception is on its way; what was put off happened before it
    try {
      tell("end");
    } catch (Raised& raised) {
      forget(call_, raised);
    }
  }
  void finish() {
    if (inside_) capture(false);
  }

  int take(const Work& work) override { return issue(work, call_.stream); }
  void settle() override {
    if (inside_) tell("settle");
  }
  // Its launcher puts the launch off, or settles.
  void settle_for_host() override {}
  void make_room() override {}
  AtenTensorHandle reuse(size_t, int64_t&, bool) override { return nullptr; }
  // Launches that were put off hold what they use.
  void free_behind(AtenTensorHandle tensor, int64_t) override {
    int64_t bytes = 0;
    if (inside_ && torch.aoti_torch_get_storage_size(tensor, &bytes) == 0 && bytes > 0) {
      WithPython python(call_);
      checked(PyObject_CallMethod(call_.program.regions, "free", "L", static_cast<long long>(bytes)));
    }
    torch.aoti_torch_delete_tensor_object(tensor);
  }
  void capture(bool begins) override {
    inside_ = begins;
    tell(begins ? "begin" : "end");
  }
  // No part of a program is in a region.
  void suspend(bool) override {}

 private:
  void tell(const char* what) {
    WithPython python(call_);
    checked(PyObject_CallMethod(call_.program.regions, what, nullptr));
  }

  Call& call_;
  bool inside_ = false;
};

}  // namespace coilwork
