// Reading how calls and kernels are made: bytes that `coilwork_runtime.executor` writes for this process.
#pragma once
#include <stdlib.h>

#include <utility>

#include "interfaces/cublaslt.hpp"
#include "program/forms.hpp"
#include "program/parsing.hpp"

namespace coilwork {

static Value parse_value(Reader& in, PartParser& part) {
  Value made;
  const uint8_t kind = in.u8();
  made.kind = static_cast<Value::Kind>(kind);
  switch (kind) {
    case Value::NONE:
    case Value::UNDEFINED:
      break;
    case Value::TENSOR:
    case Value::TENSOR_AT:
      made.number = part.slot();
      break;
    case Value::SIZE:
    case Value::REAL_OF_SIZE:
      made.number = part.readable();
      break;
    case Value::INT:
    case Value::BOOL:
    case Value::CODE:
    case Value::CODE_AT:
      made.integer = in.i64();
      break;
    case Value::REAL:
      made.real = in.f64();
      break;
    case Value::TEXT:
      made.text = in.text();
      break;
    case Value::DEVICE:
    case Value::DEVICE_AT:
      made.integer = in.i32();
      made.number = static_cast<uint32_t>(in.i32());
      break;
    case Value::LIST:
    case Value::INTS:
    case Value::TENSORS:
    case Value::BOOLS:
    case Value::INTS_AT:
      for (uint32_t left = in.count(); left; --left) made.items.push_back(parse_value(in, part));
      break;
    case Value::SOME:
    case Value::INT_AT:
    case Value::REAL_AT:
      made.items.push_back(parse_value(in, part));
      break;
    default:
      throw Damaged{"a value of no known kind"};
  }
  return made;
}

static Owned<Plan::Multiplication> parse_multiplication(Reader& in, PartParser& part) {
  auto made = Owned<Plan::Multiplication>(new Plan::Multiplication());
  made->batched = in.u8();
  made->first = part.slot();
  made->second = part.slot();
  made->result = part.slot();
  if (in.u8()) made->bias = part.slot();
  made->activation = in.u8();
  made->device = in.i32();
  if (made->activation && made->activation != lt::EPILOGUE_RELU && made->activation != lt::EPILOGUE_GELU)
    throw Damaged{"a product with an activation of no known kind"};
  return made;
}

static Owned<Plan::Convolving> parse_convolving(Reader& in, PartParser& part) {
  auto made = Owned<Plan::Convolving>(new Plan::Convolving());
  for (uint32_t& slot : made->slots)
    if (in.u8()) slot = part.slot();
  for (uint32_t left = in.count(); left; --left) made->computed.push_back(in.i32());
  List<int64_t>* const lists[] = {&made->stride, &made->padding, &made->dilation};
  for (List<int64_t>* list : lists)
    for (uint32_t left = in.count(); left; --left) list->push_back(in.i64());
  made->groups = in.i64();
  made->device = in.i32();
  if (made->computed.size() > 3 || made->padding.size() != made->stride.size() || made->dilation.size() != made->stride.size())
    throw Damaged{"a convolution of no known form"};
  return made;
}

// u8 route, what the route needs, then slots and registers for the Python callable, u32 results, u8 single,
// u8 what a library may do instead: 0 nothing;
// 1 a matrix product: u8 batched, slots of operands and result, u8 whether there is a slot of a bias and that slot,
// u8 activation, i32 device;
// 2 a convolution: per role u8 whether there is a slot and that slot, list of i32 role per result, lists of i64 stride, padding
// and dilation, i64 groups, i32 device
template <class MakePart>
static void parse_plan(const char* data, size_t size, MakePart make_part, Plan& plan) {
  Reader in(data, size);
  PartParser part = make_part(in);
  const uint8_t route = in.u8();
  if (route > Plan::LAUNCH) throw Damaged{"a route that is not known"};
  plan.route = static_cast<Plan::Route>(route);
  if (route == Plan::FUNCTION) {
    plan.function = address(in);
    plan.in_place = in.u8();
  } else if (route == Plan::DISPATCHER) {
    plan.name = in.text();
    plan.overload = in.text();
  }
  for (uint32_t left = in.count(); left; --left) plan.results.push_back(in.u8());
  for (uint32_t left = in.count(); left; --left) plan.values.push_back(parse_value(in, part));
  for (const Value& value : plan.values) plan.words += 2 + 2 * value.items.size();
  for (uint32_t left = in.count(); left; --left) plan.slots.push_back(part.slot());
  for (uint32_t left = in.count(); left; --left) plan.sizes.push_back(part.readable());
  plan.wanted = in.u32();
  plan.single = in.u8();
  const uint8_t instead = in.u8();
  if (instead == 1) plan.multiplication = parse_multiplication(in, part);
  if (instead == 2) plan.convolving = parse_convolving(in, part);
  if (instead > 2) throw Damaged{"a library that is not known"};
  if (!in.done()) throw Damaged{"something follows a plan"};
}

Owned<Form> parse_form(const char* data, size_t size) { return read_form(data, size); }

static UserLaunch::Word parse_word(Reader& in, const Plan& plan) {
  UserLaunch::Word made{};
  const uint8_t kind = in.u8();
  made.kind = static_cast<UserLaunch::Word::Kind>(kind);
  if (kind == UserLaunch::Word::NUMBER) {
    made.bits = in.u64();
    return made;
  }
  made.number = in.u32();
  if (kind > UserLaunch::Word::NUMBER || made.number >= (kind == UserLaunch::Word::TENSOR ? plan.slots : plan.sizes).size())
    throw Damaged{"a launch of a user's kernel has an argument that its call does not"};
  return made;
}

static UserLaunch::Condition parse_condition(Reader& in, const Plan& plan) {
  UserLaunch::Condition made{};
  const uint8_t kind = in.u8();
  made.kind = static_cast<UserLaunch::Condition::Kind>(kind);
  made.number = in.u32();
  made.value = in.i64();
  const size_t count = (kind == UserLaunch::Condition::ALIGNED ? plan.slots : plan.sizes).size();
  if (kind > UserLaunch::Condition::ALIKE || made.number >= count) throw Damaged{"a launch of a user's kernel has a condition of no known kind"};
  return made;
}

// text name, u64 function, an entry, a list of conditions (u8 kind, u32 number, i64 value), a list of words (u8 kind, then u32
// number or u64 bits) and three more for the grid
Owned<UserLaunch> parse_user_launch(const Plan& plan, const char* data, size_t size) {
  Reader in(data, size);
  auto made = Owned<UserLaunch>(new UserLaunch());
  Form& form = made->form;
  form.gpu = true;
  form.name = in.text();
  form.function = address(in);
  parse_entry(in, form);
  for (uint32_t left = in.count(); left; --left) made->conditions.push_back(parse_condition(in, plan));
  for (uint32_t left = in.count(); left; --left) made->parameters.push_back(parse_word(in, plan));
  if (made->parameters.size() + 2 > MOST_WORDS) throw Damaged{"a kernel has too many parameters"};
  for (UserLaunch::Word& extent : made->grid) {
    extent = parse_word(in, plan);
    if (extent.kind == UserLaunch::Word::TENSOR) throw Damaged{"a grid has a tensor for an extent"};
  }
  if (!in.done()) throw Damaged{"something follows a launch"};
  return made;
}

}  // namespace coilwork
