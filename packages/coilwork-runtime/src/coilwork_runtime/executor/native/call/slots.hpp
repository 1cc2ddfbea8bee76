// A slot: the memory behind one name of a running program.
#pragma once
#include "call/work_queue.hpp"

namespace coilwork {

// Memory behind a name. As MEMORY, `handle` is some tensor that keeps it alive, and the buffer begins at `data`; a tensor of
// the buffer's own layout is made when something but a kernel wants one. WITHIN is the same with another slot's handle.
struct Slot {
  enum State : uint8_t { EMPTY = 0, OWNED, BORROWED, MEMORY, WITHIN };
  AtenTensorHandle handle;
  char* data;
  int64_t alone_bytes;  // of its memory, if no other tensor may see it and it can be had again when it is freed; else 0
  uint32_t layout;
  State state;

  void release(WorkQueue* work_queue = nullptr) {
    if (state == OWNED || state == MEMORY) {
      if (work_queue)
        work_queue->free_behind(handle, alone_bytes);
      else
        torch.aoti_torch_delete_tensor_object(handle);
    }
    handle = nullptr;
    data = nullptr;
    alone_bytes = 0;
    state = EMPTY;
  }
  void own(AtenTensorHandle made) {
    if (state != EMPTY) release();
    handle = made;
    data = nullptr;
    alone_bytes = 0;
    state = OWNED;
  }
};

}  // namespace coilwork
