// Launches of a program's GPU kernels: by the code of the native executor, from the same manifests.
#include "program/forms.hpp"
#include "program/gpu_launch.hpp"

namespace {

using namespace coilwork;

constexpr int OPERATOR_FAILED = 1, DIVISION_FAILED = 6, OVERFLOW_FAILED = 7;  // as in support.hpp

struct Refused {};

void put(char* error, size_t room, const char* what, const char* name) { snprintf(error, room, "%s%s", what, name); }

// Calls `make`; null where bytes are damaged or the driver refuses.
template <class Make>
const void* make_safely(char* error, size_t room, Make make) try {
  return make().release();
} catch (const Damaged& damaged) {
  put(error, room, damaged.what, damaged.name);
  return nullptr;
} catch (const DriverRefusal& refusal) {
  put(error, room, refusal.what.c_str(), "");
  return nullptr;
} catch (const DividedByZero&) {
  put(error, room, "a kernel's sizes are divided by zero", "");
  return nullptr;
} catch (const Overflow&) {
  put(error, room, "a kernel's sizes do not fit 64 bits", "");
  return nullptr;
}

struct Around {
  const CoilworkLaunch& given;

  uint64_t address(size_t tensor) { return reinterpret_cast<uint64_t>(given.addresses[tensor]); }
  uint64_t scratch(const Form&, int64_t bytes) { return given.scratch(given.context, bytes); }
  template <class... Words>
  [[noreturn]] void overflow(const char* format, Words... words) {
    snprintf(given.error, given.room, format, words...);
    throw Refused{};
  }
};

int launch_form(const Form& form, const CoilworkLaunch& given) {
  Passed passed;
  Around around{given};
  memcpy(passed.sizes, given.sizes, given.numbers * sizeof *given.sizes);
  const Form& chosen = form.otherwise ? select_version(form, passed.sizes) : form;
  if (!lay_out_on_gpu(chosen, passed, around)) return 0;
  const int result = launch(chosen, passed.room, passed.all(), given.stream);
  if (!result) return 0;
  snprintf(given.error, given.room, "kernel %s: the driver refuses a launch of %llu x %llu x %llu blocks: error %d", chosen.name.c_str(),
           static_cast<unsigned long long>(passed.room[0]), static_cast<unsigned long long>(passed.room[1]),
           static_cast<unsigned long long>(passed.room[2]), result);
  return OPERATOR_FAILED;
}

}  // namespace

extern "C" {

const void* coilwork_read_form(const char* data, size_t size, char* error, size_t room) {
  return make_safely(error, room, [&] { return read_form(data, size); });
}

const void* coilwork_load_form(const CoilworkEmbedded* kernel, int32_t index, char* error, size_t room) {
  return make_safely(error, room, [&] {
    const GpuDevice device(index);
    const Manifest manifest = parse_manifest(Reader(kernel->manifest, kernel->size));
    return chain_forms(manifest, kernel->versions, [&](size_t k) {
      const CoilworkImage& image = kernel->images[k];
      List<int64_t> values;
      for (uint32_t number = 0; number < image.value_count; ++number) values.push_back(image.values[number]);
      auto form = make_form(manifest, true, values);
      GpuCode code;
      code.name = image.name;
      code.image = image.code;
      code.shared_bytes = image.shared_bytes;
      code.threads = image.threads;
      code.cluster = image.cluster;
      code.cooperative = image.cooperative;
      code.scratch_bytes = image.scratch_bytes;
      load_code(device, code, *form);
      return form;
    });
  });
}

int coilwork_launch(const void* known, const CoilworkLaunch* given) try {
  const Form& form = *static_cast<const Form*>(known);
  const bool fits = form.gpu && form.tensors == given->tensors && form.sizes == given->numbers && given->numbers <= MOST_WORDS;
  if (!fits || (form.device >= 0 && form.device != given->device)) return -1;
  return launch_form(form, *given);
} catch (const Refused&) {
  return OVERFLOW_FAILED;
} catch (const Overflow&) {
  put(given->error, given->room, "a kernel's sizes do not fit 64 bits", "");
  return OVERFLOW_FAILED;
} catch (const DividedByZero&) {
  put(given->error, given->room, "a kernel's sizes are divided by zero", "");
  return DIVISION_FAILED;
}

}  // extern "C"
