// From the bytes of a program to `Program`. The form is described in `coilwork_wrapper.native.wire_format`.
#pragma once
#include "program/model.hpp"

namespace coilwork {

constexpr uint32_t FORMAT_VERSION = 6;
constexpr uint32_t CONSTANT = 1u << 31;

// The number of an element type. Those that torch's C interface has no function for keep theirs from version to version.
static int32_t dtype_number(const Text& name) {
  struct Named {
    const char* name;
    int32_t number;
  };
  static const Named numbered[] = {{"qint8", 12},   {"quint8", 13},  {"qint32", 14}, {"quint4x2", 16},
                                   {"quint2x4", 17}, {"bits1x8", 18}, {"bits2x4", 19}, {"bits4x2", 20},
                                   {"bits8", 21},    {"bits16", 22},  {"float8_e8m0fnu", 44}, {"float4_e2m1fn_x2", 45}};
  Text function("aoti_torch_dtype_");
  function.append(name);
  if (auto* dtype = reinterpret_cast<int32_t (*)()>(torch_symbol(function.c_str()))) return dtype();
  for (const Named& one : numbered)
    if (strcmp(one.name, name.c_str()) == 0) return one.number;
  throw Damaged{"an element type that this torch has not"};
}

static bool is_quantized(int32_t dtype) { return (dtype >= 12 && dtype <= 14) || dtype == 16 || dtype == 17; }

class PartParser {
 public:
  PartParser(Reader& reader, Program& program, Part& part, size_t calls, size_t parts)
      : in_(reader), program_(program), part_(part), calls_(calls), parts_(parts) {}

  void parse() {
    part_.name = text();
    for (uint32_t left = in_.count(); left; --left) part_.slot_names.push_back(text());
    part_.variables = in_.u32();
    // each is defined by bytes that follow: a damaged number does not ask for memory
    if (part_.variables >= CONSTANT || part_.variables > in_.left()) throw Damaged{"too many registers"};
    for (uint32_t left = in_.count(); left; --left) part_.constants.push_back(in_.i64());
    for (uint32_t left = in_.count(); left; --left) part_.outer.push_back(variable());
    for (uint32_t left = in_.count(); left; --left) {
      const uint8_t kind = in_.u8();
      if (kind > 2) throw Damaged{"an input of no known kind"};
      part_.inputs.push_back({kind, kind == 0 ? slot() : kind == 1 ? variable() : in_.u32()});
    }
    for (uint32_t left = in_.count(); left; --left) {
      const uint32_t target = slot();
      part_.known.push_back({target, in_.below(program_.keys.size())});
    }
    for (uint32_t left = in_.count(); left; --left) part_.layouts.push_back(layout());
    for (uint32_t left = in_.count(); left; --left) {
      part_.steps.push_back(step());
      part_.steps.back().number = static_cast<uint32_t>(part_.steps.size() - 1);
    }
    if (part_.steps.empty() || part_.steps.back().code != RETURN) throw Damaged{"a program does not end in a return"};
  }

  uint32_t slot() { return in_.below(part_.slot_names.size()); }
  uint32_t variable() { return in_.below(part_.variables); }
  uint32_t readable() {
    const uint32_t number = in_.u32();
    if (number & CONSTANT) {
      if ((number & ~CONSTANT) >= part_.constants.size()) throw Damaged{"there is no such constant"};
      return part_.variables + (number & ~CONSTANT);
    }
    if (number >= part_.variables) throw Damaged{"there is no such register"};
    return number;
  }

 private:
  uint32_t text() { return in_.below(program_.strings.size()); }
  uint32_t layout_number() { return in_.below(part_.layouts.size()); }

  Layout layout() {
    Layout found;
    found.dtype_name = text();
    found.device_name = text();
    found.dtype = dtype_number(program_.strings[found.dtype_name]);
    found.quantized = is_quantized(found.dtype);
    device(program_.strings[found.device_name], found);
    found.rank = in_.u32();
    if (found.rank > MOST_DIMENSIONS) throw Damaged{"a tensor of too many dimensions"};
    for (uint32_t k = 0; k < 2 * found.rank; ++k) {
      const uint32_t number = readable();
      found.registers.push_back(number);
      found.fixed = found.fixed && number >= part_.variables;
    }
    if (found.fixed)
      for (uint32_t number : found.registers) found.values.push_back(part_.constants[number - part_.variables]);
    return found;
  }

  void device(const Text& name, Layout& found) {
    const char* colon = strchr(name.c_str(), ':');
    const Text kind(name.c_str(), colon ? static_cast<size_t>(colon - name.c_str()) : name.size());
    if (kind == "cpu") {
      found.device_type = torch.aoti_torch_device_type_cpu();
      found.on_cpu = true;
    } else if (kind == "cuda") {
      found.device_type = torch.aoti_torch_device_type_cuda();
      found.device_index = colon ? atoi(colon + 1) : 0;
      if (program_.cuda_device >= 0 && program_.cuda_device != found.device_index) program_.several_devices = true;
      program_.cuda_device = found.device_index;
    } else {
      // torch renames but one type of device, which a package of somebody else's brings
      Text function("aoti_torch_device_type_");
      function.append(kind);
      auto* type = reinterpret_cast<int32_t (*)()>(torch_symbol(function.c_str()));
      if (!type) type = reinterpret_cast<int32_t (*)()>(torch_symbol("aoti_torch_device_type_privateuse1"));
      if (!type) throw Damaged{"a device that this torch has not"};
      found.device_type = type();
      found.device_index = colon ? atoi(colon + 1) : 0;
    }
  }

  template <class Read>
  Span list(Read read) {
    // items may be lists themselves, so words are collected before they are put down
    List<uint32_t> words;
    Span span;
    span.count = in_.count();
    for (uint32_t left = span.count; left; --left) read(words);
    span.first = static_cast<uint32_t>(part_.words.size());
    part_.words.append(words.begin(), words.end());
    return span;
  }
  Span slots() {
    return list([this](List<uint32_t>& to) { to.push_back(slot()); });
  }
  Span registers() {
    return list([this](List<uint32_t>& to) { to.push_back(readable()); });
  }
  Span outputs() {
    return list([this](List<uint32_t>& to) {
      to.push_back(slot());
      to.push_back(layout_number());
    });
  }
  // u32 part, operands, registers: three words, each of the last two pairs of first and count
  Span nested() {
    const uint32_t part = in_.below(parts_);
    const Span operands = list([this](List<uint32_t>& to) {
      const uint8_t number = in_.u8();
      to.push_back(number);
      to.push_back(number ? readable() : slot());
    });
    const Span sizes = registers();
    Span all{static_cast<uint32_t>(part_.words.size()), 5};
    const uint32_t words[] = {part, operands.first, operands.count, sizes.first, sizes.count};
    part_.words.append(words, words + all.count);
    return all;
  }

  Step step() {
    Step made;
    made.code = in_.u8();
    made.place = text();
    switch (made.code) {
      case COMPUTE:  // list: operation, target, two operands
        made.list = list([this](List<uint32_t>& to) {
          const uint8_t operation = in_.u8();
          if (operation < ADD || operation > MAXIMUM) throw Damaged{"an operation that is not known"};
          to.push_back(operation);
          to.push_back(variable());
          to.push_back(readable());
          to.push_back(readable());
        });
        break;
      case BIND:  // a: register, b: slot, c: dimension, flag: is a stride, layout: rank
        made.a = variable();
        made.b = slot();
        made.c = in_.u32();
        made.flag = in_.u8();
        made.layout = static_cast<uint32_t>(in_.i32());
        break;
      case CHECK:   // a: slot, flag: 1 aligned, 2 layout promised
      case SETTLE:  // a: slot, flag: aligned
      case ALLOC:   // a: slot, flag: plain
        made.a = slot();
        made.layout = layout_number();
        made.flag = in_.u8();
        break;
      case POOL:
        made.a = slot();
        made.layout = layout_number();
        break;
      case CARVE:  // a: slot, b: pool, c: register of the offset in bytes
        made.a = slot();
        made.b = slot();
        made.c = readable();
        made.layout = layout_number();
        made.flag = in_.u8();
        break;
      case REUSE:
      case VIEW:  // a: slot, b: source, c: register of the offset in elements, kind: Seen
        made.a = slot();
        made.b = slot();
        made.kind = in_.u8();
        if (made.kind > 2) throw Damaged{"a view of no known kind"};
        made.c = readable();
        made.layout = layout_number();
        made.flag = in_.u8();
        break;
      case LAUNCH:  // a: kernel, list: slots, more: registers
        made.a = in_.below(program_.kernels.size());
        made.list = slots();
        made.more = registers();
        break;
      case CALL:  // a: call, list: kind and number of each output, more: register, output and dimension of each size
        made.a = in_.below(calls_);
        made.list = list([this](List<uint32_t>& to) {
          const uint8_t kind = in_.u8();
          to.push_back(kind);
          to.push_back(kind == TENSOR ? slot() : kind == NUMBER ? variable() : in_.u32());
        });
        made.more = list([this, &made](List<uint32_t>& to) {
          to.push_back(variable());
          to.push_back(in_.below(made.list.count));
          to.push_back(in_.u32());
        });
        break;
      case REQUIRE:  // a, b: registers, kind: relation, c: text
        made.a = readable();
        made.kind = in_.u8();
        if (made.kind > 3) throw Damaged{"a relation that is not known"};
        made.b = readable();
        made.c = text();
        break;
      case COND:  // a: slot, list and more: nested programs, rest: outputs
        made.a = slot();
        made.list = nested();
        made.more = nested();
        made.rest = outputs();
        break;
      case WHILE:
        made.list = nested();
        made.more = nested();
        made.rest = outputs();
        break;
      case REPEAT:  // a: register of the number of rounds, b: register of the round at hand; else as RUN
        made.a = readable();
        made.b = variable();
        [[fallthrough]];
      case RUN:  // list: nested program, rest: outputs
        made.list = nested();
        made.rest = outputs();
        break;
      case FREE:
        made.list = slots();
        break;
      case RETURN:
        made.list = list([this](List<uint32_t>& to) {
          const uint8_t kind = in_.u8();
          to.push_back(kind);
          to.push_back(kind == TENSOR ? slot() : kind == NUMBER ? readable() : in_.u32());
        });
        break;
      case REGION:  // kind: whether a capture region begins
        made.kind = in_.u8();
        if (made.kind > 1 || &part_ != &program_.parts[0]) throw Damaged{"a region where there can be none"};
        program_.captures = true;
        break;
      case STREAM:  // kind: Ordering, a: stream or event, b: another stream, c: device
        made.kind = in_.u8();
        if (made.kind > USE) throw Damaged{"something unknown is done to a stream"};
        made.a = in_.u32();
        made.b = in_.u32();
        made.c = text();
        program_.streams = true;
        break;
      default:
        throw Damaged{"an instruction that is not known"};
    }
    return made;
  }

  Reader& in_;
  Program& program_;
  Part& part_;
  size_t calls_, parts_;
};

static void skip_argument(Reader& in) {
  const uint8_t tag = in.u8();
  static const uint8_t bytes[] = {0, 5, 4, 8, 1, 8, 16, 4, 4, 4, 4, 0, 5};
  if (tag == 11) {
    for (uint32_t left = in.count(); left; --left) skip_argument(in);
  } else if (tag < sizeof bytes) {
    in.skip(bytes[tag]);
  } else {
    throw Damaged{"an argument of no known kind"};
  }
}

// Calls are read where their operators are looked up; here their number counts.
static uint32_t skip_calls(Reader& in) {
  const uint32_t calls = in.count();
  for (uint32_t k = 0; k < calls; ++k) {
    in.skip(8);
    for (uint32_t left = in.count(); left; --left) skip_argument(in);
    for (uint32_t left = in.count(); left; --left) {
      in.u32();
      skip_argument(in);
    }
    for (uint32_t left = in.count(); left; --left) in.skip(8);
    in.skip(9);
    for (uint32_t left = in.count(); left; --left)
      for (uint32_t steps = in.count(); steps; --steps) in.u32();
  }
  return calls;
}

static void parse_program(const char* data, size_t size, Program& program) {
  Reader in(data, size);
  if (size < 16 || memcmp(data, "coilwork", 8) != 0) throw Damaged{"these bytes are no program"};
  in.skip(8);
  if (in.u32() != FORMAT_VERSION) throw Damaged{"the program is of another version"};
  if (in.u32() != in.left()) throw Damaged{"the program is cut short"};
  for (uint32_t left = in.count(); left; --left) program.strings.push_back(in.text());
  for (uint32_t left = in.count(); left; --left) program.keys.push_back(in.below(program.strings.size()));
  for (uint32_t left = in.count(); left; --left) {
    program.kernels.push_back(Owned<Kernel>(new Kernel()));
    program.kernels.back()->name = in.below(program.strings.size());
  }
  const uint32_t calls = skip_calls(in);
  program.plans.resize(calls);
  const uint32_t parts = in.count();
  if (!parts) throw Damaged{"there is no program"};
  program.parts.resize(parts);
  for (Part& part : program.parts) PartParser(in, program, part, calls, parts).parse();
  if (!in.done()) throw Damaged{"something follows the program"};
}

}  // namespace coilwork
