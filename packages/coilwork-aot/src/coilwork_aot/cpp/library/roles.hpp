// What is done around a program, read from text (coilwork_runtime/manifest/convention_parser.py). What only autograd sees is left out.
#pragma once
#include <string>
#include <vector>

namespace coilwork_aot {

struct Role {
  enum Act { ALIGNED, STRIDED, NUMBER, CONSTANT, SAME, NOTHING } act = NOTHING;
  enum Place { IN, OUT } place = OUT, source_place = IN;
  size_t position = 0, source = 0;
  bool updates = false;   // of an input: the copy goes back
  bool is_truth = false;  // of a number or constant
  double constant = 0;
  std::vector<int64_t> strides;
};

struct Roles {
  size_t takes = 0;
  int64_t gives = -1;  // -1: all results
  std::vector<Role> rows;
};

// Throws NotThere: the text is no roles. Sets `needs_python` to a row that only Python can act on.
Roles parse_roles(const std::string& text, std::string& needs_python);

}  // namespace coilwork_aot
