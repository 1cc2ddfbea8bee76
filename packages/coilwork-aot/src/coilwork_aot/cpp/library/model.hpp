// A loaded model: from a file to entry points that run, as coilwork_aot/loading.py and model.py do it.
#pragma once
#include "gpu.hpp"
#include "program.hpp"

namespace coilwork_aot {

struct LoadOptions {
  std::string device, digest, torch_library;
  const NamedTensors* weights = nullptr;
  std::shared_ptr<State> share;
  bool verify_weights = true;
  Left left;
};

class EntryPoint {
 public:
  EntryPoint(std::string name, std::shared_ptr<State> state) : name(std::move(name)), state_(std::move(state)) {}

  std::string name;

  void add(const Variant& variant, std::unique_ptr<BoundProgram> program);
  size_t count() const { return variants_.size(); }
  const Variant& variant(size_t number) const { return variants_[number]->variant; }
  const std::vector<const Leaf*>& inputs(size_t number) const { return variants_[number]->inputs; }

  // Runs the first variant that the inputs fit. Throws Refusal.
  std::vector<Result> call(std::vector<Given> given, size_t* chosen) const;
  // Adds what has been counted so far.
  void count(CoilworkCounters& counters) const;
  // Opens what the first call would have to wait for.
  void prepare() const;

 private:
  struct Bound {
    Bound(const Variant& given, std::unique_ptr<BoundProgram> program)
        : variant(given), inputs(list_moving(variant.inputs)), bounds(variant, inputs), program(std::move(program)) {
      for (const Leaf* leaf : inputs) has_complex = has_complex || leaf->dtype[0] == 'c';
    }
    const Variant variant;
    const std::vector<const Leaf*> inputs;
    const BoundsChecker bounds;
    const std::unique_ptr<BoundProgram> program;
    bool has_complex = false;
  };

  std::vector<Result> run(const Bound& bound, const std::vector<Given>& given) const;
  std::vector<Result> call_one(const Bound& bound, std::vector<Given>& given) const;

  std::shared_ptr<State> state_;
  std::vector<std::unique_ptr<Bound>> variants_;
};

struct Model {
  std::string name;
  Place place;
  std::shared_ptr<State> state;
  std::vector<EntryPoint> entries;
};

// Throws Refusal.
std::unique_ptr<Model> load_model(const std::string& path, const LoadOptions& options);

}  // namespace coilwork_aot
