// The state of a loaded model: parameters, buffers and constants by number, as coilwork_aot/weights.py and state.py have it.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "manifest.hpp"
#include "tensors.hpp"
#include "upload.hpp"

namespace coilwork_aot {

using Tensors = std::vector<std::shared_ptr<Handle>>;
using NamedTensors = std::map<std::string, AtenTensorHandle>;

class State {
 public:
  State(std::vector<StateEntry> entries, Place place, Tensors tensors)
      : entries(std::move(entries)), place(std::move(place)), tensors_(std::make_shared<const Tensors>(std::move(tensors))) {}

  const std::vector<StateEntry> entries;
  const Place place;

  // The tensors of now; a call keeps the ones that it began with.
  std::shared_ptr<const Tensors> tensors() const { return std::atomic_load(&tensors_); }
  // Copies values into the persistent state; with `assigns`, takes the tensors themselves. Throws Refusal: then nothing has changed.
  void load(const NamedTensors& values, bool assigns);

 private:
  std::mutex loading_;
  std::shared_ptr<const Tensors> tensors_;
};

// A safetensors file as tensors by name, which keep it mapped.
struct SafetensorsFile {
  explicit SafetensorsFile(const std::string& path);
  NamedTensors named() const;

  std::map<std::string, Handle> tensors;
};

// The state of a package on a device: of its own weights, or, of persistent state, of `given` if that is not null. On a GPU the own
// weights are memory that has yet to be filled, by `uploads`.
std::shared_ptr<State> open_state(const Archive& archive, const std::vector<StateEntry>& entries, const Place& place,
                                  const NamedTensors* given, std::vector<Upload>& uploads);

}  // namespace coilwork_aot
