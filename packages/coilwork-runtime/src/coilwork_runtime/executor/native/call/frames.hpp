// What a call has while it runs: the memory behind each name, and the value of each register.
#pragma once
#include <time.h>

#include "call/slots.hpp"
#include "call/timing.hpp"

// A thread's state in the interpreter, where there is one.
typedef struct _ts PyThreadState;

namespace coilwork {

struct Call;
struct Frame;
// What a call did to streams is undone. Of the host (call/host.hpp).
static void close_streams(Call& call);

// Milliseconds of a clock that is read in a few nanoseconds and ticks every few milliseconds.
static int64_t coarse_ms() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

// One call of a program, nested programs included.
struct Call {
  const Program& program;
  PyThreadState* released = nullptr;  // set while others may run Python
  void* stream = nullptr;
  bool stream_known = false;  // of the only GPU that the program uses, which is current
  int64_t looked_ms = coarse_ms();  // when signals were last seen to
  unsigned launches = 0;
  int32_t product_settings = -1, convolution_settings = -1;
  bool profiled = false;
  Timing* timing;
  PyObject* streams = nullptr;  // those that it has forked, and its events: `streams.py`
  WorkQueue* work_queue = nullptr;  // null if work is never put off
  const Frame* outermost = nullptr;  // that of the program itself, where the host counts memory by it
  // Scratch memory of products and convolutions, which take turns on one stream; the first that wants some looks for it.
  // `workspace` if it is the call's own.
  AtenTensorHandle workspace = nullptr;
  void* workspace_data = nullptr;
  size_t workspace_bytes = 0;

  explicit Call(const Program& program) : program(program), timing(program.timing.load(std::memory_order_acquire)) {}
  ~Call() {
    if (streams) close_streams(*this);
    if (workspace) torch.aoti_torch_delete_tensor_object(workspace);
  }
  Call(const Call&) = delete;

  // Sees to it that all work so far is under way.
  void settle() {
    if (work_queue) work_queue->settle();
  }
};

struct Frame {
  const Part& part;
  Slot* slots;
  int64_t* registers;
  size_t at = 0;  // index of the step that runs

  explicit Frame(const Part& part) : part(part) {
    const size_t bytes = part.slot_names.size() * sizeof(Slot) + part.registers() * sizeof(int64_t);
    slots = static_cast<Slot*>(malloc(bytes ? bytes : 1));
    if (!slots) throw std::bad_alloc();
    memset(static_cast<void*>(slots), 0, part.slot_names.size() * sizeof(Slot));
    registers = reinterpret_cast<int64_t*>(slots + part.slot_names.size());
    if (!part.constants.empty())
      memcpy(registers + part.variables, part.constants.data(), part.constants.size() * sizeof(int64_t));
  }
  ~Frame() {
    clear();
    free(slots);
  }
  Frame(const Frame&) = delete;

  // Releases what is left.
  void clear() {
    for (size_t k = 0; k < part.slot_names.size(); ++k) slots[k].release();
  }
  const uint32_t* words(Span span) const { return part.words.data() + span.first; }
};

// Sizes and strides of a layout in a frame.
class Extents {
 public:
  Extents(const Layout& layout, const Frame& frame) : rank(layout.rank) {
    if (layout.fixed) {
      sizes = layout.values.data();
    } else {
      for (uint32_t k = 0; k < 2 * rank; ++k) values_[k] = frame.registers[layout.registers[k]];
      sizes = values_;
    }
    strides = sizes + rank;
  }
  Extents(const Extents&) = delete;

  bool equal_sizes(const int64_t* others) const { return rank == 0 || memcmp(sizes, others, rank * 8) == 0; }
  bool equal_strides(const int64_t* others) const { return rank == 0 || memcmp(strides, others, rank * 8) == 0; }
  // Strides of dimensions with one element, and of empty tensors, do not matter.
  bool same_strides(const int64_t* others) const {
    bool same = true;
    for (uint32_t d = 0; d < rank; ++d) {
      if (sizes[d] == 0) return true;
      same = same && (sizes[d] == 1 || others[d] == strides[d]);
    }
    return same;
  }

  // Several elements are one in memory, as those of an expanded tensor are.
  bool repeats() const {
    for (uint32_t d = 0; d < rank; ++d)
      if (sizes[d] > 1 && strides[d] == 0) return true;
    return false;
  }

  // From the first element to the last.
  int64_t span() const {
    int64_t last = 0;
    for (uint32_t d = 0; d < rank; ++d) {
      if (sizes[d] == 0) return 0;
      last += (sizes[d] - 1) * strides[d];
    }
    return last + 1;
  }

  uint32_t rank;
  const int64_t* sizes;
  const int64_t* strides;

 private:
  int64_t values_[2 * MOST_DIMENSIONS];
};

// A new handle on the tensor of another.
static AtenTensorHandle alias(AtenTensorHandle handle) {
  AtenTensorHandle copy = nullptr;
  if (torch.aoti_torch_new_tensor_handle(handle, &copy) != 0) throw Failed{"a tensor cannot be shared"};
  return copy;
}

// The tensor that is none: what an operator is given for a tensor that its schema does not let be left out.
static AtenTensorHandle undefined() {
  static const AtenTensorHandle made = [] {
    AtenTensorHandle handle = nullptr;
    if (torch.aoti_torch_new_uninitialized_tensor(&handle) != 0) throw Failed{"there is no undefined tensor"};
    return handle;
  }();
  return made;
}

}  // namespace coilwork
