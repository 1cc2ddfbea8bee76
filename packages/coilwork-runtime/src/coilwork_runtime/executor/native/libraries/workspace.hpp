// What the libraries that are called directly need of a call: tensors as they lie in memory, and scratch memory.
#pragma once
#include "call/allocation.hpp"
#include "libraries/scratch.hpp"

namespace coilwork {

constexpr uintptr_t ALIGNMENT = 16;     // no algorithm asks for more

// A tensor as it lies in memory.
struct Operand {
  int64_t rank = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  int32_t dtype = -1;
  uintptr_t data = 0;  // 0 if it is yet to be allocated, which torch's allocator aligns

  uint8_t alignment() const {
    uintptr_t found = ALIGNMENT;
    while (data % found) found /= 2;
    return static_cast<uint8_t>(found);
  }
};

class Workspace {
 public:
  Workspace(Call& call, Memory& memory) : call_(call), memory_(memory) {}

  // Whether work on `device` is on the call's stream. A device below 0 is the CPU of tests.
  bool on_stream(int32_t device) const {
    return device < 0 || (call_.stream_known && call_.program.cuda_device == device);
  }

  // Extents of memory without a tensor are computed into `room`, of twice as many numbers as a tensor may have dimensions.
  bool look(uint32_t number, int64_t* room, Operand& seen) {
    Slot& slot = memory_.slot(number);
    if (!slot.handle) return false;
    seen.data = reinterpret_cast<uintptr_t>(data_of(slot));
    if (slot.state == Slot::MEMORY || slot.state == Slot::WITHIN) {
      declared(slot.layout, room, seen);
      return true;
    }
    int64_t *sizes = nullptr, *strides = nullptr;
    const bool good = torch.aoti_torch_get_dim(slot.handle, &seen.rank) == 0 &&
                      torch.aoti_torch_get_sizes(slot.handle, &sizes) == 0 &&
                      torch.aoti_torch_get_strides(slot.handle, &strides) == 0 &&
                      torch.aoti_torch_get_dtype(slot.handle, &seen.dtype) == 0;
    seen.sizes = sizes;
    seen.strides = strides;
    return good;
  }

  // What a tensor of this layout is like, but for its memory.
  void declared(uint32_t layout_number, int64_t* room, Operand& seen) const {
    const Layout& layout = memory_.layout(layout_number);
    const Extents extents(layout, memory_.frame());
    memcpy(room, extents.sizes, extents.rank * sizeof *room);
    memcpy(room + extents.rank, extents.strides, extents.rank * sizeof *room);
    seen.rank = extents.rank;
    seen.sizes = room;
    seen.strides = room + extents.rank;
    seen.dtype = layout.dtype;
  }

  // Scratch memory: the stream's, or where that may not be, memory of the call's own, of the size that the program's calls
  // have needed so far; null if there is none.
  void* scratch(size_t bytes, int32_t device) {
    if (bytes <= call_.workspace_bytes) return call_.workspace_data;
    if (device >= 0 && !ScratchMemory::captured(call_.stream) && kept(bytes, device)) return call_.workspace_data;
    std::atomic<size_t>& most = call_.program.workspace_bytes;
    size_t wanted = most.load(std::memory_order_relaxed);
    while (wanted < bytes && !most.compare_exchange_weak(wanted, bytes, std::memory_order_relaxed)) {
    }
    wanted = wanted < bytes ? bytes : wanted;
    Slot made{};
    void* data = memory_.bytes(static_cast<int64_t>(wanted), device, made);
    if (!data) return nullptr;
    if (call_.workspace) {
      call_.settle();
      torch.aoti_torch_delete_tensor_object(call_.workspace);
    }
    call_.workspace = made.handle;
    call_.workspace_data = data;
    call_.workspace_bytes = wanted;
    return data;
  }

 private:
  static constexpr size_t LEAST_SCRATCH = 1u << 20;

  bool kept(size_t bytes, int32_t device) {
    ScratchMemory& streams = ScratchMemory::instance();
    Scratch found = streams.find(device, call_.stream);
    if (found.bytes < bytes) {
      found.bytes = LEAST_SCRATCH;
      while (found.bytes < bytes) found.bytes *= 2;
      Slot made{};
      found.data = memory_.bytes(static_cast<int64_t>(found.bytes), device, made);
      if (!found.data) return false;
      if (!streams.keep(found)) {
        torch.aoti_torch_delete_tensor_object(made.handle);
        found = streams.find(device, call_.stream);
        if (found.bytes < bytes) return false;
      }
    }
    call_.workspace_data = found.data;
    call_.workspace_bytes = found.bytes;
    return true;
  }

  Call& call_;
  Memory& memory_;
};

}  // namespace coilwork
