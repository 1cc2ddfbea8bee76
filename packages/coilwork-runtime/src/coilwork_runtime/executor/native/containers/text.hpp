// Characters, ended by a zero.
#pragma once
#include <string.h>

#include "containers/list.hpp"

namespace coilwork {

class Text {
 public:
  Text() = default;
  Text(const char* first, size_t size) {
    letters_.append(first, first + size);
    letters_.push_back('\0');
  }
  explicit Text(const char* text) : Text(text, strlen(text)) {}
  void append(const Text& other) {
    if (!letters_.empty()) letters_.pop_back();
    letters_.append(other.c_str(), other.c_str() + other.size() + 1);
  }
  size_t size() const { return letters_.empty() ? 0 : letters_.size() - 1; }
  const char* c_str() const { return letters_.empty() ? "" : letters_.data(); }
  bool operator==(const char* other) const { return strcmp(c_str(), other) == 0; }

 private:
  List<char> letters_;
};

}  // namespace coilwork
