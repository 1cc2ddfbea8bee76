// Running a program: its instructions in order, and the programs nested in it.
#pragma once
#include "call/input_checks.hpp"
#include "running/calls.hpp"

namespace coilwork {

class Runner {
 public:
  Runner(Call& call, Frame& frame)
      : call_(call),
        frame_(frame),
        memory_(call, frame),
        launches_(call, frame, memory_),
        calls_(call, frame, memory_, launches_) {}

  // Runs to the end; returns the last step, which says what the results are.
  const Step& run() {
    try {
      if (call_.program.watch) return run_watched();
      if (call_.profiled) return run_observed();
      if (call_.timing) return run_timed(*call_.timing);
      const Step* steps = frame_.part.steps.data();
      for (;; ++frame_.at) {
        const Step& step = steps[frame_.at];
        if (step.code == RUN_KERNEL) {
          launches_.run_kernel(step);
        } else {
          if (step.code == RETURN) return step;
          run(step);
        }
      }
    } catch (Raised& raised) {
      annotate_here(call_, frame_, raised);
      throw;
    } catch (const Failed& failed) {
      refuse(Fault::RUNTIME, failed.what);
    } catch (const DividedByZero&) {
      refuse(Fault::DIVISION, "integer division or modulo by zero");
    } catch (const Overflow&) {
      refuse(Fault::RUNTIME, "a size does not fit 64 bits");
    } catch (const Damaged& damaged) {
      char text[256];
      snprintf(text, sizeof text, "%s%s", damaged.what, damaged.name);
      refuse(Fault::RUNTIME, text);
    }
  }

  Memory& memory() { return memory_; }

  static void place_constants(const Program& program, Frame& frame) {
    for (const Part::Known& known : frame.part.known) {
      Slot& slot = frame.slots[known.slot];
      slot.handle = program.constants[known.key];
      slot.state = Slot::BORROWED;
    }
  }

  // A new handle on a result.
  AtenTensorHandle result(uint32_t slot) { return alias(memory_.tensor(slot)); }

 private:
  // Raises an error with the place where it happened.
  [[noreturn]] void refuse(Fault fault, const char* text) {
    try {
      raise_text(call_, fault, text);
    } catch (Raised& raised) {
      annotate_here(call_, frame_, raised);
      throw;
    }
  }

  const Step& run_observed() {
    const Program& program = call_.program;
    Observed whole(call_, program.text(frame_.part.name), false);
    for (;; ++frame_.at) {
      const Step& step = frame_.part.steps[frame_.at];
      if (step.code == RETURN) {
        whole.leave();
        return step;
      }
      if (step.code != RUN_KERNEL && step.code != LAUNCH) {
        run(step);
        continue;
      }
      Observed launch(call_, program.text(program.kernels[step.a]->name), true);
      if (step.code == LAUNCH)
        launches_.launch(step);
      else
        launches_.run_kernel(step);
      launch.leave();
    }
  }

  const Step& run_timed(const Timing& timing) {
    Timing::Entry* entries = timing.of(call_.program, frame_.part);
    uint64_t since = precise_ns();
    for (;; ++frame_.at) {
      const Step& step = frame_.part.steps[frame_.at];
      if (step.code == RETURN) return step;
      if (step.code == RUN_KERNEL)
        launches_.run_kernel(step);
      else
        run(step);
      since = timing.add(entries[frame_.at], since);
    }
  }

  const Step& run_watched() {
    const bool outermost = &frame_.part == &call_.program.parts[0];
    tell(call_, memory_, frame_, outermost ? "call" : "enter", NONE);
    for (;; ++frame_.at) {
      const Step& step = frame_.part.steps[frame_.at];
      watch_before(step);
      if (step.code == RETURN) return step;
      run(step);
      watch_after(step);
    }
  }

  void run(const Step& step) {
    switch (step.code) {
      case COMPUTE:
        compute(step);
        break;
      case BIND:
        memory_.bind(step);
        break;
      case CHECK:
        check_input(call_, memory_, step);
        break;
      case ALLOC:
      case POOL:
        memory_.allocate(step);
        break;
      case CARVE:
        memory_.carve(step);
        break;
      case REUSE:
      case VIEW:
        memory_.view(step);
        break;
      case POINT:
        memory_.point(step);
        break;
      case LAUNCH:
        launches_.launch(step);
        break;
      case CALL:
        calls_.run(step);
        break;
      case SETTLE:
        memory_.settle(step.a, step.layout, step.flag ? Memory::ALIGNED : Memory::ANYWHERE);
        break;
      case REQUIRE:
        require(step);
        break;
      case COND:
      case WHILE:
      case RUN:
      case REPEAT:
        nest(step);
        break;
      case STREAM:
        order_streams(call_, step);
        break;
      case REGION:
        if (call_.work_queue) call_.work_queue->capture(step.kind != 0);
        break;
      default:
        release(step);
    }
  }

  void compute(const Step& step) {
    const uint32_t* words = frame_.words(step.list);
    int64_t* registers = frame_.registers;
    for (uint32_t k = 0; k < step.list.count; ++k, words += 4)
      registers[words[1]] = apply(static_cast<uint8_t>(words[0]), registers[words[2]], registers[words[3]]);
  }

  void require(const Step& step) {
    const int64_t left = frame_.registers[step.a], right = frame_.registers[step.b];
    const bool relations[] = {left == right, left != right, left < right, left <= right};
    if (relations[step.kind]) return;
    raise_text(call_, Fault::RUNTIME, call_.program.text(step.c));
  }

  void release(const Step& step) {
    const uint32_t* slots = frame_.words(step.list);
    for (uint32_t k = 0; k < step.list.count; ++k) frame_.slots[slots[k]].release(call_.work_queue);
  }

  void watch_before(const Step& step) {
    const uint32_t* words = frame_.words(step.list);
    if (step.code == FREE)
      for (uint32_t k = 0; k < step.list.count; ++k) tell(call_, memory_, frame_, "free", words[k]);
    if (step.code != RETURN) return;
    for (uint32_t k = 0; k < step.list.count; ++k)
      if (words[2 * k] == TENSOR) tell(call_, memory_, frame_, "return", words[2 * k + 1]);
    tell(call_, memory_, frame_, "leave", NONE);
  }

  void watch_after(const Step& step) {
    switch (step.code) {
      case ALLOC:
      case POOL:
        return tell(call_, memory_, frame_, "alloc", step.a);
      case CARVE:
        return tell(call_, memory_, frame_, "carve", step.a);
      case VIEW:
        return tell(call_, memory_, frame_, "view", step.a);
      case REUSE:
        tell(call_, memory_, frame_, "view", step.a);
        if (frame_.slots[step.b].state == Slot::EMPTY) tell(call_, memory_, frame_, "taken", step.b);
        return;
      case SETTLE:
        return tell(call_, memory_, frame_, "result", step.a);
      default:
        return;
    }
  }

  bool truth(uint32_t slot) {
    bool value = false;
    if (torch.aoti_torch_item_bool(memory_.tensor(slot), &value) != 0) throw Failed{"a condition is not a bool"};
    return value;
  }

  // A nested program: where its operands and sizes are.
  struct Nested {
    uint32_t part;
    Span operands, sizes;
  };
  Nested nested(Span span) const {
    const uint32_t* words = frame_.words(span);
    return {words[0], {words[1], words[2]}, {words[3], words[4]}};
  }

  void nest(const Step& step) {
    // nested programs run any number of times
    const bool outermost = &frame_.part == &call_.program.parts[0];
    if (call_.work_queue && outermost) call_.work_queue->suspend(true);
    if (step.code == WHILE)
      loop(step);
    else if (step.code == REPEAT)
      repeat(step);
    else if (step.code == COND)
      run_part(step, nested(truth(step.a) ? step.list : step.more), Memory::COPIED);
    else
      run_part(step, nested(step.list), Memory::ANYWHERE);
    if (call_.work_queue && outermost) call_.work_queue->suspend(false);
  }

  // Runs a part once; its results are settled as `how` says.
  template <typename How>
  void run_part(const Step& step, const Nested& inner, How how) {
    const Part& part = call_.program.parts[inner.part];
    if (part.replacement) {
      const List<AtenTensorHandle> made = run_replacement(call_, frame_, memory_, part, inner.operands, inner.sizes, step.rest.count);
      for (uint32_t k = 0; k < step.rest.count; ++k) define(frame_.words(step.rest)[2 * k], made[k]);
      return settle_all(step, how);
    }
    Frame frame(part);
    hand_over(inner, frame);
    Runner runner(call_, frame);
    const Step& last = runner.run();
    const uint32_t* outputs = frame_.words(step.rest);
    const uint32_t* results = frame.words(last.list);
    if (last.list.count < step.rest.count) throw Damaged{"a nested program has fewer results than are taken"};
    for (uint32_t k = 0; k < step.rest.count; ++k) take(results + 2 * k, runner, outputs[2 * k]);
    settle_all(step, how);
  }

  // Gives the results of a loop what it begins with.
  void begin(const Step& step, const Nested& body) {
    const uint32_t* outputs = frame_.words(step.rest);
    if (body.operands.count < step.rest.count) throw Damaged{"a loop carries more than it is given"};
    const uint32_t* first = frame_.words(body.operands);
    for (uint32_t k = 0; k < step.rest.count; ++k) define(outputs[2 * k], alias(memory_.tensor(first[2 * k + 1])));
  }

  // Runs the body of a loop once: its results are what is carried from here on.
  void run_round(const Step& step, const Nested& body) {
    const uint32_t* outputs = frame_.words(step.rest);
    const uint32_t carried = step.rest.count;
    Frame frame(call_.program.parts[body.part]);
    hand_over(body, frame, outputs, carried);
    Runner runner(call_, frame);
    const Step& last = runner.run();
    if (last.list.count != carried) throw Damaged{"a loop's body has other results than it carries"};
    const uint32_t* results = frame.words(last.list);
    for (uint32_t k = 0; k < carried; ++k) take(results + 2 * k, runner, outputs[2 * k]);
  }

  void repeat(const Step& step) {
    const Nested body = nested(step.list);
    begin(step, body);
    const int64_t rounds = frame_.registers[step.a];
    for (int64_t number = 0; number < rounds; ++number) {
      look_for_signals(call_);
      frame_.registers[step.b] = number;
      run_round(step, body);
    }
    settle_all(step, Memory::COPIED);
  }

  void loop(const Step& step) {
    const Nested condition = nested(step.list), body = nested(step.more);
    begin(step, body);
    const uint32_t* outputs = frame_.words(step.rest);
    const uint32_t carried = step.rest.count;
    if (condition.operands.count < carried) throw Damaged{"a loop carries more than it is given"};
    while (true) {
      look_for_signals(call_, true);
      bool go_on = false;
      {
        Frame frame(call_.program.parts[condition.part]);
        hand_over(condition, frame, outputs, carried);
        Runner runner(call_, frame);
        const Step& last = runner.run();
        const uint32_t* results = frame.words(last.list);
        if (last.list.count < 1 || results[0] != TENSOR) throw Damaged{"a loop's condition has no result"};
        go_on = runner.truth(results[1]);
      }
      if (call_.program.watch) tell(call_, memory_, frame_, "decided", NONE);
      if (!go_on) break;
      run_round(step, body);
    }
    settle_all(step, Memory::COPIED);
  }

  // Hands operands over; of a loop, the first `carried` are what its results, in `outputs`, are at present.
  void hand_over(const Nested& inner, Frame& to, const uint32_t* outputs = nullptr, uint32_t carried = 0) {
    const Part& part = to.part;
    const uint32_t* operands = frame_.words(inner.operands);
    const uint32_t* sizes = frame_.words(inner.sizes);
    if (inner.operands.count != part.inputs.size() || inner.sizes.count != part.outer.size())
      throw Damaged{"a nested program takes other inputs"};
    for (uint32_t k = 0; k < inner.operands.count; ++k, operands += 2) {
      const Part::Input& input = part.inputs[k];
      const uint32_t slot = k < carried ? outputs[2 * k] : operands[1];
      if (input.kind == 0 && operands[0] == 0)
        to.slots[input.number].own(alias(memory_.tensor(slot)));
      else if (input.kind == 1 && operands[0] == 1)
        to.registers[input.number] = frame_.registers[operands[1]];
      else if (input.kind != 2)
        throw Damaged{"a nested program takes other inputs"};
    }
    for (uint32_t k = 0; k < inner.sizes.count; ++k) to.registers[part.outer[k]] = frame_.registers[sizes[k]];
    place_constants(call_.program, to);
  }

  void take(const uint32_t* result, Runner& from, uint32_t slot) {
    if (result[0] != TENSOR) throw Failed{"a nested program returned no tensor"};
    define(slot, from.result(result[1]));
  }

  // Gives a name a tensor, instead of the one that it may have.
  void define(uint32_t slot, AtenTensorHandle made) {
    const bool watched = call_.program.watch != nullptr;
    if (watched && memory_.slot(slot).handle) tell(call_, memory_, frame_, "taken", slot);
    memory_.slot(slot).own(made);
    if (watched) tell(call_, memory_, frame_, "view", slot);
  }

  // Results have memory of their own: a branch or loop may return its operand, or one tensor twice, and is copied.
  template <typename How>
  void settle_all(const Step& step, How how) {
    const uint32_t* outputs = frame_.words(step.rest);
    for (uint32_t k = 0; k < step.rest.count; ++k) {
      memory_.settle(outputs[2 * k], outputs[2 * k + 1], how);
      if (!call_.program.watch) continue;
      tell(call_, memory_, frame_, "taken", outputs[2 * k]);
      tell(call_, memory_, frame_, "result", outputs[2 * k]);
    }
  }

  Call& call_;
  Frame& frame_;
  Memory memory_;
  Launches launches_;
  Calls calls_;
};

}  // namespace coilwork
