// What a program's calls need of this room.
#pragma once
#include "call/frames.hpp"
#include "replay/graph_library.hpp"

namespace coilwork {

class Replaying;

// What will be known of the calls of a program on `device`.
Replay* make_replay(GraphLibrary& library, int32_t device);
void drop_replay(Replay* replay);

// A call whose work is put off where that is worth it. `finish` it, unless something is thrown.
class ReplayedCall {
 public:
  explicit ReplayedCall(Call& call);
  ~ReplayedCall();
  ReplayedCall(const ReplayedCall&) = delete;
  void finish();

 private:
  Replaying* replaying_ = nullptr;  // null if it is a call like any other
};

}  // namespace coilwork
