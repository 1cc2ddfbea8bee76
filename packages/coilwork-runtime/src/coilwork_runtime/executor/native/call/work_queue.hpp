// Work on a GPU as the driver or a library is given it, and those who may put it off until there is more (replay/).
#pragma once
#include "program/model.hpp"

namespace coilwork {

// A launch, product or convolution: all that its outcome depends on but what is in memory, and the stream.
struct Work {
  enum Kind : uint8_t {
    KERNEL,      // `what` is a Form, the words three extents of the grid, then parameters
    PRODUCT,     // a Product, the addresses of operands, result, bias and scratch memory
    CONVOLUTION  // a Convolution, the addresses by role, and of scratch memory
  };
  Kind kind;
  uint32_t count;  // of words
  const void* what;
  const uint64_t* words;
};

class WorkQueue {
 public:
  // Does work, now or later but behind all before it. What the driver or library says: 0, or the number of an error.
  virtual int take(const Work& work) = 0;
  // Sees to it that all work so far is under way, and frees what was to be freed behind it.
  virtual void settle() = 0;
  // The same before the host launches a kernel by itself.
  virtual void settle_for_host() { settle(); }
  // The same before memory is allocated, which takes nothing else.
  virtual void make_room() = 0;
  // For an allocation of step number `at`: memory that was to be freed, of so many bytes or, unless it is to be `exact`, of as many
  // as allocators round them to; null if there is none: then there is room to allocate it. The tensor in it is the caller's,
  // `bytes` what it is.
  virtual AtenTensorHandle reuse(size_t at, int64_t& bytes, bool exact) = 0;
  // Frees a tensor, whose memory work may use that was put off, behind that. `bytes`: of its memory, on the call's device, if
  // nobody else sees it; else 0.
  virtual void free_behind(AtenTensorHandle tensor, int64_t bytes) = 0;
  // A capture region begins or ends: work is put off in one only.
  virtual void capture(bool begins) = 0;
  // While a part of the program runs that may run any number of times, nothing is put off.
  virtual void suspend(bool suspended) = 0;

 protected:
  ~WorkQueue() = default;
};

}  // namespace coilwork
