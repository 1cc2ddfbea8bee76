// A table of results by key: each is computed once.
#pragma once
#include <stddef.h>
#include <string.h>

#include "containers/list.hpp"
#include "containers/owned.hpp"

namespace coilwork {

// By keys that compare as bytes, in their order. What cannot be made is kept, too, as null.
template <class Key, class Made>
class MemoTable {
 public:
  explicit MemoTable(size_t most) : most_(most) {}

  // What there is for `key`, or what `make` makes of it now if it may; null if there would be too many.
  template <class Make>
  Made* find(const Key& key, bool may_make, Make make) {
    size_t first = 0, last = known_.size();
    while (first < last) {
      const size_t middle = (first + last) / 2;
      const int order = memcmp(&known_[middle].key, &key, sizeof key);
      if (order == 0) return known_[middle].made.get();
      if (order < 0)
        first = middle + 1;
      else
        last = middle;
    }
    if (!may_make || known_.size() >= most_) return nullptr;
    return known_.insert(first, {key, make(key)}).made.get();
  }

 private:
  struct Entry {
    Key key;
    Owned<Made> made;
  };

  size_t most_;
  List<Entry> known_;
};

}  // namespace coilwork
