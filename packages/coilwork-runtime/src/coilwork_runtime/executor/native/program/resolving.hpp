// What is known of memory before a program runs is settled when it is loaded. A program is a straight line, so who holds a block
// at each step is known: views need no counted references, views at fixed places cost nothing, and the arguments of a C++ kernel
// lie ready. A block is released where it was, when the last name on it goes. Programs that are watched stay as written.
#pragma once
#include <utility>

#include "program/model.hpp"

namespace coilwork {

constexpr size_t MOST_PREPARED = 64;  // parameters of a kernel that is run as RUN_KERNEL

class Resolver {
 public:
  Resolver(Program& program, Part& part) : program_(program), part_(part), names_(part.slot_names.size()) {}

  void resolve() {
    if (!look()) return;
    for (Part::Input& input : part_.inputs)
      if (input.kind == 0) begin(input.number);
    for (Part::Known& known : part_.known) begin(known.slot);
    List<Step> steps;
    for (Step& step : part_.steps) rewrite(step, steps);
    part_.steps = std::move(steps);
    // as seen from the root of a name's memory
    List<uint8_t> shared(names_.size());
    for (const Name& name : names_) shared[name.root] |= name.shared;
    part_.shared = std::move(shared);
  }

 private:
  struct Name {
    bool defined = false;
    bool whole = false;      // something reads the slot itself, not only the address
    bool viewed = false;
    bool shared = false;     // an operator is given it, or the caller, who may keep a tensor on its memory
    bool placed = false;     // its memory begins `offset` bytes after that of `base`, and it has no slot of its own
    bool same = false;       // its layout is that of the root's tensor, which begins where it does
    uint32_t root = 0;       // whose handle keeps the memory
    uint32_t base = 0;
    int64_t offset = 0;
    uint32_t holders = 0;    // of a root: names on its memory
  };

  // Notes how names are used. False where a name has several meanings, which the program's writer does not do.
  bool look() {
    bool plain = true;
    for (Part::Input& input : part_.inputs)
      if (input.kind == 0) plain = define(input.number) && plain;
    for (Part::Known& known : part_.known) plain = define(known.slot) && plain;
    for (const Step& step : part_.steps) {
      switch (step.code) {
        case ALLOC:
        case POOL:
          plain = define(step.a) && plain;
          break;
        case CARVE:
        case REUSE:
        case VIEW:
          plain = define(step.a) && plain;
          if (own_tensor(step)) names_[step.b].whole = names_[step.b].shared = true;
          names_[step.b].viewed = true;
          break;
        case BIND:
          names_[step.b].whole = true;
          break;
        case CHECK:
        case SETTLE:  // may give the name other memory
          plain = !names_[step.a].viewed && plain;
          names_[step.a].whole = true;
          break;
        case LAUNCH:
          if (!is_prepared(step)) whole(step.list, 1);
          break;
        case CALL:
          for (uint32_t slot : program_.plans[step.a]->slots) {
            names_[slot].whole = true;
            names_[slot].shared = names_[slot].shared || keeps_operands(*program_.plans[step.a]);
          }
          for (uint32_t k = 0; k < step.list.count; ++k)
            if (word(step.list, 2 * k) == TENSOR) plain = define_whole(word(step.list, 2 * k + 1)) && plain;
          break;
        case COND:
        case WHILE:
        case RUN:
        case REPEAT:
          if (step.code == COND) names_[step.a].whole = names_[step.a].shared = true;
          operands(step.list);
          if (step.code == COND || step.code == WHILE) operands(step.more);
          for (uint32_t k = 0; k < step.rest.count; ++k) plain = define_whole(word(step.rest, 2 * k)) && plain;
          break;
        case RETURN:
          for (uint32_t k = 0; k < step.list.count; ++k)
            if (word(step.list, 2 * k) == TENSOR) {
              Name& result = names_[word(step.list, 2 * k + 1)];
              result.whole = result.shared = true;
            }
          break;
        default:
          break;
      }
    }
    return plain;
  }

  bool define(uint32_t slot) {
    const bool first = !names_[slot].defined;
    names_[slot].defined = true;
    return first;
  }
  bool define_whole(uint32_t slot) {
    names_[slot].whole = true;
    return define(slot);
  }
  void whole(Span slots, uint32_t stride) {
    for (uint32_t k = 0; k < slots.count; ++k) names_[word(slots, k * stride)].whole = true;
  }
  void operands(Span nested) {
    const Span given{word(nested, 1), word(nested, 2)};
    for (uint32_t k = 0; k < given.count; ++k)
      if (word(given, 2 * k) == 0) {
        Name& operand = names_[word(given, 2 * k + 1)];
        operand.whole = operand.shared = true;
      }
  }
  uint32_t word(Span span, uint32_t k) const { return part_.words[span.first + k]; }

  // Views that are made as tensors, with a reference of their own.
  static bool own_tensor(const Step& step) {
    return step.code != CARVE && static_cast<Seen>(step.kind) == Seen::BITS;
  }

  // Whether what an operator returns may lie in what it is given. Products and convolutions have memory of their own.
  static bool keeps_operands(const Plan& plan) { return !plan.multiplication && !plan.convolving; }

  bool is_prepared(const Step& step) const {
    const Form* form = program_.kernels[step.a]->form.load(std::memory_order_acquire);
    if (!form || form->gpu || form->tensors != step.list.count || form->sizes != step.more.count) return false;
    for (const Form::Parameter& parameter : form->parameters)
      if (parameter.role == Form::Parameter::SCRATCH) return false;
    return form->parameters.size() <= MOST_PREPARED;
  }

  // A name with memory of its own.
  void begin(uint32_t slot) {
    Name& name = names_[slot];
    name.root = name.base = slot;
    name.same = true;
    name.holders = 1;
  }

  void rewrite(Step& step, List<Step>& steps) {
    switch (step.code) {
      case ALLOC:
      case POOL:
        begin(step.a);
        break;
      case CARVE:
      case REUSE:
      case VIEW:
        return view(step, steps);
      case LAUNCH:
        if (is_prepared(step)) prepare(step);
        break;
      case CALL:
        for (uint32_t k = 0; k < step.list.count; ++k)
          if (word(step.list, 2 * k) == TENSOR) begin(word(step.list, 2 * k + 1));
        break;
      case COND:
      case WHILE:
      case RUN:
      case REPEAT:
        for (uint32_t k = 0; k < step.rest.count; ++k) begin(word(step.rest, 2 * k));
        break;
      case FREE: {
        List<uint32_t> ended(part_.words.begin() + step.list.first,
                             part_.words.begin() + step.list.first + step.list.count);
        return release(step, ended, steps);
      }
      default:
        break;
    }
    steps.push_back(step);
  }

  void view(Step& step, List<Step>& steps) {
    const bool reuse = step.code == REUSE;
    if (own_tensor(step)) {
      if (reuse) step.code = VIEW;
      begin(step.a);
      steps.push_back(step);
    } else {
      point(step, steps);
    }
    if (!reuse) return;
    Step freeing = step;
    freeing.code = FREE;
    release(freeing, List<uint32_t>(&step.b, &step.b + 1), steps);
  }

  void point(Step& step, List<Step>& steps) {
    const Name& source = names_[step.b];
    Name& target = names_[step.a];
    const Layout& layout = part_.layouts[step.layout];
    const bool same = step.code != CARVE && static_cast<Seen>(step.kind) == Seen::SAME;
    const bool fixed = same || step.c >= part_.variables;
    const int64_t width =
        step.code == CARVE ? 1 : static_cast<int64_t>(torch.aoti_torch_dtype_element_size(layout.dtype));
    const int64_t bytes = same || !fixed ? 0 : part_.constants[step.c - part_.variables] * width;
    target.root = source.root;
    target.same = same && source.same;
    ++names_[target.root].holders;
    step.offset = source.offset + bytes;
    step.b = source.base;
    // a slot that is no root may be released before this view is
    if (fixed && !target.whole && source.base == source.root) {
      target.placed = true;
      target.base = source.base;
      target.offset = step.offset;
      return;
    }
    target.base = step.a;
    step.code = POINT;
    step.root = target.root;
    step.scale = fixed ? 0 : width;
    step.flag = target.same;
    steps.push_back(step);
  }

  void prepare(Step& step) {
    const Form* form = program_.kernels[step.a]->form.load(std::memory_order_acquire);
    const Span given = step.list, sizes = step.more;
    uint32_t tensor = 0, size = 0;
    step.list.first = static_cast<uint32_t>(part_.arguments.size());
    for (const Form::Parameter& parameter : form->parameters) {
      if (parameter.role == Form::Parameter::POINTER) {
        const Name& name = names_[word(given, tensor++)];
        part_.arguments.push_back({name.base, false, name.offset});
      } else {
        part_.arguments.push_back({word(sizes, size++), true, 0});
      }
    }
    step.code = RUN_KERNEL;
    step.list.count = static_cast<uint32_t>(form->parameters.size());
    step.flag = form->checks;
    step.function = form->function;
  }

  // The names in `ended` go; memory that nobody holds any more is released.
  void release(Step& step, const List<uint32_t>& ended, List<Step>& steps) {
    List<uint32_t> released;
    for (uint32_t slot : ended) {
      const Name& name = names_[slot];
      if (slot != name.root && !name.placed) released.push_back(slot);
      if (--names_[name.root].holders == 0) released.push_back(name.root);
    }
    if (released.empty()) return;
    step.list.first = static_cast<uint32_t>(part_.words.size());
    step.list.count = static_cast<uint32_t>(released.size());
    part_.words.append(released.begin(), released.end());
    steps.push_back(step);
  }

  Program& program_;
  Part& part_;
  List<Name> names_;
};

}  // namespace coilwork
