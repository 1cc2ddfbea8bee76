// The driver's graphs, opened.
#pragma once
#include "interfaces/graphs.hpp"
#include "libraries/locks.hpp"
#include "replay/worklist.hpp"

namespace coilwork {

// One per process and library; never destroyed.
class GraphLibrary {
 public:
  static constexpr const char* FILES[] = {"libcuda.so.1"};

  // Null, and the name of a function in `missing`, if `handle` of the dynamic linker has not all.
  static GraphLibrary* open(void* handle, const char** missing);

  // Whether work on `stream` goes into somebody's graph now, or cannot be asked.
  bool is_captured(void* stream) const;
  // A graph of the work [first, last) on `device`, whose context is current; null if there can be none.
  driver::GraphExec capture(const Worklist& list, uint32_t first, uint32_t last, int32_t device);

  driver::Functions functions;

 private:
  static constexpr int32_t MOST_DEVICES = 64;
  GraphLibrary() = default;
  Lock lock_;  // of the streams below, which one at a time records on
  driver::Stream streams_[MOST_DEVICES] = {};
};

}  // namespace coilwork
