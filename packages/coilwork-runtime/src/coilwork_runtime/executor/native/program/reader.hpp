// Reading the binary form of programs, plans and kernels. Whatever the bytes are, nothing outside of them is read.
#pragma once
#include <stdint.h>
#include <string.h>

#include "containers/text.hpp"

namespace coilwork {

// The bytes are damaged, or of another version.
struct Damaged {
  const char* what;
  char name[64] = {};  // of the field that it is about

  static Damaged field(const char* what, const Text& name) {
    Damaged made{what};
    strncpy(made.name, name.c_str(), sizeof made.name - 1);
    return made;
  }
};

class Reader {
 public:
  Reader(const char* data, size_t size) : at_(data), end_(data + size) {}

  uint8_t u8() { return number<uint8_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  int32_t i32() { return number<int32_t>(); }
  int64_t i64() { return number<int64_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  double f64() { return number<double>(); }

  Text text() {
    const uint32_t size = u32();
    const char* start = take(size);
    return Text(start, size);
  }
  // A count of things that take at least one byte each.
  uint32_t count() {
    const uint32_t found = u32();
    if (found > static_cast<size_t>(end_ - at_)) throw Damaged{"a list is longer than the file"};
    return found;
  }
  uint32_t below(size_t limit) {
    const uint32_t found = u32();
    if (found >= limit) throw Damaged{"a number points outside of its table"};
    return found;
  }
  void skip(size_t size) { take(size); }
  // Bytes behind their length, to be read on their own.
  Reader block() {
    const uint32_t size = u32();
    return Reader(take(size), size);
  }
  // All that follows.
  Text rest() {
    const size_t size = left();
    const char* start = take(size);
    return Text(start, size);
  }
  bool done() const { return at_ == end_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

 private:
  template <class T>
  T number() {
    T value;
    memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  const char* take(size_t size) {
    if (size > static_cast<size_t>(end_ - at_)) throw Damaged{"the file ends too early"};
    const char* start = at_;
    at_ += size;
    return start;
  }

  const char* at_;
  const char* end_;
};

}  // namespace coilwork
