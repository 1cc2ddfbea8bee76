// What each instruction takes, while somebody asks for it; else a call looks once whether anybody does.
#pragma once
#include <time.h>

#include "program/model.hpp"

namespace coilwork {

inline uint64_t precise_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

// Sums since it was made. Threads may add at once.
struct Timing {
  // Of a call as a whole: handles on its inputs; what it asks before it begins; its instructions; its results as objects, and
  // the release of what is left.
  enum Phase { INPUTS, BEGINNING, INSTRUCTIONS, RESULTS, PHASES };
  struct Entry {
    std::atomic<uint64_t> times{0}, ns{0};
    void add(uint64_t more) {
      times.fetch_add(1, std::memory_order_relaxed);
      ns.fetch_add(more, std::memory_order_relaxed);
    }
  };

  explicit Timing(const Program& program) {
    for (const Part& part : program.parts) steps.emplace_back(part.steps.size());
    // what reading the clock takes is in each interval once
    for (int k = 0; k < 100; ++k) {
      const uint64_t start = precise_ns(), taken = precise_ns() - start;
      if (k == 0 || taken < clock_ns) clock_ns = taken;
    }
  }

  // Adds the time since `since` to `entry`; returns when the next interval begins.
  uint64_t add(Entry& entry, uint64_t since) const {
    const uint64_t now = precise_ns(), taken = now - since;
    entry.add(taken > clock_ns ? taken - clock_ns : 0);
    return now;
  }
  Entry* of(const Program& program, const Part& part) const { return steps[&part - program.parts.data()].data(); }

  mutable List<List<Entry>> steps;  // of each part
  Entry phases[PHASES];
  uint64_t clock_ns = 0;
};

// The phases of one call.
class Phases {
 public:
  explicit Phases(Timing* timing) : timing_(timing), since_(timing ? precise_ns() : 0) {}
  void done(Timing::Phase phase) {
    if (timing_) since_ = timing_->add(timing_->phases[phase], since_);
  }

 private:
  Timing* timing_;
  uint64_t since_;
};

}  // namespace coilwork
