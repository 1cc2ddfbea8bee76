// The host of a library, C++ alone: errors are texts, and what only Python can do is refused.
#pragma once
#include "call/frames.hpp"
#include "interfaces/settings.hpp"

namespace coilwork {

// An error on its way.
struct Raised {
  Fault fault = Fault::RUNTIME;
  Text text;
};

[[noreturn]] inline void raise_text(Call&, Fault fault, const char* text) { throw Raised{fault, Text(text)}; }

// What torch said last in this thread; nothing where this torch does not tell.
inline const char* last_torch_error() {
  using Asked = const char* (*)();
  static const Asked asked = reinterpret_cast<Asked>(torch_symbol("torch_exception_get_what_without_backtrace"));
  const char* found = asked ? asked() : nullptr;
  return found ? found : "";
}

static void annotate_here(Call& call, const Frame& frame, Raised& raised) {
  const Step& step = frame.part.steps[frame.at];
  char note[512];
  snprintf(note, sizeof note, "\ninstruction %u of program %s: %s", step.number, call.program.text(frame.part.name),
           call.program.text(step.place));
  raised.text.append(Text(note));
}

static void forget(Call&, Raised&) {}
static void look_for_signals(Call&, bool = false) {}
static void close_streams(Call&) {}

static void read_settings(Call& call) {
  if (call.program.products) call.product_settings = TorchSettings::instance().products();
  if (call.program.convolutions) call.convolution_settings = TorchSettings::instance().convolutions();
}

// Bytes behind the names of a call. Torch's allocator does not tell C what a process has, and what others have does not change by the
// call.
static int64_t count_allocated(Call& call) {
  int64_t total = 0;
  List<const char*> counted;
  const size_t names = call.outermost ? call.outermost->part.slot_names.size() : 0;
  for (size_t k = 0; k < names; ++k) {
    const Slot& slot = call.outermost->slots[k];
    if (slot.state != Slot::OWNED && slot.state != Slot::MEMORY) continue;
    if (slot.alone_bytes) {
      total += slot.alone_bytes;
      continue;
    }
    int64_t bytes = 0, start = 0;
    int32_t dtype = -1;
    void* data = nullptr;
    if (torch.aoti_torch_get_storage_size(slot.handle, &bytes) != 0 || torch.aoti_torch_get_storage_offset(slot.handle, &start) != 0 ||
        torch.aoti_torch_get_dtype(slot.handle, &dtype) != 0 || torch.aoti_torch_get_data_ptr(slot.handle, &data) != 0)
      continue;
    const char* storage = static_cast<const char*>(data) - start * static_cast<int64_t>(torch.aoti_torch_dtype_element_size(dtype));
    bool is_new = true;
    for (const char* one : counted) is_new = is_new && one != storage;
    if (!is_new) continue;
    counted.push_back(storage);
    total += bytes;
  }
  return total;
}

// A copy in the layout of `extents`, which begins at a multiple of what allocators align to.
static AtenTensorHandle copy_into(Call& call, AtenTensorHandle value, const Layout& wanted, const Extents& extents) {
  AtenTensorHandle made = nullptr;
  if (torch.aoti_torch_empty_strided(extents.rank, extents.sizes, extents.strides, wanted.dtype, wanted.device_type, wanted.device_index,
                                     &made) != 0)
    raise(call, Fault::RUNTIME, "memory cannot be allocated: %s", last_torch_error());
  if (torch.aoti_torch_copy_(made, value, 0) == 0) return made;
  torch.aoti_torch_delete_tensor_object(made);
  raise(call, Fault::RUNTIME, "a tensor cannot be copied: %s", last_torch_error());
}

[[noreturn]] static void refuse_allocation(Call& call) {
  raise(call, Fault::RUNTIME, "memory cannot be allocated: %s", last_torch_error());
}

static AtenTensorHandle allocate_slowly(Call& call, const Layout&, const Extents&) { refuse_allocation(call); }
static AtenTensorHandle scratch_slowly(Call& call, int64_t, int32_t) { refuse_allocation(call); }

// Whether `value` has the sizes, the element type and, if asked, the strides that a program declares.
static bool is_declared(AtenTensorHandle value, const Layout& wanted, const Extents& extents, bool with_strides) {
  int64_t rank = -1;
  int64_t *sizes = nullptr, *strides = nullptr;
  int32_t dtype = -1, type = -1, index = -1;
  return torch.aoti_torch_get_dim(value, &rank) == 0 && rank == extents.rank && torch.aoti_torch_get_sizes(value, &sizes) == 0 &&
         extents.equal_sizes(sizes) && torch.aoti_torch_get_dtype(value, &dtype) == 0 && dtype == wanted.dtype &&
         torch.aoti_torch_get_device_type(value, &type) == 0 && type == wanted.device_type &&
         (wanted.on_cpu || (torch.aoti_torch_get_device_index(value, &index) == 0 && index == wanted.device_index)) &&
         (!with_strides || (torch.aoti_torch_get_strides(value, &strides) == 0 && extents.same_strides(strides)));
}

// The loader names the argument; this is what is left to say.
static AtenTensorHandle check_slowly(Call& call, AtenTensorHandle value, const char* name, const Layout& wanted, const Extents& extents,
                                     bool aligned) {
  int64_t start = 0, bytes = 0;
  const int64_t width = static_cast<int64_t>(torch.aoti_torch_dtype_element_size(wanted.dtype));
  if (!is_declared(value, wanted, extents, true)) raise(call, Fault::RUNTIME, "%s has another layout than the program declares", name);
  if (torch.aoti_torch_get_storage_offset(value, &start) != 0 || torch.aoti_torch_get_storage_size(value, &bytes) != 0 ||
      (extents.span() && (start + extents.span()) * width > bytes))
    raise(call, Fault::RUNTIME, "%s has less memory than its shape says", name);
  return aligned ? copy_into(call, value, wanted, extents) : alias(value);
}

static AtenTensorHandle settle_slowly(Call& call, AtenTensorHandle value, const Layout& wanted, const Extents& extents, bool) {
  if (!is_declared(value, wanted, extents, false)) raise_text(call, Fault::RUNTIME, "an operator returned another shape or element type than expected");
  if (extents.repeats() || wanted.quantized) raise_text(call, Fault::RUNTIME, "an operator returned another layout than expected");
  return copy_into(call, value, wanted, extents);
}

static AtenTensorHandle reread_slowly(Call& call, AtenTensorHandle, const Layout&, const Extents&, int64_t) {
  raise_text(call, Fault::RUNTIME, "memory that starts between two elements cannot be read as another element type");
}

static void check_rank(Call& call, AtenTensorHandle, const char* name, int64_t expected) {
  raise(call, Fault::RUNTIME, "%s has other than %lld dimensions", name, static_cast<long long>(expected));
}

static void fail_check(Call& call, const Kernel& kernel, int64_t failed) {
  const bool known = failed > 0 && static_cast<uint64_t>(failed) <= kernel.checks.size();
  raise(call, Fault::RUNTIME, "%s", known ? kernel.checks[static_cast<size_t>(failed - 1)].c_str() : "a check of a kernel failed");
}

// Nobody profiles.
class Observed {
 public:
  Observed(Call&, const char*, bool) {}
  void leave() {}
};

}  // namespace coilwork
