// A program of a package with its kernels, plans and roles, ready to run.
#pragma once
#include <memory>

#include "coilwork/model_c.h"
#include "input_checks.hpp"
#include "state.hpp"

namespace coilwork_aot {

// What a program gives: a tensor, or another value.
struct Result {
  CoilworkKind kind = COILWORK_NOTHING;
  Handle tensor;
  int64_t integer = 0;
  double real = 0;
};

// Kernels of GPUs and where they run; in gpu.cpp.
class Gpu;

class BoundProgram {
 public:
  // Throws Refusal.
  BoundProgram(const Archive& archive, const std::string& entry, const Variant& variant, const State& state, const Place& place, Gpu* gpu);
  ~BoundProgram();
  BoundProgram(const BoundProgram&) = delete;

  // Inputs are the state's tensors that the variant names, then the caller's. Throws Refusal: a call error.
  std::vector<Result> run(const std::vector<Given>& inputs) const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace coilwork_aot
