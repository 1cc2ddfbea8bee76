// A program's calls tend to be alike: the same work on the same addresses, as torch's allocator gives memory out again in the same
// order. Stretches of work that did not change from call to call are kept as graphs of the driver's, which takes a graph in about
// the time of two launches, however long it is.
//
// Nothing is taken on trust. Each call still works out what it would hand to the driver; a stretch is put off until its last piece,
// and its graph is launched only if every word was the same. Otherwise it is done piece by piece, as without graphs. So calls may
// have other sizes, inputs and streams, and graphs own no memory of tensors.
//
// What is freed meanwhile is freed behind the stretch: others on the stream must not get memory that work needs which is not under
// way. Before then it may serve the call itself. Where the call would have more memory at a time than at its peak without graphs,
// which is measured in a call before, the stretch ends.
//
// Only work in the program's capture regions takes part: what the host decides, reads or gives to another
// device splits them, which the emitter of a program finds out once.
//
// "CUDA Graphs" in NVIDIA's CUDA C++ programming guide says what a graph is and how a stream is captured.
#pragma once
#include <utility>

#include "call/frames.hpp"
#include "replay/recording.hpp"

namespace coilwork {

// What is known of a program's calls.
class Replay {
 public:
  Replay(GraphLibrary& library, int32_t device) : library(library), device_(device < 0 ? 0 : device) {}

  // Whether a call may use it; then it is nobody else's until `leave`.
  bool enter(void* stream);
  void leave() { lock_.give(); }

  // What the next call is for: to measure its memory, to listen to its work piece by piece, or to be done with graphs.
  enum Purpose { MEASURE, LISTEN, USE };
  Purpose purpose() const { return !listening_ ? USE : measured_ ? LISTEN : MEASURE; }
  // After a call that was measured: of each step, the bytes that the process had with what it allocated; 0 if that is nothing.
  void measured_call(const List<int64_t>& bytes);
  // Bytes that may wait to be freed while step `at` of a call allocates.
  int64_t room(size_t at) const { return at < room_.size() && room_[at] > SLACK_BYTES ? room_[at] : SLACK_BYTES; }
  // After a call that was listened to, whose work is `heard`.
  void heard_call();
  // After a call with graphs: whether some of its work was other than in one, and the recording that it was last like, or null.
  void used_call(bool missed, Recording* last);

  // Of what kinds of calls there are; a program whose results are kept for a while has two or three that take turns.
  const List<Owned<Recording>>& recordings() const { return recordings_; }
  Recording* expected() const { return last_ && last_->next ? last_->next : last_; }

  Worklist heard;
  GraphLibrary& library;
  static constexpr uint32_t MOST_WORK = 1u << 15;     // in calls that are listened to
  static constexpr int64_t SLACK_BYTES = 1 << 20;     // that calls may have more than at their peak

 private:
  static constexpr uint64_t SETTLING = 1;          // calls, the first, that need memory for what later ones find: kernels are
                                                   // timed, libraries get scratch memory
  static constexpr size_t MOST_RECORDINGS = 4;
  static constexpr uint32_t MOST_HEARD = 16;       // calls that are listened to until it is time for a rest
  static constexpr uint32_t TURNS = 8;             // of these, the first, in which calls that take turns are told apart
  static constexpr uint32_t ALIKE = 8;             // then, at most this part of the work of calls that are alike differs
  static constexpr uint32_t MISS = 4, MOST_MISSED = 12;  // what a call with other work than in its graphs adds to a sum that others lower
                                                        // by one, and where calls are listened to again
  static constexpr uint32_t LONGEST_REST = 4096;   // calls
  static constexpr uint32_t TRUSTED = 64;          // calls in a row with graphs: that makes up for misses before

  Recording& recording_of_heard();
  void follow(Recording& recording);
  void listen();
  void rest();

  int32_t device_;
  Lock lock_;
  List<Owned<Recording>> recordings_;
  Recording* last_ = nullptr;               // what the last call was like
  bool listening_ = true, measured_ = false;
  List<int64_t> room_;                      // of each step that allocates: the peak less what there was with it; else 0
  uint64_t calls_ = 0;
  uint32_t heard_ = 0, known_ = 0;          // calls since it listens; of these in a row, those that have graphs
  uint32_t least_heard_ = 0;                // calls to listen to even if all have graphs
  uint32_t hits_ = 0, missed_ = 0, next_look_ = TRUSTED;
  uint32_t resting_ = 0, next_rest_ = 0;    // calls that go without
};

inline bool Replay::enter(void* stream) {
  if (!lock_.try_to_take()) return false;
  if (resting_) {
    --resting_;
  } else if (!library.is_captured(stream) && ++calls_ > SETTLING) {
    return true;
  }
  lock_.give();
  return false;
}

inline void Replay::measured_call(const List<int64_t>& bytes) {
  measured_ = true;
  int64_t peak = 0;
  for (const int64_t one : bytes) peak = one > peak ? one : peak;
  room_.clear();
  for (const int64_t one : bytes) room_.push_back(one ? peak - one : 0);
}

inline void Replay::heard_call() {
  ++heard_;
  if (heard.size() < Recording::LEAST) {
    // it will hardly become more
    next_rest_ = LONGEST_REST;
    return rest();
  }
  if (heard.size() <= MOST_WORK) {
    Recording& recording = recording_of_heard();
    recording.hear(heard);
    recording.record(device_);
    known_ = recording.stretches().empty() ? 0 : known_ + 1;
    follow(recording);
  }
  // what takes turns has to be known whole
  if (known_ >= 2 && heard_ >= least_heard_) {
    listening_ = false;
  } else if (heard_ >= MOST_HEARD) {
    listening_ = known_ == 0;
    if (listening_) rest();
  }
}

inline Recording& Replay::recording_of_heard() {
  Owned<Recording>* oldest = nullptr;
  Recording* closest = nullptr;
  uint32_t least = NONE;
  for (Owned<Recording>& recording : recordings_) {
    const uint32_t differences = recording->differences(heard);
    if (differences < least) closest = recording.get(), least = differences;
    if (!oldest || recording->last_used < (*oldest)->last_used) oldest = &recording;
  }
  if (closest && (least <= heard.size() / ALIKE || heard_ > TURNS)) return *closest;
  auto made = Owned<Recording>(new Recording(library));
  if (recordings_.size() < MOST_RECORDINGS) {
    recordings_.push_back(std::move(made));
    return *recordings_.back();
  }
  for (const Owned<Recording>& recording : recordings_)
    if (recording->next == oldest->get()) recording->next = nullptr;
  if (last_ == oldest->get()) last_ = nullptr;
  *oldest = std::move(made);
  return **oldest;
}

inline void Replay::follow(Recording& recording) {
  recording.last_used = calls_;
  if (last_) last_->next = &recording;
  last_ = &recording;
}

inline void Replay::used_call(bool missed, Recording* last) {
  if (last) follow(*last);
  // a kind of call that was not heard often enough, when there were graphs of others, has none
  if (missed || !last || last->stretches().empty()) {
    hits_ = 0;
    if ((missed_ += MISS) >= MOST_MISSED) rest();
    return;
  }
  if (missed_) --missed_;
  if (++hits_ == TRUSTED) next_rest_ = 0;
  if (hits_ < next_look_ || !last->has_more()) return;
  // what changed at first may not change any more
  next_look_ = 2 * next_look_;
  hits_ = 0;
  listen();
}

inline void Replay::listen() {
  listening_ = true;
  heard_ = known_ = missed_ = 0;
  least_heard_ = TURNS;  // of those that take turns some may have graphs already
}

// Listens again after a rest: calls whose work changes all the time are listened to ever more rarely.
inline void Replay::rest() {
  listen();
  measured_ = false;
  resting_ = next_rest_;
  next_rest_ = next_rest_ == 0 ? 8 : next_rest_ < LONGEST_REST ? 2 * next_rest_ : LONGEST_REST;
}

}  // namespace coilwork
