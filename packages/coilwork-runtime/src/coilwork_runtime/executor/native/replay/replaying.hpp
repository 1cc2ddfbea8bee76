// One call of a program: how it makes use of what is known of others.
#pragma once
#include "replay/issuing.hpp"
#include "replay/replay.hpp"

namespace coilwork {

class Replaying final : public WorkQueue {
 public:
  Replaying(Replay& replay, Call& call);
  ~Replaying();
  Replaying(const Replaying&) = delete;

  // The call is over as it should be.
  void finish();

  int take(const Work& work) override;
  void settle() override;
  void make_room() override;
  AtenTensorHandle reuse(size_t at, int64_t& bytes, bool exact) override;
  void free_behind(AtenTensorHandle tensor, int64_t bytes) override;
  void capture(bool begins) override;
  void suspend(bool suspended) override;

 private:
  bool put_off(uint32_t at, const Work& work);
  bool begin(uint32_t at, const Work& work);
  bool change(uint32_t at, const Work& work);
  bool launch();
  void catch_up(uint32_t end);
  void free_all();
  void free_above(int64_t bytes);
  void measure(size_t at, int64_t bytes);
  const Stretch& stretch() const { return recording_->stretches()[stretch_]; }

  Replay& replay_;
  Call& call_;
  const Replay::Purpose purpose_;
  bool capturing_ = false, suspended_ = false, finished_ = false, missed_ = false;
  bool apart_ = false;              // listening: before the next piece all is to be under way
  uint32_t at_ = 0;                 // pieces of work so far
  Recording* recording_;            // what the call has been like so far; null if that is not known
  size_t stretch_ = 0;              // of that recording, the one under way
  bool inside_ = false;             // work of it was put off
  struct Behind {
    AtenTensorHandle tensor;
    int64_t bytes, reusable_bytes;
  };
  List<Behind> behind_;             // to be freed
  int64_t behind_bytes_ = 0;
  List<int64_t> measured_;          // of each step, the bytes that the process had with what it allocated; 0 if that is nothing
};

Replaying::Replaying(Replay& replay, Call& call)
    : replay_(replay), call_(call), purpose_(replay.purpose()), recording_(replay.expected()) {
  replay_.heard.clear();
  if (purpose_ == Replay::MEASURE) measured_.resize(call.program.parts[0].steps.size());
  call_.work_queue = this;
}

Replaying::~Replaying() {
  if (!finished_ && inside_) {
    // an exception is on its way; what was put off happened before it
    try {
      catch_up(at_);
    } catch (Raised& raised) {
      forget(call_, raised);
    }
  }
  free_all();
  call_.work_queue = nullptr;
  replay_.leave();
}

inline void Replaying::finish() {
  settle();
  finished_ = true;
  switch (purpose_) {
    case Replay::MEASURE:
      return replay_.measured_call(measured_);
    case Replay::LISTEN:
      return replay_.heard_call();
    case Replay::USE:
      return replay_.used_call(missed_, recording_);
  }
}

inline int Replaying::take(const Work& work) {
  if (!capturing_ || suspended_ || purpose_ == Replay::MEASURE) return issue(work, call_.stream);
  if (purpose_ == Replay::LISTEN) {
    if (replay_.heard.size() <= Replay::MOST_WORK) replay_.heard.add(work, apart_);
    apart_ = false;
    return issue(work, call_.stream);
  }
  if (put_off(at_++, work)) return 0;
  return issue(work, call_.stream);
}

// Whether piece number `at` is under way with a graph, or will be.
inline bool Replaying::put_off(uint32_t at, const Work& work) {
  if (!inside_) {
    if (!begin(at, work)) return false;
  } else if (!recording_->known().same(at, work) && !change(at, work)) {
    catch_up(at);
    return false;
  }
  inside_ = true;
  if (at + 1 < stretch().last || launch()) return true;
  catch_up(at);
  return false;
}

// Whether a stretch begins at `at`: of the recording that the call has been like so far, or else of another.
inline bool Replaying::begin(uint32_t at, const Work& work) {
  const auto begins = [&](Recording& recording) {
    const List<Stretch>& all = recording.stretches();
    size_t found = all.size();
    while (found && all[found - 1].first > at) --found;
    if (!found || all[--found].first != at) return false;
    missed_ = !recording.known().same(at, work);
    if (missed_) return false;
    recording_ = &recording;
    stretch_ = found;
    return true;
  };
  const bool before = missed_;
  missed_ = false;
  bool found = recording_ && begins(*recording_);
  if (!found && (missed_ || !recording_))
    for (const Owned<Recording>& other : replay_.recordings())
      if (other.get() != recording_ && (found = begins(*other))) break;
  missed_ = before || (missed_ && !found);
  return found;
}

// Whether another recording has a stretch with all that was put off and with piece number `at`: then it is that from now on.
inline bool Replaying::change(uint32_t at, const Work& work) {
  const uint32_t first = stretch().first;
  const Worklist& known = recording_->known();
  for (const Owned<Recording>& other : replay_.recordings()) {
    const List<Stretch>& all = other->stretches();
    for (size_t k = 0; k < all.size() && all[k].first <= first; ++k) {
      if (all[k].first != first || all[k].last <= at || !other->known().same(at, work)) continue;
      bool same = true;
      for (uint32_t piece = first; same && piece < at; ++piece) same = other->known().same(piece, known.at(piece));
      if (!same) continue;
      recording_ = other.get();
      stretch_ = k;
      return true;
    }
  }
  return false;
}

inline bool Replaying::launch() {
  if (replay_.library.functions.launch(stretch().graph, call_.stream) != driver::SUCCESS) return false;
  Counters& counters = call_.program.counters;
  counters.graphs.fetch_add(1, std::memory_order_relaxed);
  counters.work_in_graphs.fetch_add(stretch().last - stretch().first, std::memory_order_relaxed);
  inside_ = false;
  return true;
}

// Does what was put off piece by piece, up to `end`.
inline void Replaying::catch_up(uint32_t end) {
  missed_ = true;
  inside_ = false;
  for (uint32_t k = stretch().first; k < end; ++k) {
    const Work work = recording_->known().at(k);
    if (const int failed = issue(work, call_.stream)) refuse_work(call_, work, failed);
  }
}

inline void Replaying::settle() {
  if (inside_) catch_up(at_);
  free_all();
  apart_ = true;
}

inline void Replaying::make_room() { free_above(Replay::SLACK_BYTES); }

inline void Replaying::free_above(int64_t bytes) {
  if (behind_bytes_ > bytes) settle();
}

// Asks what the process has, for a peak without anything put off.
inline void Replaying::measure(size_t at, int64_t bytes) {
  settle();
  const int64_t has = count_allocated(call_);
  if (has + bytes > measured_[at]) measured_[at] = has + bytes;
}

inline AtenTensorHandle Replaying::reuse(size_t at, int64_t& bytes, bool exact) {
  if (suspended_) return nullptr;
  if (purpose_ == Replay::MEASURE) {
    measure(at, bytes);
    return nullptr;
  }
  constexpr int64_t ROUNDED = 512;  // torch's allocator gives out multiples of this
  const auto rounded = [](int64_t count) { return (count + ROUNDED - 1) / ROUNDED; };
  for (size_t k = 0; bytes && k < behind_.size(); ++k) {
    const Behind found = behind_[k];
    const int64_t has = found.reusable_bytes;
    if (has < bytes || rounded(has) != rounded(bytes) || (exact && has != bytes)) continue;
    bytes = has;
    behind_bytes_ -= found.bytes;
    behind_.erase(k);
    return found.tensor;
  }
  free_above(replay_.room(at));
  return nullptr;
}

inline void Replaying::free_behind(AtenTensorHandle tensor, int64_t bytes) {
  if (suspended_) {
    torch.aoti_torch_delete_tensor_object(tensor);
    return;
  }
  int64_t whole = bytes;
  if (!whole && torch.aoti_torch_get_storage_size(tensor, &whole) != 0) whole = Replay::SLACK_BYTES + 1;
  behind_.push_back({tensor, whole, bytes});
  behind_bytes_ += whole;
}

// No stretch of work goes on from one region to the next.
inline void Replaying::capture(bool begins) {
  if (inside_) catch_up(at_);
  capturing_ = begins;
  apart_ = apart_ || begins;
}

inline void Replaying::suspend(bool suspended) {
  if (suspended) settle();
  suspended_ = suspended;
}

inline void Replaying::free_all() {
  for (const Behind& one : behind_) torch.aoti_torch_delete_tensor_object(one.tensor);
  behind_.clear();
  behind_bytes_ = 0;
}

}  // namespace coilwork
