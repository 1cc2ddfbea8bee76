// Integers with the floor semantics of the IR, and code over a kernel's sizes (coilwork_runtime/manifest/size_bytecode.py says what it is).
#pragma once
#include <stdint.h>

#include <utility>

#include "program/reader.hpp"

namespace coilwork {

// Thrown where Python raises ZeroDivisionError.
struct DividedByZero {};
// Thrown where a result does not fit 64 bits.
struct Overflow {};

enum Operation : uint8_t {
  CONSTANT_STEP = 0, ADD, MULTIPLY, FLOOR_DIVIDE, MODULO, MINIMUM, MAXIMUM, SUBTRACT, CEIL_DIVIDE, EQUAL, NOT_EQUAL, LESS, LESS_EQUAL,
  SELECT, SIZE_STEP = 16, PARAMETER_STEP
};

static int64_t apply(uint8_t operation, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (operation) {
    case ADD:
      if (__builtin_add_overflow(a, b, &result)) throw Overflow{};
      return result;
    case SUBTRACT:
      if (__builtin_sub_overflow(a, b, &result)) throw Overflow{};
      return result;
    case MULTIPLY:
      if (__builtin_mul_overflow(a, b, &result)) throw Overflow{};
      return result;
    case FLOOR_DIVIDE:
    case CEIL_DIVIDE: {
      if (b == 0) throw DividedByZero{};
      if (b == -1) return apply(SUBTRACT, 0, a);
      const int64_t quotient = a / b;
      if (a % b == 0) return quotient;
      const bool is_negative = (a < 0) != (b < 0);
      return operation == FLOOR_DIVIDE ? quotient - is_negative : quotient + !is_negative;
    }
    case MODULO: {
      if (b == 0) throw DividedByZero{};
      if (b == -1) return 0;
      const int64_t rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
    case MINIMUM:
      return a < b ? a : b;
    case EQUAL:
      return a == b;
    case NOT_EQUAL:
      return a != b;
    case LESS:
      return a < b;
    case LESS_EQUAL:
      return a <= b;
    default:
      return a > b ? a : b;
  }
}

// An expression over a kernel's sizes, such as an extent of its grid.
class Formula {
 public:
  // u32 count, then of each step u8 operation, and i64 if it is a constant, a size or a parameter.
  void read(Reader& reader) {
    size_t depth = 0;
    for (uint32_t left = reader.count(); left; --left) {
      Step step{reader.u8(), 0};
      if (is_push(step.kind)) {
        step.value = reader.i64();
        if (step.value < 0 && step.kind != CONSTANT_STEP) throw Damaged{"a formula uses no such number"};
        ++depth;
      } else {
        const size_t taken = step.kind == SELECT ? 3 : 2;
        if (step.kind > SELECT || depth < taken) throw Damaged{"a formula is malformed"};
        depth -= taken - 1;
      }
      if (depth > MOST_DEPTH) throw Damaged{"a formula is too deep"};
      steps_.push_back(step);
    }
    if (depth != 1) throw Damaged{"a formula is malformed"};
  }
  // Whether it uses no size or parameter beyond so many.
  bool is_within(size_t sizes, size_t parameters) const {
    for (const Step& step : steps_)
      if ((step.kind == SIZE_STEP && static_cast<uint64_t>(step.value) >= sizes) ||
          (step.kind == PARAMETER_STEP && static_cast<uint64_t>(step.value) >= parameters))
        return false;
    return true;
  }
  // The same with values in the place of compile-time parameters; one step if that leaves no sizes.
  Formula bind(const int64_t* parameters) const {
    Formula bound;
    bool is_fixed = true;
    for (Step step : steps_) {
      if (step.kind == PARAMETER_STEP) step = {CONSTANT_STEP, parameters[step.value]};
      is_fixed = is_fixed && step.kind != SIZE_STEP;
      bound.steps_.push_back(step);
    }
    return !is_fixed || bound.steps_.size() < 2 ? std::move(bound) : number(bound(nullptr));
  }
  static Formula number(int64_t value) {
    Formula made;
    made.steps_.push_back({CONSTANT_STEP, value});
    return made;
  }
  int64_t operator()(const int64_t* sizes, const int64_t* parameters = nullptr) const {
    if (steps_.size() == 1) return pushed(steps_[0], sizes, parameters);
    int64_t stack[MOST_DEPTH + 1];
    int top = 0;
    for (const Step& step : steps_) {
      if (is_push(step.kind)) {
        stack[top++] = pushed(step, sizes, parameters);
      } else if (step.kind == SELECT) {
        top -= 2;
        stack[top - 1] = stack[top - 1] ? stack[top] : stack[top + 1];
      } else {
        --top;
        stack[top - 1] = apply(step.kind, stack[top - 1], stack[top]);
      }
    }
    return stack[0];
  }
  struct Step {
    uint8_t kind;
    int64_t value;
  };
  bool empty() const { return steps_.empty(); }
  const List<Step>& steps() const { return steps_; }

 private:
  static constexpr size_t MOST_DEPTH = 32;
  static bool is_push(uint8_t kind) { return kind == CONSTANT_STEP || kind == SIZE_STEP || kind == PARAMETER_STEP; }
  static int64_t pushed(const Step& step, const int64_t* sizes, const int64_t* parameters) {
    return step.kind == CONSTANT_STEP ? step.value : step.kind == SIZE_STEP ? sizes[step.value] : parameters[step.value];
  }
  List<Step> steps_;
};

}  // namespace coilwork
