// Scratch memory of the libraries that are called directly, kept for each stream.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "libraries/locks.hpp"

namespace coilwork {

// Memory that calls on one stream use in turn, after each other. It is never given back, as ATen keeps what it has for the same
// purpose: allocated for a call, it would come on top of all that is alive then.
struct Scratch {
  int32_t device;
  void* stream;
  void* data;
  size_t bytes;
};

// That of all streams. One per process; never destroyed.
class ScratchMemory {
 public:
  static ScratchMemory& instance();

  // The scratch memory of a stream; of no bytes if there is none yet.
  Scratch find(int32_t device, void* stream);
  // Has `made` kept as that of its stream. False if it is not needed: there is as much by now, or there are too many streams.
  bool keep(const Scratch& made);
  // Whether memory of now is that of a graph of the driver's, which may run at any time later, next to others.
  static bool captured(void* stream);

 private:
  static constexpr size_t MOST_STREAMS = 64;

  ScratchMemory() = default;

  Lock lock_;
  size_t count_ = 0;
  Scratch kept_[MOST_STREAMS];
};

}  // namespace coilwork
