// The manifest of a package: what coilwork_aot/manifest.py says of it holds here.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "archive.hpp"
#include "json.hpp"

namespace coilwork_aot {

constexpr int64_t SCHEMA = 3;
constexpr char MANIFEST[] = "manifest.json", DIGEST[] = "manifest.sha256", WEIGHTS[] = "weights.safetensors";

struct RecordFacts {
  uint64_t size = 0;
  std::string sha256;
};

// A size or stride: a number, or (`is_number` false) a text.
struct Size {
  bool is_number = true;
  int64_t number = 0;
  std::string text;
};

struct Leaf {
  enum Kind { TENSOR, NUMBER, FIXED } kind = TENSOR;
  std::string name, dtype, device;
  int64_t position = -1;
  Json value;
  std::vector<Size> sizes, strides;
  bool is_written = false;
};

struct Binary {
  std::map<std::string, int64_t> config;
  std::string record;
};

struct TargetFacts {
  std::string device, name, system, machine;
  std::vector<std::string> features;
};

struct Bounds {
  int64_t low = 0, high = -1;
};

struct Variant {
  TargetFacts target;
  std::vector<Leaf> inputs, results;
  std::string calls_like;  // what distinguishes the calls that it serves
  std::map<std::string, Bounds> symbols;
  std::vector<size_t> state;
  std::map<std::string, size_t> constants;
  std::string program, kernels, calls, roles, refusal;
  std::map<std::string, std::vector<Binary>> binaries;
  std::vector<std::string> devices;
  bool rounds_freely = true;  // results may differ from eager's in their last bits
};

// How a tensor lies in a storage, in elements.
struct TensorPlace {
  std::string storage, dtype;
  std::vector<int64_t> size, stride;
  int64_t offset = 0;

  bool operator==(const TensorPlace& other) const {
    return storage == other.storage && dtype == other.dtype && size == other.size && stride == other.stride && offset == other.offset;
  }
};

struct StateEntry {
  std::string name, kind;
  bool is_persistent = false;
  TensorPlace place;

  bool operator==(const StateEntry& other) const {
    return name == other.name && kind == other.kind && is_persistent == other.is_persistent && place == other.place;
  }
};

struct Manifest {
  std::string name, torch_first, torch_below, runtime;
  std::vector<std::pair<std::string, std::vector<Variant>>> entries;
  std::vector<StateEntry> state;
  std::map<std::string, RecordFacts> records;
};

// Verifies the hashes of an archive but for that of the weights, and reads its manifest. Throws Refusal, as
// coilwork_aot.loading.verify_archive.
Manifest verify_archive(const Archive& archive, const std::string& path, const std::string& digest);
// The same of the weights, if there are any.
void verify_weights(const Archive& archive, const Manifest& manifest);

}  // namespace coilwork_aot
