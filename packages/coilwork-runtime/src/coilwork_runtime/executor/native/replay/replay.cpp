#include "replay/replayed_call.hpp"
#include "replay/replaying.hpp"

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

Replay* make_replay(GraphLibrary& library, int32_t device) { return new Replay(library, device); }

void drop_replay(Replay* replay) { delete replay; }

ReplayedCall::ReplayedCall(Call& call) {
  Replay* replay = call.program.replay;
  const bool in_order = call.stream_known || call.program.cuda_device < 0;
  if (!replay || !in_order || call.profiled || call.timing || !replay->enter(call.stream)) return;
  replaying_ = new Replaying(*replay, call);
}

ReplayedCall::~ReplayedCall() { delete replaying_; }

void ReplayedCall::finish() {
  if (replaying_) replaying_->finish();
}

}  // namespace coilwork
