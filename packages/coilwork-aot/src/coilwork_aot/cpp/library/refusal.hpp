// Refusals, each with the code that coilwork_aot.errors gives it.
#pragma once
#include <stdexcept>
#include <string>

#include "coilwork/model_c.h"

namespace coilwork_aot {

struct Refusal : std::runtime_error {
  Refusal(CoilworkErrorKind kind, std::string code, const std::string& message)
      : std::runtime_error(message), kind(kind), code(std::move(code)) {}
  CoilworkErrorKind kind;
  std::string code;
};

[[noreturn]] inline void refuse_package(const char* code, const std::string& message) {
  throw Refusal(COILWORK_PACKAGE_ERROR, code, message);
}
[[noreturn]] inline void refuse_target(const char* code, const std::string& message) {
  throw Refusal(COILWORK_TARGET_ERROR, code, message);
}
[[noreturn]] inline void refuse_input(const char* code, const std::string& message) {
  throw Refusal(COILWORK_INPUT_ERROR, code, message);
}

}  // namespace coilwork_aot
