// What is wrong with a call's inputs, as coilwork_aot/input_checks.py says it, and copies of those that only have other strides.
#pragma once
#include "manifest.hpp"
#include "tensors.hpp"

namespace coilwork_aot {

// A leaf that a call is given: a tensor, which stays the caller's, or a number.
struct Given {
  AtenTensorHandle tensor = nullptr;
  int64_t number = 0;
  bool is_number = false;
};

// The leaves of a variant that are not fixed, in order.
std::vector<const Leaf*> list_moving(const std::vector<Leaf>& leaves);

// Checks the leaves of a call; returns those whose strides differ from the exported ones. Throws Refusal: an input error.
std::vector<size_t> check_inputs(const Variant& variant, const std::vector<const Leaf*>& leaves, const std::vector<Given>& given,
                                 const Place& place);

// A copy in the exported strides. Throws Refusal: the program writes to the input, or its strides are not known.
Handle lay_out(const Leaf& leaf, AtenTensorHandle value, const Place& place);

// Checks sizes against the bounds of their symbols, which programs do not.
class BoundsChecker {
 public:
  BoundsChecker(const Variant& variant, const std::vector<const Leaf*>& leaves);
  // Throws Refusal. Leaves of another kind or rank are left to `check_inputs`.
  void check(const std::vector<Given>& given) const;

 private:
  struct Bound {
    size_t leaf;
    int64_t dimension;  // -1: a number
    int64_t low, high;
    std::string name;
  };
  std::vector<Bound> bounds_;
};

}  // namespace coilwork_aot
