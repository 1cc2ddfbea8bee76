#include "roles.hpp"

#include <errno.h>
#include <stdlib.h>

#include <sstream>

#include "json.hpp"

namespace coilwork_aot {
namespace {

using Words = std::vector<std::string>;

Words split(const std::string& line) {
  std::istringstream in(line);
  Words made;
  for (std::string word; in >> word;) made.push_back(word);
  return made;
}

uint64_t read_number(const std::string& word) {
  if (word.empty() || word.find_first_not_of("0123456789") != std::string::npos || word.size() > 18) throw NotThere("a role without a number");
  return strtoull(word.c_str(), nullptr, 10);
}

const std::string& word_at(const Words& words, size_t k) {
  if (k >= words.size()) throw NotThere("a role ends too early");
  return words[k];
}

void read_source(const Words& words, size_t k, Role& role) {
  const std::string& place = word_at(words, k);
  if (place != "in" && place != "out") throw NotThere("a role of a value that is not there");
  role.source_place = place == "in" ? Role::IN : Role::OUT;
  role.source = read_number(word_at(words, k + 1));
}

// False if only Python can act on it.
bool read_input(const Words& words, Role& role) {
  const std::string& act = word_at(words, 2);
  if (act == "donated" && words.size() == 3) return true;
  if (act == "aligned" || act == "resolved") {
    // no input is negated or conjugated here, so that resolving does nothing
    role.act = act == "aligned" ? Role::ALIGNED : Role::NOTHING;
    for (size_t k = 3; k < words.size(); ++k) {
      if (words[k] != "update" && words[k] != "conjugate") throw NotThere("a role of no known form");
      role.updates = role.updates || words[k] == "update";
    }
    return true;
  }
  if (act == "set") return false;
  throw NotThere("a role of no known form");
}

bool read_result(const Words& words, Role& role) {
  const std::string& act = word_at(words, 2);
  if (act == "number") {
    role.act = Role::NUMBER;
    role.is_truth = word_at(words, 3) == "bool";
  } else if (act == "constant") {
    const std::string& value = word_at(words, 3);
    role.act = Role::CONSTANT;
    role.is_truth = value == "True" || value == "False";
    char* end = nullptr;
    role.constant = role.is_truth ? value == "True" : strtod(value.c_str(), &end);
    if (!role.is_truth && *end) throw NotThere("a constant that is no number");
  } else if (act == "is") {
    role.act = Role::SAME;
    read_source(words, 3, role);
  } else if (act == "marked") {
    return words.size() == 4 && words[3] == "gradient";
  } else if (act != "detached" && act != "counted" && act != "view" && act != "shown" && act != "created") {
    throw NotThere("a role of no known form");
  }
  return true;
}

}  // namespace

Roles parse_roles(const std::string& text, std::string& needs_python) {
  std::istringstream in(text);
  std::string line;
  Roles made;
  std::getline(in, line);
  const Words head = split(line);
  if ((head.size() != 2 && head.size() != 4) || head[0] != "takes" || (head.size() == 4 && head[2] != "gives"))
    throw NotThere("roles do not begin with how many values are taken");
  made.takes = read_number(head[1]);
  if (head.size() == 4) made.gives = static_cast<int64_t>(read_number(head[3]));
  while (std::getline(in, line)) {
    const Words words = split(line);
    const std::string& place = word_at(words, 0);
    if (place == "call" || place == "hidden") {
      needs_python = line;
      continue;
    }
    if (place != "in" && place != "out") throw NotThere("a role of a value that is not there");
    Role role;
    role.place = place == "in" ? Role::IN : Role::OUT;
    role.position = read_number(word_at(words, 1));
    bool is_native = true;
    if (word_at(words, 2) == "strided") {
      role.act = Role::STRIDED;
      for (size_t k = 3; k < words.size(); ++k) role.strides.push_back(static_cast<int64_t>(read_number(words[k])));
    } else {
      is_native = role.place == Role::IN ? read_input(words, role) : read_result(words, role);
    }
    if (!is_native) needs_python = line;
    if ((role.place == Role::IN && role.position >= made.takes) ||
        (role.act == Role::SAME && role.source_place == Role::IN && role.source >= made.takes))
      throw NotThere("a role speaks of an input that there is not");
    made.rows.push_back(std::move(role));
  }
  return made;
}

}  // namespace coilwork_aot
