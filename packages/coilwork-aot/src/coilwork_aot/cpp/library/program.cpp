#include "program.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "call/surroundings.hpp"
#include "gpu.hpp"
#include "libraries/opening.hpp"
#include "program/plans.hpp"
#include "program/resolving.hpp"
#include "refusal.hpp"
#include "replay/replayed_call.hpp"
#include "roles.hpp"
#include "running/steps.hpp"

namespace coilwork_aot {

using namespace coilwork;

namespace {

using KernelManifest = coilwork::Manifest;

[[noreturn]] void refuse_part(const char* code, const std::string& entry, const std::string& why) {
  refuse_package(code, "a part of entry point " + entry + " cannot be read: " + why);
}

[[noreturn]] void refuse_python(const std::string& entry, const std::string& what) {
  refuse_target("needs-python", "entry point " + entry + " needs Python: " + what);
}

std::string describe(const Damaged& damaged) { return std::string(damaged.what) + damaged.name; }

// A library that was loaded from memory.
class Library {
 public:
  // Null if it does not load.
  static std::unique_ptr<Library> open(std::string_view image) {
    const int file = memfd_create("coilwork-kernel", MFD_CLOEXEC);
    if (file < 0) return nullptr;
    size_t written = 0;
    while (written < image.size()) {
      const ssize_t more = write(file, image.data() + written, image.size() - written);
      if (more <= 0) break;
      written += static_cast<size_t>(more);
    }
    void* handle = written == image.size() ? dlopen(make_path(file).c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
    close(file);
    return handle ? std::unique_ptr<Library>(new Library(handle)) : nullptr;
  }
  ~Library() { dlclose(handle_); }
  Library(const Library&) = delete;

  void* find(const char* name) const { return dlsym(handle_, name); }

 private:
  explicit Library(void* handle) : handle_(handle) {}

  // The loader takes a path that it knows for the library that it knows, and numbers of files come again: so no path does.
  static std::string make_path(int file) {
    static std::atomic<uint64_t> opened{0};
    std::string path = "/proc/self/fd/";
    for (uint64_t number = ++opened; number; number >>= 1) path += number & 1 ? ".//" : "./";
    return path + std::to_string(file);
  }

  void* handle_;
};

// The program with other texts in its table, such as names of devices.
std::string replace_text(std::string_view data, const std::string& old, const std::string& other) {
  Reader in(data.data(), data.size());
  in.skip(12);
  in.u32();
  const auto append = [](std::string& to, uint32_t number) { to.append(reinterpret_cast<const char*>(&number), 4); };
  std::string body;
  const uint32_t count = in.count();
  append(body, count);
  for (uint32_t left = count; left; --left) {
    const Text text = in.text();
    const std::string given(text.c_str(), text.size()), &kept = given == old ? other : given;
    append(body, static_cast<uint32_t>(kept.size()));
    body += kept;
  }
  const Text rest = in.rest();
  body.append(rest.c_str(), rest.size());
  std::string made(data.substr(0, 12));
  append(made, static_cast<uint32_t>(body.size()));
  return made + body;
}

// A kernel of a file of kernels, whose text is left out.
List<KernelManifest> read_kernels(std::string_view data) {
  constexpr char MAGIC[] = "coilwork-kernels";
  constexpr size_t size = sizeof MAGIC - 1;
  if (data.size() < size + 8 || data.substr(0, size) != MAGIC) throw Damaged{"they do not begin like kernels"};
  Reader in(data.data() + size, data.size() - size);
  if (in.u32() != 1) throw Damaged{"kernels of another schema"};
  List<KernelManifest> made;
  for (uint32_t left = in.count(); left; --left) {
    made.push_back(parse_manifest(in.block()));
    in.block();
  }
  if (!in.done()) throw Damaged{"something follows the last kernel"};
  return made;
}

// Numbers of the kernel's compile-time parameters in a configuration.
List<int64_t> read_values(const KernelManifest& manifest, const std::map<std::string, int64_t>& config) {
  List<int64_t> values;
  for (const Text& name : manifest.parameters) {
    const auto found = config.find(name.c_str());
    if (found == config.end()) throw Damaged::field("a configuration lacks ", name);
    values.push_back(found->second);
  }
  return values;
}

// The number of the version that a configuration is of: the parameter VERSION counts those behind it.
size_t find_version(const KernelManifest& manifest, const std::map<std::string, int64_t>& config) {
  const size_t last = manifest.versions.size() ? manifest.versions.size() - 1 : 0;
  const auto found = config.find("VERSION");
  const int64_t behind = found == config.end() ? 0 : found->second;
  if (behind < 0 || static_cast<size_t>(behind) > last) throw Damaged{"a configuration is of no version"};
  return last - static_cast<size_t>(behind);
}

// The library that torch has loaded; null if there is none. Opened once.
template <class Vendors>
Vendors* find_loaded() {
  static Vendors* const found = [] {
    const char* missing = nullptr;
    return open_loaded<Vendors>(&missing);
  }();
  return found;
}

double read_number(AtenTensorHandle tensor) {
  static const auto asked = reinterpret_cast<AOTITorchError (*)(AtenTensorHandle, double*)>(torch_symbol("aoti_torch_item_float64"));
  const int32_t wanted = torch.aoti_torch_dtype_bool();
  const TensorFacts facts(tensor);
  Place cpu;
  cpu.type = torch.aoti_torch_device_type_cpu();
  bool truth = false;
  if (facts.dtype == wanted && torch.aoti_torch_item_bool(tensor, &truth) == 0) return truth;
  // exact for each element type but integers beyond 2^53, which Python rounds, too
  const int32_t real = find_dtype("f64");
  Handle copied = make_empty(facts.sizes, facts.strides, facts.rank, real, cpu);
  copy(copied.get(), tensor);
  double number = 0;
  if (!asked || asked(copied.get(), &number)) throw Refusal(COILWORK_CALL_ERROR, "call-failed", "a result is no number: " + read_torch_error());
  return number;
}

}  // namespace

struct BoundProgram::Inside {
  Program program;
  Roles roles;
  Place place;
  std::vector<std::unique_ptr<Library>> libraries;

  ~Inside() {
    if (program.replay) drop_replay(program.replay);
    for (auto& kernel : program.kernels) delete kernel->form.exchange(nullptr);
    for (AtenTensorHandle constant : program.constants) torch.aoti_torch_delete_tensor_object(constant);
  }

  void parse(const std::string& entry, std::string_view data, std::string_view calls) {
    program.kinds = {~uint64_t{0}, ~uint64_t{0}};
    program.strict = true;
    parse_program(data.data(), data.size(), program);
    if (program.streams) refuse_python(entry, "its work is on several streams");
    for (const Text& text : program.strings) program.resizes = program.resizes || strstr(text.c_str(), "resize_storage_bytes_");
    parse_calls(entry, calls);
  }

  // Of each call the first plan whose function this torch has (coilwork_runtime/executor/portable_plans.py).
  void parse_calls(const std::string& entry, std::string_view data) {
    constexpr char MAGIC[] = "coilwork-plans";
    constexpr size_t size = sizeof MAGIC - 1;
    if (data.size() < size || data.substr(0, size) != MAGIC) throw Damaged{"they do not begin like plans"};
    Reader in(data.data() + size, data.size() - size);
    if (in.u32() != 1) throw Damaged{"plans of another schema"};
    struct Chosen {
      Text reason, name;
      void* function = nullptr;
      Text data;
      bool found = false;
    };
    List<Chosen> chosen;
    for (uint32_t left = in.count(); left; --left) {
      Chosen one;
      one.reason = in.text();
      for (uint32_t plans = in.count(); plans; --plans) {
        Text name = in.text(), plan = in.text();
        void* function = name.size() ? torch_symbol(name.c_str()) : nullptr;
        if (one.found || (name.size() && !function)) continue;
        one.name = std::move(name);
        one.function = function;
        one.data = std::move(plan);
        one.found = true;
      }
      chosen.push_back(std::move(one));
    }
    if (!in.done() || chosen.size() != program.plans.size()) throw Damaged{"there are other plans than calls"};
    for (Part& part : program.parts)
      for (const Step& step : part.steps) {
        if (step.code != CALL) continue;
        Chosen& one = chosen[step.a];
        if (!one.found) refuse_python(entry, one.reason.size() ? one.reason.c_str() : "torch lacks a function that it calls");
        auto plan = Owned<Plan>(new Plan());
        const auto make_part = [&](Reader& reader) { return PartParser(reader, program, part, program.plans.size(), program.parts.size()); };
        parse_plan(one.data.c_str(), one.data.size(), make_part, *plan);
        if (plan->route == Plan::PYTHON || (plan->route == Plan::FUNCTION) != (one.function != nullptr)) throw Damaged{"a plan of no known form"};
        if (plan->route == Plan::FUNCTION) {
          plan->function = one.function;
          plan->name = Text(one.name.c_str());
        }
        put_on_device(*plan);
        program.plans[step.a] = std::move(plan);
      }
  }

  // Plans are made for the GPU of the export.
  void put_on_device(Plan& plan) const {
    if (place.is_cpu()) return;
    if (plan.multiplication) plan.multiplication->device = place.index;
    if (plan.convolving) plan.convolving->device = place.index;
    for (Value& value : plan.values) put_on_device(value);
  }
  void put_on_device(Value& value) const {
    const bool names_device = value.kind == Value::DEVICE || value.kind == Value::DEVICE_AT;
    if (names_device && value.integer == torch.aoti_torch_device_type_cuda()) value.number = static_cast<uint32_t>(place.index);
    for (Value& item : value.items) put_on_device(item);
  }

  // Once all else is bound.
  void open_libraries(const Variant& variant, const Left& left) {
    if (place.is_cpu()) return;
    if (variant.rounds_freely && !left.libraries) {
      program.products = find_loaded<ProductLibrary>();
      program.convolutions = find_loaded<ConvolutionLibrary>();
    }
    if (left.graphs || !program.captures || program.several_devices) return;
    if (GraphLibrary* graphs = find_loaded<GraphLibrary>()) program.replay = make_replay(*graphs, program.cuda_device);
  }

  void bind_kernels(const Archive& archive, const std::string& entry, const Variant& variant, Gpu* gpu) {
    const List<KernelManifest> manifests = read_kernels(archive.view(*archive.find(variant.kernels)));
    for (auto& kernel : program.kernels) {
      const std::string name = program.text(kernel->name);
      const KernelManifest* manifest = nullptr;
      for (const KernelManifest& one : manifests)
        if (one.name == name.c_str()) manifest = &one;
      const auto found = variant.binaries.find(name);
      if (!manifest || found == variant.binaries.end() || found->second.empty())
        refuse_package("missing-kernel", "entry point " + entry + " launches " + name + ", which is not there");
      for (const Text& check : manifest->checks) kernel->checks.push_back(Text(check.c_str()));
      kernel->form = (manifest->language == "triton" ? bind_on_gpu(archive, entry, *manifest, found->second, gpu)
                                                     : bind_on_cpu(archive, *manifest, found->second[0]))
                         .release();
      program.on_gpu = program.on_gpu || kernel->form.load(std::memory_order_relaxed)->gpu;
    }
  }

  Owned<Form> bind_on_cpu(const Archive& archive, const KernelManifest& manifest, const Binary& binary) {
    auto library = Library::open(archive.view(*archive.find(binary.record)));
    void* function = library ? library->find(manifest.entry.c_str()) : nullptr;
    if (!function)
      refuse_package("damaged-kernels", std::string("the library of kernel ") + manifest.name.c_str() + " does not load: " + (library ? "it lacks the kernel" : read_loader_error()));
    libraries.push_back(std::move(library));
    auto form = make_form(manifest, false, read_values(manifest, binary.config));
    form->function = function;
    return form;
  }

  static std::string read_loader_error() {
    const char* error = dlerror();
    return error ? error : "no memory for it";
  }

  Owned<Form> bind_on_gpu(const Archive& archive, const std::string& entry, const KernelManifest& manifest, const std::vector<Binary>& binaries, Gpu* gpu) {
    if (!gpu) throw Damaged{"a kernel of a GPU in a program for the CPU"};
    const size_t count = manifest.versions.empty() ? 1 : manifest.versions.size();
    std::vector<const Binary*> versions(count, nullptr);
    for (const Binary& one : binaries) {
      const Binary*& version = versions[find_version(manifest, one.config)];
      if (!version) version = &one;
    }
    if (!versions.back()) refuse_package("missing-kernel", std::string("kernel ") + manifest.name.c_str() + " of entry point " + entry + " has no binary for all sizes");
    return chain_forms(manifest, count, [&](size_t k) {
      // in place of one that does not compile there is that for all sizes
      const Binary& binary = versions[k] ? *versions[k] : *versions.back();
      auto form = make_form(manifest, true, read_values(manifest, binary.config));
      try {
        gpu->load(decode_binary(archive.view(*archive.find(binary.record))), *form);
      } catch (const NotThere& error) {
        refuse_part("damaged-kernels", entry, error.what());
      }
      return form;
    });
  }

  void bind_constants(const Variant& variant, const State& state) {
    const auto tensors = state.tensors();
    for (uint32_t key : program.keys) {
      const auto found = variant.constants.find(program.text(key));
      if (found == variant.constants.end()) throw Damaged{"a constant is missing"};
      program.constants.push_back(share((*tensors)[found->second]->get()).release());
    }
  }

  std::vector<Result> execute(const std::vector<Given>& inputs) const {
    program.counters.calls.fetch_add(1, std::memory_order_relaxed);
    Call call(program);
    Frame frame(program.parts[0]);
    const Part& part = frame.part;
    if (inputs.size() != part.inputs.size()) throw Failed{"a program takes another number of inputs"};
    for (size_t k = 0; k < inputs.size(); ++k) {
      const Part::Input& input = part.inputs[k];
      if (input.kind == 0) {
        if (!inputs[k].tensor) throw Failed{"an input is no tensor"};
        frame.slots[input.number].handle = inputs[k].tensor;
        frame.slots[input.number].state = Slot::BORROWED;
      } else if (input.kind == 1) {
        if (!inputs[k].is_number) throw Failed{"an input is no number"};
        frame.registers[input.number] = inputs[k].number;
      }
    }
    Runner::place_constants(program, frame);
    read_settings(call);
    call.outermost = &frame;
    Runner runner(call, frame);
    const Surroundings surroundings(call);
    const Step& last = run_instructions(call, runner);
    const uint32_t* words = frame.words(last.list);
    std::vector<Result> results(last.list.count);
    for (size_t k = 0; k < results.size(); ++k) {
      if (words[2 * k] == TENSOR) {
        results[k].kind = COILWORK_TENSOR;
        results[k].tensor = Handle(runner.result(words[2 * k + 1]));
      } else if (words[2 * k] == NUMBER) {
        results[k].kind = COILWORK_INTEGER;
        results[k].integer = frame.registers[words[2 * k + 1]];
      }
    }
    return results;
  }

  // With stretches of work as graphs of the driver's if calls are alike.
  static const Step& run_instructions(Call& call, Runner& runner) {
    ReplayedCall replayed(call);
    const Step& last = runner.run();
    replayed.finish();
    return last;
  }

  // Copies of inputs that are to lie otherwise, by role.
  Handle prepare(const Role& role, const Given& given) const {
    if (!given.tensor) return Handle();
    const TensorFacts facts(given.tensor);
    void* data = nullptr;
    torch.aoti_torch_get_data_ptr(given.tensor, &data);
    const bool fits = role.act == Role::ALIGNED ? reinterpret_cast<uintptr_t>(data) % 16 == 0
                                                : std::equal(role.strides.begin(), role.strides.end(), facts.strides, facts.strides + facts.rank);
    if (fits) return Handle();
    const int64_t* strides = role.act == Role::ALIGNED ? facts.strides : role.strides.data();
    Place there = place;
    there.type = facts.device;
    there.index = facts.device_index;
    Handle made = make_empty(facts.sizes, strides, facts.rank, facts.dtype, there);
    copy(made.get(), given.tensor);
    return made;
  }

  static Result read(const Role& role, const std::vector<Given>& inputs, std::vector<Result>& results) {
    Result made;
    if (role.source_place == Role::IN) {
      const Given& given = inputs[role.source];
      made.kind = given.tensor ? COILWORK_TENSOR : COILWORK_INTEGER;
      made.integer = given.number;
      if (given.tensor) made.tensor = share(given.tensor);
      return made;
    }
    Result& other = results.at(role.source);
    made.kind = other.kind;
    made.integer = other.integer;
    made.real = other.real;
    if (other.tensor.get()) made.tensor = share(other.tensor.get());
    return made;
  }

  void finish(const Role& role, const std::vector<Given>& inputs, std::vector<Result>& results) const {
    if (role.position >= results.size()) throw Failed{"a role speaks of a result that there is not"};
    Result& result = results[role.position];
    switch (role.act) {
      case Role::SAME:
        result = read(role, inputs, results);
        break;
      case Role::CONSTANT:
      case Role::NUMBER: {
        const double number = role.act == Role::CONSTANT ? role.constant
                              : result.tensor.get()      ? read_number(result.tensor.get())
                                                         : static_cast<double>(result.integer);
        result = Result();
        result.kind = role.is_truth ? COILWORK_TRUTH : COILWORK_REAL;
        result.integer = number != 0;
        result.real = number;
        break;
      }
      case Role::STRIDED:
        if (Handle made = prepare(role, {result.tensor.get(), 0, false}); made.get()) result.tensor = std::move(made);
        break;
      default:
        break;
    }
  }
};

BoundProgram::BoundProgram(const Archive& archive, const std::string& entry, const Variant& variant, const State& state, const Place& place,
                           Gpu* gpu, const Left& left)
    : inside_(std::make_unique<Inside>()) {
  if (!variant.refusal.empty()) refuse_python(entry, variant.refusal);
  inside_->place = place;
  std::string needs_python;
  try {
    std::string renamed;
    std::string_view program = archive.view(*archive.find(variant.program));
    for (const std::string& device : variant.devices) {
      const bool moves = !place.is_cpu() && device.substr(0, device.find(':')) == "cuda" && device != place.text;
      if (moves) program = renamed = replace_text(program, device, place.text);
    }
    inside_->roles = parse_roles(variant.roles, needs_python);
    inside_->parse(entry, program, archive.view(*archive.find(variant.calls)));
  } catch (const Damaged& damaged) {
    refuse_part("damaged-program", entry, describe(damaged));
  } catch (const NotThere& error) {
    refuse_part("damaged-program", entry, error.what());
  }
  if (!needs_python.empty()) refuse_python(entry, "of its role '" + needs_python + "'");
  try {
    inside_->bind_kernels(archive, entry, variant, gpu);
  } catch (const Damaged& damaged) {
    refuse_part("damaged-kernels", entry, describe(damaged));
  } catch (const DividedByZero&) {
    refuse_part("damaged-kernels", entry, "sizes are divided by zero");
  } catch (const Overflow&) {
    refuse_part("damaged-kernels", entry, "sizes do not fit 64 bits");
  }
  try {
    inside_->bind_constants(variant, state);
    for (Part& part : inside_->program.parts) Resolver(inside_->program, part).resolve();
    inside_->open_libraries(variant, left);
  } catch (const Damaged& damaged) {
    refuse_part("damaged-program", entry, describe(damaged));
  }
}

BoundProgram::~BoundProgram() = default;

void BoundProgram::prepare() const {
  const Program& program = inside_->program;
  const auto multiplies = [](const auto& plan) { return plan && plan->multiplication; };
  if (program.products && std::any_of(program.plans.begin(), program.plans.end(), multiplies)) program.products->prepare(inside_->place.index);
}

void BoundProgram::count(CoilworkCounters& counters) const {
  const Counters& own = inside_->program.counters;
  counters.calls += own.calls.load();
  counters.products += own.products.load();
  counters.convolutions += own.convolutions.load();
  counters.graphs += own.graphs.load();
  counters.work_in_graphs += own.work_in_graphs.load();
}

std::vector<Result> BoundProgram::run(const std::vector<Given>& inputs) const try {
  const Inside& inside = *inside_;
  if (inside.roles.rows.empty()) return inside.execute(inputs);
  if (inputs.size() != inside.roles.takes) throw Failed{"a program takes another number of inputs"};
  std::vector<Given> given = inputs;
  std::vector<Handle> copies(inside.roles.rows.size());
  for (size_t k = copies.size(); k-- > 0;) {
    const Role& role = inside.roles.rows[k];
    if (role.place != Role::IN || (role.act != Role::ALIGNED && role.act != Role::STRIDED)) continue;
    copies[k] = inside.prepare(role, given[role.position]);
    if (copies[k].get()) given[role.position].tensor = copies[k].get();
  }
  std::vector<Result> results = inside.execute(given);
  for (size_t k = 0; k < copies.size(); ++k) {
    const Role& role = inside.roles.rows[k];
    if (role.place == Role::OUT)
      inside.finish(role, inputs, results);
    else if (role.updates && copies[k].get())
      copy(inputs[role.position].tensor, copies[k].get());
  }
  if (inside.roles.gives >= 0 && static_cast<size_t>(inside.roles.gives) < results.size()) results.resize(static_cast<size_t>(inside.roles.gives));
  return results;
} catch (const Raised& raised) {
  throw Refusal(COILWORK_CALL_ERROR, "call-failed", raised.text.c_str());
} catch (const Failed& failed) {
  throw Refusal(COILWORK_CALL_ERROR, "call-failed", failed.what);
}

}  // namespace coilwork_aot
