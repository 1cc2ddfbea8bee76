#include "libraries/scratch.hpp"

#include <dlfcn.h>

namespace coilwork {

ScratchMemory& ScratchMemory::instance() {
  static ScratchMemory* made = new ScratchMemory();
  return *made;
}

Scratch ScratchMemory::find(int32_t device, void* stream) {
  const Holding hold(&lock_);
  for (size_t at = 0; at < count_; ++at)
    if (kept_[at].device == device && kept_[at].stream == stream) return kept_[at];
  return {device, stream, nullptr, 0};
}

bool ScratchMemory::keep(const Scratch& made) {
  const Holding hold(&lock_);
  for (size_t at = 0; at < count_; ++at)
    if (kept_[at].device == made.device && kept_[at].stream == made.stream) {
      if (kept_[at].bytes >= made.bytes) return false;
      // others may be about to use what there was, which therefore stays; sizes double, so it is little
      kept_[at] = made;
      return true;
    }
  if (count_ >= MOST_STREAMS) return false;
  kept_[count_++] = made;
  return true;
}

bool ScratchMemory::captured(void* stream) {
  // the driver is there, as there is a stream; what cannot be asked is taken to be captured
  using Ask = int (*)(void*, int*);
  static const Ask ask = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver ? reinterpret_cast<Ask>(dlsym(driver, "cuStreamIsCapturing")) : nullptr;
  }();
  int state = 0;
  return !ask || ask(stream, &state) != 0 || state != 0;
}

}  // namespace coilwork
