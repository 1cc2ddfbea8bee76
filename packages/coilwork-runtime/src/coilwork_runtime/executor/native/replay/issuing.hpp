// Putting work on a stream.
#pragma once
#include "call/host.hpp"
#include "libraries/convolution_library.hpp"
#include "libraries/product_library.hpp"
#include "program/gpu_launch.hpp"

namespace coilwork {

// 0, or the number of an error of the driver's or library's.
inline int issue(const Work& work, void* stream) {
  switch (work.kind) {
    case Work::KERNEL:
      return launch(*static_cast<const Form*>(work.what), work.words, work.count, stream);
    case Work::PRODUCT:
      return static_cast<const Product*>(work.what)->run(work.words, stream);
    default:
      return static_cast<const Convolution*>(work.what)->run(work.words, stream);
  }
}

// Raises what the driver or a library said about work that it did not take.
[[noreturn]] inline void refuse_work(Call& call, const Work& work, int result) {
  if (work.kind == Work::KERNEL)
    raise(call, Fault::RUNTIME, "kernel %s: the driver refuses a launch of %llu x %llu x %llu blocks: error %d",
          static_cast<const Form*>(work.what)->name.c_str(), static_cast<unsigned long long>(work.words[0]),
          static_cast<unsigned long long>(work.words[1]), static_cast<unsigned long long>(work.words[2]), result);
  raise(call, Fault::RUNTIME, "%s refuses what it did before: error %d", work.kind == Work::PRODUCT ? "cuBLASLt" : "cuDNN", result);
}

}  // namespace coilwork
