// A program's replay, as a call sees it.
#include "replay/replayed_call.hpp"
#include "replay/replaying.hpp"

namespace coilwork {

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
