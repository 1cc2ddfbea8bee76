#include "model.hpp"

#include <stdlib.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <set>
#include <sstream>

#include "refusal.hpp"

namespace coilwork_aot {
namespace {

std::pair<int, int> read_version(const std::string& text) {
  std::pair<int, int> made{0, 0};
  char* end = nullptr;
  made.first = static_cast<int>(strtol(text.c_str(), &end, 10));
  if (*end == '.') made.second = static_cast<int>(strtol(end + 1, nullptr, 10));
  return made;
}

void check_versions(const Manifest& manifest, const std::string& path) {
  const auto here = read_torch_version();
  const std::string shown = std::to_string(here.first) + "." + std::to_string(here.second);
  if (here < read_version(manifest.torch_first) || here >= read_version(manifest.torch_below))
    refuse_target("torch-version", path + " runs with torch from " + manifest.torch_first + " to below " + manifest.torch_below +
                                       ", and this is torch " + shown);
  if (read_version(manifest.runtime) != read_version(COILWORK_RUNTIME_VERSION))
    refuse_target("runtime-version", path + " was made for coilwork-runtime " + manifest.runtime + ", and this library for " COILWORK_RUNTIME_VERSION);
}

std::set<std::string> read_cpu_features() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0)) continue;
    std::istringstream words(line.substr(colon + 1));
    std::set<std::string> made;
    for (std::string word; words >> word;) made.insert(word);
    return made;
  }
  return {};
}

// ---- choosing ----

struct Device {
  Place place;
  std::unique_ptr<Gpu> gpu;
};

Device choose_device(const Manifest& manifest, const std::string& wanted) {
  std::vector<std::string> kinds;
  for (const auto& [name, variants] : manifest.entries)
    for (const Variant& one : variants)
      if (std::find(kinds.begin(), kinds.end(), one.target.device) == kinds.end()) kinds.push_back(one.target.device);
  const bool has_cpu = std::find(kinds.begin(), kinds.end(), "cpu") != kinds.end();
  const std::string given = !wanted.empty() ? wanted : has_cpu && (!torch.cuda || kinds.size() == 1) ? "cpu" : kinds[0] != "cpu" ? kinds[0] : kinds.back();
  const size_t colon = given.find(':');
  const std::string kind = given.substr(0, colon), index = colon == std::string::npos ? "" : given.substr(colon + 1);
  if (index.find_first_not_of("0123456789") != std::string::npos || index.size() > 4 || (colon != std::string::npos && index.empty()))
    refuse_target("wrong-device", given + " is no device");
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) refuse_target("wrong-device", "the package is not for " + given);
  Device made;
  made.place.type = torch.aoti_torch_device_type_cpu();
  if (kind == "cpu") return made;
  if (kind != "cuda") refuse_target("wrong-device", "this library runs programs on CPUs and NVIDIA's GPUs, and not on " + kind);
  made.gpu = std::make_unique<Gpu>(index.empty() ? -1 : atoi(index.c_str()));
  made.place.type = torch.aoti_torch_device_type_cuda();
  made.place.index = made.gpu->index();
  made.place.text = "cuda:" + std::to_string(made.place.index);
  return made;
}

std::unique_ptr<Refusal> check_target(const std::string& entry, const Variant& variant, const Device& device, const std::set<std::string>& features) {
  const auto refuse = [&](const char* code, const std::string& what) {
    return std::make_unique<Refusal>(COILWORK_TARGET_ERROR, code, "entry point " + entry + what);
  };
  const TargetFacts& target = variant.target;
  if (device.gpu && !can_run_on(target.name, device.gpu->name()))
    return refuse("wrong-architecture", " was compiled for " + target.name + ", and " + device.place.text + " is " + device.gpu->name());
  utsname machine{};
  uname(&machine);
  if (!target.system.empty() && (target.system != "linux" || target.machine != machine.machine))
    return refuse("wrong-architecture", " was compiled for " + target.system + " on " + target.machine + ", and this is linux on " + machine.machine);
  for (const std::string& feature : target.features)
    if (!features.count(feature)) return refuse("missing-features", " uses " + feature + ", which this processor lacks");
  return nullptr;
}

// The variants to try for a call: for each kind of inputs the best one for this machine.
std::vector<const Variant*> choose_variants(const std::string& entry, const std::vector<Variant>& variants, const Device& device,
                                            const std::set<std::string>& features) {
  const auto rank = [&](const Variant& one) {
    return std::make_pair(device.gpu && one.target.name == device.gpu->name(), one.target.features.size());
  };
  const std::string kind = device.gpu ? "cuda" : "cpu";
  std::vector<const Variant*> best;
  std::unique_ptr<Refusal> first;
  for (const Variant& variant : variants) {
    if (variant.target.device != kind) continue;
    if (auto refusal = check_target(entry, variant, device, features)) {
      if (!first) first = std::move(refusal);
      continue;
    }
    const auto known = std::find_if(best.begin(), best.end(), [&](const Variant* one) { return one->calls_like == variant.calls_like; });
    if (known == best.end())
      best.push_back(&variant);
    else if (rank(variant) > rank(**known))
      *known = &variant;
  }
  if (best.empty() && first) throw *first;
  if (best.empty()) refuse_target("wrong-device", "entry point " + entry + " has no program for " + kind);
  return best;
}

// A GPU is the current one of this thread until the end: the driver takes kernels for what is current.
class CurrentDevice {
 public:
  explicit CurrentDevice(const Place& place) {
    if (place.is_cpu() || !torch.aoti_torch_create_cuda_guard) return;
    if (torch.aoti_torch_create_cuda_guard(place.index, &guard_)) throw Refusal(COILWORK_CALL_ERROR, "call-failed", read_torch_error());
  }
  ~CurrentDevice() {
    if (guard_) torch.aoti_torch_delete_cuda_guard(guard_);
  }
  CurrentDevice(const CurrentDevice&) = delete;

 private:
  CUDAGuardHandle guard_ = nullptr;
};

}  // namespace

// ---- calling ----

void EntryPoint::add(const Variant& variant, std::unique_ptr<BoundProgram> program) {
  variants_.push_back(std::make_unique<Bound>(variant, std::move(program)));
}

std::vector<Result> EntryPoint::run(const Bound& bound, const std::vector<Given>& given) const {
  const std::shared_ptr<const Tensors> tensors = state_->tensors();
  std::vector<Given> inputs;
  inputs.reserve(bound.variant.state.size() + given.size());
  for (size_t number : bound.variant.state) inputs.push_back({(*tensors)[number]->get(), 0, false});
  const size_t first = inputs.size();
  inputs.resize(first + given.size());
  for (size_t k = 0; k < given.size(); ++k) inputs[first + static_cast<size_t>(bound.inputs[k]->position)] = given[k];
  return bound.program->run(inputs);
}

std::vector<Result> EntryPoint::call_one(const Bound& bound, std::vector<Given>& given) const {
  if (given.size() != bound.inputs.size() || bound.has_complex) check_inputs(bound.variant, bound.inputs, given, state_->place);
  try {
    bound.bounds.check(given);
    return run(bound, given);
  } catch (const Refusal&) {
    // what the program refuses by itself names no argument
    const std::vector<size_t> differing = check_inputs(bound.variant, bound.inputs, given, state_->place);
    if (differing.empty()) throw;
    std::vector<Handle> copies;
    for (size_t k : differing) {
      copies.push_back(lay_out(*bound.inputs[k], given[k].tensor, state_->place));
      given[k].tensor = copies.back().get();
    }
    return run(bound, given);
  }
}

std::vector<Result> EntryPoint::call(std::vector<Given> given, size_t* chosen) const {
  *chosen = 0;
  if (variants_.size() == 1) return call_one(*variants_[0], given);
  std::unique_ptr<Refusal> first;
  for (*chosen = 0; *chosen < variants_.size(); ++*chosen) {
    const Bound& bound = *variants_[*chosen];
    try {
      check_inputs(bound.variant, bound.inputs, given, state_->place);
    } catch (const Refusal& refusal) {
      if (!first) first = std::make_unique<Refusal>(refusal);
      continue;
    }
    return call_one(bound, given);
  }
  throw *first;
}

void EntryPoint::prepare() const {
  for (const auto& variant : variants_) variant->program->prepare();
}

void EntryPoint::count(CoilworkCounters& counters) const {
  for (const auto& variant : variants_) variant->program->count(counters);
}

// ---- loading ----

namespace {

std::unique_ptr<Model> bind(const Archive& archive, const Manifest& manifest, const std::string& path, const LoadOptions& options) {
  open_torch(options.torch_library);
  check_versions(manifest, path);
  Device device = choose_device(manifest, options.device);
  const CurrentDevice current(device.place);
  const std::set<std::string> features = device.gpu ? std::set<std::string>() : read_cpu_features();
  std::vector<std::vector<const Variant*>> chosen;
  for (const auto& [name, variants] : manifest.entries) chosen.push_back(choose_variants(name, variants, device, features));
  auto made = std::make_unique<Model>();
  made->name = manifest.name;
  made->place = device.place;
  made->state = options.share;
  if (made->state && (made->state->entries != manifest.state || made->state->place.text != device.place.text))
    refuse_package("wrong-state", "the model to share with has another state, or another device");
  std::vector<Upload> uploads;
  if (!made->state) made->state = open_state(archive, manifest.state, device.place, options.weights, uploads);
  // beside the programs, which take the memory as it is
  std::future<void> uploading;
  if (!uploads.empty()) {
    const Record& weights = *archive.find(WEIGHTS);
    uploading = start_upload(*device.gpu, archive.data(weights), weights.size, std::move(uploads));
  }
  for (size_t k = 0; k < chosen.size(); ++k) {
    const std::string& name = manifest.entries[k].first;
    made->entries.emplace_back(name, made->state);
    for (const Variant* variant : chosen[k])
      made->entries.back().add(*variant, std::make_unique<BoundProgram>(archive, name, *variant, *made->state, device.place, device.gpu.get(), options.left));
  }
  for (const EntryPoint& entry : made->entries) entry.prepare();
  if (uploading.valid()) uploading.get();
  return made;
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& path, const LoadOptions& options) {
  const Archive archive = read_archive(path);
  const Manifest manifest = verify_archive(archive, path, options.digest);
  // beside all else, which takes the weights as they are; nobody sees the model before
  auto verifying = std::async(std::launch::async | std::launch::deferred, [&] {
    if (options.verify_weights) verify_weights(archive, manifest);
  });
  std::unique_ptr<Model> made;
  try {
    made = bind(archive, manifest, path, options);
  } catch (...) {
    // a wrong byte comes before what it may have led to
    verifying.get();
    throw;
  }
  verifying.get();
  return made;
}

}  // namespace coilwork_aot
