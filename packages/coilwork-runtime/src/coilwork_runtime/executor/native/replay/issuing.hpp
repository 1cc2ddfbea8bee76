// Putting work on a stream.
#pragma once
#include "call/host.hpp"
#include "libraries/convolution_library.hpp"
#include "libraries/product_library.hpp"

namespace coilwork {

constexpr uint32_t GRID_WORDS = 3;  // of a kernel's work, before its parameters

inline int launch(const Form& form, const uint64_t* words, uint32_t count, void* stream) {
  const int64_t grid[GRID_WORDS] = {static_cast<int64_t>(words[0]), static_cast<int64_t>(words[1]), static_cast<int64_t>(words[2])};
  // the driver only reads what they point at
  void* parameters[MOST_WORDS];
  for (uint32_t k = GRID_WORDS; k < count; ++k) parameters[k - GRID_WORDS] = const_cast<uint64_t*>(words + k);
  const int result = form.how(grid, stream, parameters);
  if (result != INVALID_CONTEXT || !form.set_context || !form.context) return result;
  // a thread that has not used the device yet
  if (reinterpret_cast<SetContext>(form.set_context)(form.context) != 0) return result;
  return form.how(grid, stream, parameters);
}

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
