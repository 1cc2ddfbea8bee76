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

// What is left to torch that the executor would do itself on a GPU.
struct Left {
  bool libraries = false;  // products and convolutions, though the package may differ from eager in last bits
  bool graphs = false;     // work that repeats is given to the driver piece by piece
};

class BoundProgram {
 public:
  // Throws Refusal.
  BoundProgram(const Archive& archive, const std::string& entry, const Variant& variant, const State& state, const Place& place, Gpu* gpu,
               const Left& left);
  ~BoundProgram();
  BoundProgram(const BoundProgram&) = delete;

  // Opens what the first call would have to wait for.
  void prepare() const;
  // Inputs are the state's tensors that the variant names, then the caller's. Throws Refusal: a call error.
  std::vector<Result> run(const std::vector<Given>& inputs) const;
  // Adds what has been counted so far.
  void count(CoilworkCounters& counters) const;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

}  // namespace coilwork_aot
