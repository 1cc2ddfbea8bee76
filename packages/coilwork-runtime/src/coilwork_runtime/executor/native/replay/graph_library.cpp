// The driver's graphs: work is captured from a stream that nobody else uses.
#include "replay/graph_library.hpp"

#include "replay/issuing.hpp"

namespace coilwork {

GraphLibrary* GraphLibrary::open(void* handle, const char** missing) {
  auto made = Owned<GraphLibrary>(new GraphLibrary());
  *missing = made->functions.find(handle);
  return *missing ? nullptr : made.release();
}

bool GraphLibrary::is_captured(void* stream) const {
  int state = 0;
  return functions.is_capturing(stream, &state) != driver::SUCCESS || state != 0;
}

driver::GraphExec GraphLibrary::capture(const Worklist& list, uint32_t first, uint32_t last, int32_t device) {
  if (device >= MOST_DEVICES) return nullptr;
  const Holding hold(&lock_);
  driver::Stream& stream = streams_[device];
  if (!stream && functions.stream_create(&stream, driver::STREAM_NON_BLOCKING) != driver::SUCCESS) return nullptr;
  if (functions.begin_capture(stream, driver::CAPTURE_MODE_RELAXED) != driver::SUCCESS) return nullptr;
  int failed = 0;
  for (uint32_t k = first; !failed && k < last; ++k) failed = issue(list.at(k), stream);
  driver::Graph graph = nullptr;
  if (functions.end_capture(stream, &graph) != driver::SUCCESS) failed = 1;
  driver::GraphExec made = nullptr;
  if (!failed && functions.instantiate(&made, graph, 0) != driver::SUCCESS) made = nullptr;
  if (graph) functions.destroy(graph);
  return made;
}

}  // namespace coilwork
