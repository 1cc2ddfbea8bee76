// The work of one call, in order.
#pragma once
#include <string.h>

#include "call/work_queue.hpp"

namespace coilwork {

class Worklist {
 public:
  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }

  // `apart`: what comes before it has to be under way first.
  void add(const Work& work, bool apart) {
    entries_.push_back({work.what, static_cast<uint32_t>(words_.size()), work.count, work.kind, apart});
    words_.append(work.words, work.words + work.count);
  }
  Work at(uint32_t k) const {
    const Entry& entry = entries_[k];
    return {entry.kind, entry.count, entry.what, words_.data() + entry.first};
  }
  bool apart(uint32_t k) const { return entries_[k].apart; }

  bool same(uint32_t k, const Work& work) const {
    const Entry& entry = entries_[k];
    return entry.what == work.what && entry.kind == work.kind && entry.count == work.count &&
           memcmp(words_.data() + entry.first, work.words, work.count * sizeof *work.words) == 0;
  }

  void clear() {
    entries_.clear();
    words_.clear();
  }
  void swap(Worklist& other) {
    entries_.swap(other.entries_);
    words_.swap(other.words_);
  }

 private:
  struct Entry {
    const void* what;
    uint32_t first, count;
    Work::Kind kind;
    bool apart;
  };
  List<Entry> entries_;
  List<uint64_t> words_;
};

}  // namespace coilwork
