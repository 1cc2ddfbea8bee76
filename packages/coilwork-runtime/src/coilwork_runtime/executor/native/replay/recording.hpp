// What was heard of calls that were alike, and the graphs that were made of it.
#pragma once
#include "replay/graph_library.hpp"
#include "replay/worklist.hpp"

namespace coilwork {

// Work [first, last) as a graph.
struct Stretch {
  uint32_t first, last;
  driver::GraphExec graph;
};

class Recording {
 public:
  explicit Recording(GraphLibrary& library) : library_(library) {}
  ~Recording();
  Recording(const Recording&) = delete;

  // How many pieces of work in `heard` are others; NONE if it is work of another kind altogether.
  uint32_t differences(const Worklist& heard) const;
  // Takes `heard` over, that of one more such call.
  void hear(Worklist& heard);
  // Makes graphs of what has been the same for a while, if there is more of it than when that was last done.
  void record(int32_t device);

  const Worklist& known() const { return known_; }
  const List<Stretch>& stretches() const { return stretches_; }
  // Whether there are pieces of work that no graph has.
  bool has_more() const { return steady_ < known_.size(); }

  static constexpr uint32_t LEAST = 4;  // pieces of work in a graph

  uint64_t last_used = 0;     // number of a call
  Recording* next = nullptr;  // what the call was like that came after one of these

 private:
  static constexpr uint8_t STEADY = 2;   // calls in a row with the same work as the one before

  void drop();

  GraphLibrary& library_;
  Worklist known_;            // the work of the last of these calls
  List<uint8_t> repeated_;    // of each piece: in how many calls in a row it was as before, STEADY at most
  size_t steady_ = 0;         // how many pieces were STEADY when graphs were made
  List<Stretch> stretches_;   // in order
};

Recording::~Recording() { drop(); }

// The driver frees a graph that still runs when it is done.
inline void Recording::drop() {
  for (const Stretch& stretch : stretches_) library_.functions.destroy_exec(stretch.graph);
  stretches_.clear();
  steady_ = 0;
}

inline uint32_t Recording::differences(const Worklist& heard) const {
  const uint32_t size = known_.size();
  if (size != heard.size()) return NONE;
  uint32_t found = 0;
  for (uint32_t k = 0; k < size; ++k) {
    if (known_.apart(k) != heard.apart(k)) return NONE;
    found += !known_.same(k, heard.at(k));
  }
  return found;
}

inline void Recording::hear(Worklist& heard) {
  repeated_.resize(heard.size());
  size_t stretch = 0;
  bool outdated = false;
  for (uint32_t k = 0; known_.size() && k < heard.size(); ++k) {
    while (stretch < stretches_.size() && k >= stretches_[stretch].last) ++stretch;
    const bool same = known_.same(k, heard.at(k));
    if (!same) repeated_[k] = 0;
    if (same && repeated_[k] < STEADY) ++repeated_[k];
    outdated = outdated || (!same && stretch < stretches_.size() && k >= stretches_[stretch].first);
  }
  if (outdated) drop();
  known_.swap(heard);
}

inline void Recording::record(int32_t device) {
  size_t steady = 0;
  for (const uint8_t times : repeated_) steady += times == STEADY;
  if (steady < steady_ + LEAST) return;
  drop();
  steady_ = steady;
  for (uint32_t first = 0, last; first < known_.size(); first = last) {
    last = first + 1;
    if (repeated_[first] < STEADY) continue;
    while (last < known_.size() && repeated_[last] == STEADY && !known_.apart(last)) ++last;
    if (last - first < LEAST) continue;
    const driver::GraphExec graph = library_.capture(known_, first, last, device);
    if (graph) stretches_.push_back({first, last, graph});
  }
}

}  // namespace coilwork
