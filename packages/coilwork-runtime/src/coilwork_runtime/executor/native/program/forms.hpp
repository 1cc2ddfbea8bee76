// Forms of kernels: made of their manifests, and read from the bytes of a launch descriptor
// (coilwork_runtime/launch_descriptor.py).
#pragma once
#include <stdlib.h>

#include <utility>

#include "interfaces/modules.hpp"
#include "program/manifest.hpp"
#include "program/model.hpp"

namespace coilwork {

static void* address(Reader& in) { return reinterpret_cast<void*>(static_cast<uintptr_t>(in.u64())); }

// The bytes of an element of scratch memory, from the name of its type, such as `bf16`.
static uint32_t item_bytes(const Text& dtype) {
  if (dtype == "bool") return 1;
  const char* letter = dtype.c_str();
  while (*letter && (*letter < '0' || *letter > '9')) ++letter;
  const int bits = atoi(letter);
  if (bits < 8 || bits % 8 != 0) throw Damaged::field("scratch memory has elements of ", dtype);
  return static_cast<uint32_t>(bits / 8);
}

static void parse_parameters(const Manifest& manifest, bool gpu, const int64_t* values, Form& form) {
  for (const Manifest::Argument& argument : manifest.args) {
    Form::Parameter made{Form::Parameter::POINTER, 0, {}};
    if (argument.role == "size") {
      made.role = gpu && argument.dtype == "i32" ? Form::Parameter::SIZE32 : Form::Parameter::SIZE64;
      ++form.sizes;
    } else if (argument.role == "scratch") {
      made.role = Form::Parameter::SCRATCH;
      made.item_bytes = item_bytes(argument.dtype);
      made.elements = argument.elements.bind(values);
    } else {
      ++form.tensors;
    }
    form.parameters.push_back(std::move(made));
  }
  if (form.parameters.size() + 2 > MOST_WORDS) throw Damaged{"a kernel has too many parameters"};
}

// The form of a kernel whose compile-time parameters have these values, without its code.
static Owned<Form> make_form(const Manifest& manifest, bool gpu, const List<int64_t>& values) {
  if (values.size() != manifest.parameters.size()) throw Damaged{"a kernel has other parameters than its manifest"};
  auto form = Owned<Form>(new Form());
  form->gpu = gpu;
  form->name = Text(manifest.name.c_str());
  form->checks = !gpu && !manifest.checks.empty();
  parse_parameters(manifest, gpu, values.data(), *form);
  if (!gpu) return form;
  for (size_t axis = 0; axis < 3; ++axis)
    form->grid[axis] = axis < manifest.grid.size() ? manifest.grid[axis].bind(values.data()) : Formula::number(1);
  return form;
}

// The form of a kernel with one version, or with all of them, one behind the other; `make(k)` makes that of version `k`.
template <class Make>
static Owned<Form> chain_forms(const Manifest& manifest, size_t count, Make make) {
  Owned<Form> first;
  Owned<Form>* end = &first;
  for (size_t k = 0; k < count; ++k) {
    *end = make(k);
    if (k + 1 == count) break;
    const List<int64_t> none(manifest.parameters.size());
    (*end)->guard = manifest.versions[k].guard.empty() ? Formula::number(0) : manifest.versions[k].guard.bind(none.data());
    end = &(*end)->otherwise;
  }
  return first;
}

// Puts a kernel's code on a GPU, and how it is launched into the form. Throws DriverRefusal.
inline void load_code(const GpuDevice& device, const GpuCode& code, Form& form) {
  form.how = device.load(code);
  form.function = form.how.function;
  form.set_context = reinterpret_cast<void*>(device.driver.cuCtxSetCurrent);
  form.context = device.context;
  form.device = device.index;
  form.compiler_scratch_bytes = code.scratch_bytes;
}

// u64 launch, u64 set_context, u64 context, i32 device, u32 threads, u32 shared bytes, u64 scratch bytes, u64 launch_ex or 0,
// u32 blocks of a cluster, u8 cooperative
static void parse_entry(Reader& in, Form& form) {
  HowToLaunch& how = form.how;
  how.function = form.function;
  how.launch = reinterpret_cast<DriverLaunch>(address(in));
  form.set_context = address(in);
  form.context = address(in);
  form.device = in.i32();
  how.threads = in.u32();
  how.shared_bytes = in.u32();
  form.compiler_scratch_bytes = in.u64();
  how.launch_ex = reinterpret_cast<DriverLaunchEx>(address(in));
  how.cluster = in.u32();
  how.cooperative = in.u8();
}

// u8 gpu, u64 function, list of i64 values of the manifest's parameters; GPUs: an entry
static Owned<Form> parse_binding(Reader& in, const Manifest& manifest) {
  const bool gpu = in.u8();
  void* function = address(in);
  List<int64_t> values;
  for (uint32_t left = in.count(); left; --left) values.push_back(in.i64());
  auto form = make_form(manifest, gpu, values);
  form->function = function;
  if (gpu) parse_entry(in, *form);
  return form;
}

// u32 length and record of the manifest, then a list of bindings: one, or one for each of its versions
static Owned<Form> read_form(const char* data, size_t size) try {
  Reader in(data, size);
  const Manifest manifest = parse_manifest(in.block());
  const uint32_t count = in.count();
  if (count != 1 && (!count || count != manifest.versions.size())) throw Damaged{"a kernel has other versions than its manifest"};
  auto first = chain_forms(manifest, count, [&](size_t) { return parse_binding(in, manifest); });
  if (!in.done()) throw Damaged{"something follows a kernel"};
  return first;
} catch (const DividedByZero&) {
  throw Damaged{"a kernel's sizes are divided by zero"};
} catch (const Overflow&) {
  throw Damaged{"a kernel's sizes do not fit 64 bits"};
}

}  // namespace coilwork
