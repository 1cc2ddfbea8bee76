// What is worked out once for each key, and kept.
#pragma once
#include <stddef.h>
#include <string.h>

#include <memory>
#include <utility>
#include <vector>

namespace coilwork {

// By keys that compare as bytes, in their order. What cannot be made is kept, too, as null.
template <class Key, class Made>
class Kept {
 public:
  explicit Kept(size_t most) : most_(most) {}

  // What there is for `key`, or what `make` makes of it now if it may; null if there would be too many.
  template <class Make>
  Made* find(const Key& key, bool may_make, Make make) {
    size_t first = 0, last = known_.size();
    while (first < last) {
      const size_t middle = (first + last) / 2;
      const int order = memcmp(&known_[middle].first, &key, sizeof key);
      if (order == 0) return known_[middle].second.get();
      if (order < 0)
        first = middle + 1;
      else
        last = middle;
    }
    if (!may_make || known_.size() >= most_) return nullptr;
    return known_.emplace(known_.begin() + static_cast<std::ptrdiff_t>(first), key, make(key))->second.get();
  }

 private:
  size_t most_;
  std::vector<std::pair<Key, std::unique_ptr<Made>>> known_;
};

}  // namespace coilwork
