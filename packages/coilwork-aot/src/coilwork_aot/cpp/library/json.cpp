#include "json.hpp"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <unordered_set>

namespace coilwork_aot {

class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  Json read_whole() {
    Json made = read_value(0);
    skip_space();
    if (at_ != end_) throw NotThere("something follows the JSON");
    return made;
  }

 private:
  void skip_space() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
  }
  char peek() {
    skip_space();
    if (at_ == end_) throw NotThere("JSON ends too early");
    return *at_;
  }
  void take(char wanted) {
    if (peek() != wanted) throw NotThere(std::string("JSON has no ") + wanted + " where one is due");
    ++at_;
  }
  bool skip(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }
  void take_word(const char* word) {
    const size_t size = strlen(word);
    if (static_cast<size_t>(end_ - at_) < size || memcmp(at_, word, size) != 0) throw NotThere("a word that is none of JSON's");
    at_ += size;
  }

  Json read_value(int depth) {
    if (depth > Json::DEEPEST) throw NotThere("JSON is nested too deeply");
    Json made;
    switch (peek()) {
      case '{':
        made.kind_ = Json::RECORD;
        read_record(made, depth);
        break;
      case '[':
        made.kind_ = Json::LIST;
        ++at_;
        if (skip(']')) break;
        do made.items_.push_back(read_value(depth + 1));
        while (skip(','));
        take(']');
        break;
      case '"':
        made.kind_ = Json::TEXT;
        made.text_ = read_text();
        break;
      case 't':
        take_word("true");
        made.kind_ = Json::TRUTH;
        made.integer_ = 1;
        break;
      case 'f':
        take_word("false");
        made.kind_ = Json::TRUTH;
        break;
      case 'n':
        take_word("null");
        break;
      case 'N':
        take_word("NaN");
        made.kind_ = Json::REAL;
        made.real_ = __builtin_nan("");
        break;
      case 'I':
        take_word("Infinity");
        made.kind_ = Json::REAL;
        made.real_ = __builtin_inf();
        break;
      default:
        read_number(made);
    }
    return made;
  }

  void read_record(Json& made, int depth) {
    std::unordered_set<std::string> seen;
    ++at_;
    if (skip('}')) return;
    do {
      peek();
      std::string name = read_text();
      if (!seen.insert(name).second) throw NotThere("a record has a field twice");
      take(':');
      made.fields_.emplace_back(std::move(name), read_value(depth + 1));
    } while (skip(','));
    take('}');
  }

  void read_number(Json& made) {
    if (end_ - at_ >= 9 && memcmp(at_, "-Infinity", 9) == 0) {
      at_ += 9;
      made.kind_ = Json::REAL;
      made.real_ = -__builtin_inf();
      return;
    }
    const char* start = at_;
    if (at_ != end_ && *at_ == '-') ++at_;
    const char* digits = at_;
    const size_t whole = skip_digits();
    if (!whole || (whole > 1 && *digits == '0')) throw NotThere("a value that is none of JSON's");
    bool is_real = false;
    if (at_ != end_ && *at_ == '.') {
      ++at_;
      is_real = true;
      if (!skip_digits()) throw NotThere("a number without digits");
    }
    if (at_ != end_ && (*at_ == 'e' || *at_ == 'E')) {
      ++at_;
      is_real = true;
      if (at_ != end_ && (*at_ == '+' || *at_ == '-')) ++at_;
      if (!skip_digits()) throw NotThere("a number without digits");
    }
    const std::string text(start, at_);
    if (is_real) {
      made.kind_ = Json::REAL;
      made.real_ = strtod(text.c_str(), nullptr);
      return;
    }
    errno = 0;
    made.kind_ = Json::INTEGER;
    made.integer_ = strtoll(text.c_str(), nullptr, 10);
    if (errno == ERANGE) throw NotThere("a number beyond 64 bits");
  }
  size_t skip_digits() {
    const char* start = at_;
    while (at_ != end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    return static_cast<size_t>(at_ - start);
  }

  uint32_t read_hex() {
    if (end_ - at_ < 4) throw NotThere("a text ends too early");
    uint32_t value = 0;
    for (int k = 0; k < 4; ++k, ++at_) {
      const char c = *at_;
      const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) throw NotThere("a text has no such escape");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    return value;
  }
  static void append(std::string& text, uint32_t point) {
    if (point < 0x80) {
      text += static_cast<char>(point);
      return;
    }
    const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    text += static_cast<char>((0xf00 >> more & 0xff) | point >> 6 * more);
    for (int k = more - 1; k >= 0; --k) text += static_cast<char>(0x80 | (point >> 6 * k & 0x3f));
  }

  std::string read_text() {
    if (*at_ != '"') throw NotThere("a text is due");
    std::string made;
    for (++at_; at_ != end_; ++at_) {
      const char c = *at_;
      if (c == '"') return ++at_, made;
      if (static_cast<unsigned char>(c) < 0x20) throw NotThere("a text has a control character");
      if (c != '\\') {
        made += c;
        continue;
      }
      if (++at_ == end_) break;
      static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
      if (*at_ == 'u') {
        ++at_;
        uint32_t point = read_hex();
        if (point >= 0xd800 && point < 0xdc00 && end_ - at_ >= 2 && at_[0] == '\\' && at_[1] == 'u') {
          at_ += 2;
          const uint32_t low = read_hex();
          if (low < 0xdc00 || low > 0xdfff) throw NotThere("a text has half a character");
          point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
        }
        append(made, point);
        --at_;
      } else if (const char* found = *at_ ? strchr(escapes, *at_) : nullptr) {
        made += meant[found - escapes];
      } else {
        throw NotThere("a text has no such escape");
      }
    }
    throw NotThere("a text ends too early");
  }

  const char* at_;
  const char* end_;
};

Json Json::parse(std::string_view text) { return JsonReader(text).read_whole(); }

bool Json::has(const char* name) const {
  for (const Field& field : record())
    if (field.first == name) return true;
  return false;
}

const Json& Json::operator[](const char* name) const {
  for (const Field& field : record())
    if (field.first == name) return field.second;
  throw NotThere(std::string("a record lacks the field ") + name);
}

void Json::expect_fields(std::initializer_list<const char*> names) const {
  for (const char* name : names) (*this)[name];
  if (record().size() != names.size()) throw NotThere("a record has fields that are not known");
}

}  // namespace coilwork_aot
