// Integers with the floor semantics of the IR, and formulas over a kernel's sizes.
#pragma once
#include <stdint.h>

#include "program/reader.hpp"

namespace coilwork {

// Thrown where Python raises ZeroDivisionError.
struct DividedByZero {};

enum Operation : uint8_t { ADD = 1, MULTIPLY, FLOOR_DIVIDE, MODULO, MINIMUM, MAXIMUM, SUBTRACT };

static int64_t apply(uint8_t operation, int64_t a, int64_t b) {
  switch (operation) {
    case ADD:
      return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case SUBTRACT:
      return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
    case MULTIPLY:
      return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case FLOOR_DIVIDE: {
      if (b == 0) throw DividedByZero{};
      if (b == -1) return apply(SUBTRACT, 0, a);
      const int64_t quotient = a / b;
      return quotient - (a % b != 0 && (a < 0) != (b < 0));
    }
    case MODULO: {
      if (b == 0) throw DividedByZero{};
      if (b == -1) return 0;
      const int64_t rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
    case MINIMUM:
      return a < b ? a : b;
    default:
      return a > b ? a : b;
  }
}

// An expression over a kernel's sizes, such as an extent of its grid: postfix, folded if it is a constant.
class Formula {
 public:
  // u32 count, then (u8 0, i64 constant), (u8 16, i64 number of the size) or (u8 operation, i64 0)
  void read(Reader& reader, size_t sizes) {
    size_t depth = 0;
    for (uint32_t left = reader.count(); left; --left) {
      Step step{reader.u8(), reader.i64()};
      if (step.kind == CONSTANT || step.kind == SIZE) {
        if (step.kind == SIZE && static_cast<uint64_t>(step.value) >= sizes) throw Damaged{"a formula uses no such size"};
        ++depth;
      } else if (step.kind > SUBTRACT || depth < 2) {
        throw Damaged{"a formula is malformed"};
      } else {
        --depth;
      }
      if (depth > MOST_DEPTH) throw Damaged{"a formula is too deep"};
      steps_.push_back(step);
    }
    if (depth != 1) throw Damaged{"a formula is malformed"};
  }
  int64_t operator()(const int64_t* sizes) const {
    if (steps_.size() == 1) return leaf(steps_[0], sizes);
    int64_t stack[MOST_DEPTH + 1];
    int top = 0;
    for (const Step& step : steps_) {
      if (step.kind == CONSTANT || step.kind == SIZE) {
        stack[top++] = leaf(step, sizes);
      } else {
        --top;
        stack[top - 1] = apply(step.kind, stack[top - 1], stack[top]);
      }
    }
    return stack[0];
  }

 private:
  static constexpr uint8_t CONSTANT = 0, SIZE = 16;
  static constexpr size_t MOST_DEPTH = 32;
  struct Step {
    uint8_t kind;
    int64_t value;
  };
  static int64_t leaf(const Step& step, const int64_t* sizes) {
    return step.kind == CONSTANT ? step.value : sizes[step.value];
  }
  List<Step> steps_;
};

}  // namespace coilwork
