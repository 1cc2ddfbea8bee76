// Allocation, views and sizes: the instructions that move no data. What fails is done again by
// the host, whose error it then is.
#pragma once
#include "call/host.hpp"
#include "call/tensor_kinds.hpp"

namespace coilwork {

static char* data_of(Slot& slot) {
  if (!slot.data) {
    void* found = nullptr;
    if (torch.aoti_torch_get_data_ptr(slot.handle, &found) != 0) throw Failed{"a tensor has no memory"};
    slot.data = static_cast<char*>(found);
  }
  return slot.data;
}

class Memory {
 public:
  Memory(Call& call, Frame& frame) : call_(call), frame_(frame) {}

  Slot& slot(uint32_t number) { return frame_.slots[number]; }
  const Layout& layout(uint32_t number) const { return frame_.part.layouts[number]; }
  const Frame& frame() const { return frame_; }

  // The tensor behind a name, of its own layout.
  AtenTensorHandle tensor(uint32_t number) {
    Slot& found = slot(number);
    if (found.state == Slot::MEMORY || found.state == Slot::WITHIN) materialise(found);
    if (!found.handle) throw Failed{"a name is used that is not alive"};
    return found.handle;
  }

  // Has a slot own new memory, or memory that the call has no more use for.
  void place(uint32_t number, const Layout& wanted, const Extents& extents) {
    Slot& made = slot(number);
    const bool on_device = wanted.device_type == torch.aoti_torch_device_type_cuda() || call_.program.cuda_device < 0;
    if (!call_.work_queue || !on_device || frame_.part.shared.empty()) return made.own(empty(wanted, extents));
    const bool shared = frame_.part.shared[number];
    int64_t bytes = extents.span() * static_cast<int64_t>(torch.aoti_torch_dtype_element_size(wanted.dtype));
    const AtenTensorHandle found = call_.work_queue->reuse(frame_.at, bytes, shared);
    made.own(found ? laid_out(found, wanted, extents) : fresh(wanted, extents));
    if (!shared) made.alone_bytes = bytes;
  }

  AtenTensorHandle empty(const Layout& layout, const Extents& extents) {
    if (call_.work_queue) call_.work_queue->make_room();
    return fresh(layout, extents);
  }

  AtenTensorHandle fresh(const Layout& layout, const Extents& extents) {
    AtenTensorHandle made = nullptr;
    if (torch.aoti_torch_empty_strided(extents.rank, extents.sizes, extents.strides, layout.dtype, layout.device_type,
                                       layout.device_index, &made) == 0)
      return made;
    return allocate_slowly(call_, layout, extents);
  }

  // Some bytes on a GPU or (-1) the CPU, as long as `slot` has them; null if there are none left.
  void* bytes(int64_t count, int32_t device, Slot& slot) {
    const int32_t kind = device < 0 ? torch.aoti_torch_device_type_cpu() : torch.aoti_torch_device_type_cuda();
    const int64_t one = 1;
    int64_t had = count;
    AtenTensorHandle made = call_.work_queue && device >= 0 ? call_.work_queue->reuse(frame_.at, had, false) : nullptr;
    if (!made && torch.aoti_torch_empty_strided(1, &count, &one, torch.aoti_torch_dtype_uint8(), kind, device < 0 ? 0 : device, &made) != 0)
      return nullptr;
    slot.own(made);
    if (device >= 0) slot.alone_bytes = had;
    return data_of(slot);
  }

  void allocate(const Step& step) {
    const Layout& wanted = layout(step.layout);
    const Extents extents(wanted, frame_);
    place(step.a, wanted, extents);
    slot(step.a).layout = step.layout;
  }

  void carve(const Step& step) {
    const int64_t offset = frame_.registers[step.c];
    Slot& pool = slot(step.b);
    // a tensor is made of it when something else than a kernel or a product asks for one
    keep(slot(step.a), pool, data_of(pool) + offset, step.layout);
  }

  void view(const Step& step) {
    Slot& source = slot(step.b);
    Slot& target = slot(step.a);
    if (!source.handle) throw Failed{"memory is viewed that is not alive"};
    const Seen seen = static_cast<Seen>(step.kind);
    if (step.code == REUSE && seen == Seen::SAME && source.state != Slot::BORROWED) {
      target = source;
      source.state = Slot::EMPTY;
      source.release();
      return;
    }
    if (seen == Seen::SAME) {
      target.own(alias(source.handle));
      target.state = source.state == Slot::MEMORY ? Slot::MEMORY : Slot::OWNED;
      target.data = source.data;
      target.layout = source.layout;
    } else if (step.flag && seen == Seen::LAYOUT) {
      const int64_t offset = frame_.registers[step.c];
      const size_t width = torch.aoti_torch_dtype_element_size(layout(step.layout).dtype);
      keep(target, source, data_of(source) + offset * static_cast<int64_t>(width), step.layout);
    } else {
      target.own(seen_anew(tensor(step.b), seen, frame_.registers[step.c], step.layout));
      target.layout = step.layout;
    }
    if (step.code == REUSE) source.release();
  }

  // A view of memory that another slot keeps until nobody needs it (resolving.hpp).
  void point(const Step& step) {
    Slot& target = slot(step.a);
    Slot& root = slot(step.root);
    target.data = data_of(slot(step.b)) + step.offset + step.scale * frame_.registers[step.c];
    target.handle = root.handle;
    target.layout = step.layout;
    target.state = step.flag ? Slot::BORROWED : Slot::WITHIN;
  }

  void bind(const Step& step) {
    AtenTensorHandle source = tensor(step.b);
    int64_t rank = 0;
    int64_t* values = nullptr;
    torch.aoti_torch_get_dim(source, &rank);
    const int64_t expected = static_cast<int32_t>(step.layout);
    if ((expected >= 0 && rank != expected) || step.c >= rank) {
      check_rank(call_, source, name(step.b), expected);
      throw Failed{"a size is read of a dimension that is not there"};
    }
    const AOTITorchError code = step.flag ? torch.aoti_torch_get_strides(source, &values)
                                          : torch.aoti_torch_get_sizes(source, &values);
    if (code != 0) throw Failed{"a tensor has no sizes"};
    frame_.registers[step.a] = values[step.c];
  }

  enum Placing { ANYWHERE, ALIGNED, COPIED };

  // Brings a result into its declared layout and, if need be, to a multiple of 16 bytes or into memory of its own.
  void settle(uint32_t number, uint32_t layout_number, Placing placing) {
    Slot& result = slot(number);
    const Layout& wanted = layout(layout_number);
    const Extents extents(wanted, frame_);
    int64_t rank = -1;
    int64_t *sizes = nullptr, *strides = nullptr;
    int32_t dtype = -1;
    AtenTensorHandle value = tensor(number);
    if (!tensor_kinds.fits_inside(value, call_.program.kinds)) throw Failed{"an operator returned a tensor of a kind that programs cannot read"};
    const bool fits = torch.aoti_torch_get_dim(value, &rank) == 0 && rank == extents.rank &&
                      torch.aoti_torch_get_sizes(value, &sizes) == 0 && extents.equal_sizes(sizes) &&
                      torch.aoti_torch_get_dtype(value, &dtype) == 0 && dtype == wanted.dtype &&
                      torch.aoti_torch_get_strides(value, &strides) == 0;
    const bool placed = placing != ALIGNED || reinterpret_cast<uintptr_t>(data_of(result)) % 16 == 0;
    const bool stays = fits && placed && placing != COPIED;
    result.layout = layout_number;
    if (stays && (wanted.quantized || extents.equal_strides(strides))) return;
    AtenTensorHandle made = nullptr;
    if (stays && extents.same_strides(strides)) {
      made = seen_anew(value, Seen::LAYOUT, 0, layout_number);
    } else if (fits && placed && !wanted.quantized && !extents.repeats()) {
      call_.settle();
      made = empty(wanted, extents);
      if (torch.aoti_torch_copy_(made, value, 0) != 0) {
        torch.aoti_torch_delete_tensor_object(made);
        throw Failed{"a result cannot be copied"};
      }
    } else {
      made = settle_slowly(call_, value, wanted, extents, placing == ALIGNED);
    }
    result.own(made);
    result.layout = layout_number;
  }

  const char* name(uint32_t number) const { return call_.program.text(frame_.part.slot_names[number]); }

 private:
  // A tensor of another layout at the start of a tensor's memory, instead of that.
  static AtenTensorHandle laid_out(AtenTensorHandle memory, const Layout& wanted, const Extents& extents) {
    AtenTensorHandle made = nullptr;
    const AOTITorchError code =
        torch.aoti_torch__alloc_from_pool(memory, 0, wanted.dtype, extents.rank, extents.sizes, extents.strides, &made);
    torch.aoti_torch_delete_tensor_object(memory);
    if (code != 0) throw Failed{"memory cannot be used again"};
    return made;
  }

  // `target` is memory that begins at `data`, kept alive by what keeps `source`.
  void keep(Slot& target, const Slot& source, char* data, uint32_t layout_number) {
    target.own(alias(source.handle));
    target.state = Slot::MEMORY;
    target.data = data;
    target.layout = layout_number;
  }

  void materialise(Slot& memory) {
    void* start = nullptr;
    if (torch.aoti_torch_get_data_ptr(memory.handle, &start) != 0) throw Failed{"a tensor has no memory"};
    const int64_t bytes = memory.data - static_cast<char*>(start);
    const Layout& wanted = layout(memory.layout);
    const int64_t width = static_cast<int64_t>(torch.aoti_torch_dtype_element_size(wanted.dtype));
    int32_t dtype = -1;
    torch.aoti_torch_get_dtype(memory.handle, &dtype);
    char* data = memory.data;
    const bool same = dtype == wanted.dtype && bytes % width == 0;
    const AtenTensorHandle made =
        same ? seen_anew(memory.handle, Seen::LAYOUT, bytes / width, memory.layout)
             : reread(memory.handle, bytes, memory.layout);
    const uint32_t number = memory.layout;
    memory.own(made);
    memory.layout = number;
    memory.data = data;
  }

  AtenTensorHandle seen_anew(AtenTensorHandle source, Seen seen, int64_t offset, uint32_t layout_number) {
    const Layout& wanted = layout(layout_number);
    const Extents extents(wanted, frame_);
    if (seen == Seen::BITS) {
      int64_t start = 0;
      int32_t dtype = 0;
      torch.aoti_torch_get_storage_offset(source, &start);
      torch.aoti_torch_get_dtype(source, &dtype);
      const int64_t width = static_cast<int64_t>(torch.aoti_torch_dtype_element_size(wanted.dtype));
      if (start * static_cast<int64_t>(torch.aoti_torch_dtype_element_size(dtype)) % width == 0)
        return reread(source, offset * width, layout_number);
      return reread_slowly(call_, source, wanted, extents, offset);
    }
    AtenTensorHandle made = nullptr;
    if (torch.aoti_torch__reinterpret_tensor(source, extents.rank, extents.sizes, extents.strides, offset, &made) != 0)
      throw Failed{"memory cannot be seen under another layout"};
    return made;
  }

  // A tensor of another element type, `bytes` after the start of `source`.
  AtenTensorHandle reread(AtenTensorHandle source, int64_t bytes, uint32_t layout_number) {
    const Layout& wanted = layout(layout_number);
    const Extents extents(wanted, frame_);
    int64_t start = 0;
    int32_t dtype = 0;
    torch.aoti_torch_get_storage_offset(source, &start);
    torch.aoti_torch_get_dtype(source, &dtype);
    const int64_t zero = 0, one = 1;
    AtenTensorHandle whole = nullptr, made = nullptr;
    if (start == 0) {
      if (torch.aoti_torch__alloc_from_pool(source, bytes, wanted.dtype, extents.rank, extents.sizes, extents.strides, &made) != 0)
        throw Failed{"memory cannot be read as another element type"};
      return made;
    }
    if (torch.aoti_torch__reinterpret_tensor(source, 1, &zero, &one, -start, &whole) != 0)
      throw Failed{"memory cannot be seen as a whole"};
    bytes += start * static_cast<int64_t>(torch.aoti_torch_dtype_element_size(dtype));
    const AOTITorchError code = torch.aoti_torch__alloc_from_pool(whole, bytes, wanted.dtype, extents.rank,
                                                                  extents.sizes, extents.strides, &made);
    torch.aoti_torch_delete_tensor_object(whole);
    if (code != 0) throw Failed{"memory cannot be read as another element type"};
    return made;
  }

  Call& call_;
  Frame& frame_;
};

}  // namespace coilwork
