// JSON as the writers of packages write it (RFC 8259): strict, and nested no deeper than `DEEPEST`.
#pragma once
#include <stdint.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coilwork_aot {

// Bytes are no JSON, or a value is of another type or has other fields than are asked for.
struct NotThere : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Json {
 public:
  enum Kind { NOTHING, TRUTH, INTEGER, REAL, TEXT, LIST, RECORD };
  using Field = std::pair<std::string, Json>;
  static constexpr int DEEPEST = 400;

  // Throws NotThere.
  static Json parse(std::string_view text);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == NOTHING; }
  // Each throws NotThere if the value is of another type.
  bool truth() const { return expect(TRUTH), integer_ != 0; }
  int64_t integer() const { return expect(INTEGER), integer_; }
  double real() const { return expect(REAL), real_; }
  const std::string& text() const { return expect(TEXT), text_; }
  const std::vector<Json>& list() const { return expect(LIST), items_; }
  const std::vector<Field>& record() const { return expect(RECORD), fields_; }
  // The field `name` of a record.
  const Json& operator[](const char* name) const;
  bool has(const char* name) const;
  // Checks that a record has these fields and no others.
  void expect_fields(std::initializer_list<const char*> names) const;

 private:
  friend class JsonReader;
  void expect(Kind kind) const {
    if (kind_ != kind) throw NotThere("a value is of another type");
  }

  Kind kind_ = NOTHING;
  int64_t integer_ = 0;
  double real_ = 0;
  std::string text_;
  std::vector<Json> items_;
  std::vector<Field> fields_;
};

}  // namespace coilwork_aot
