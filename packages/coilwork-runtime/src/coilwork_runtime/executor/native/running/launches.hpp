// Launching kernels: C++ functions and GPU binaries directly, anything else by the host.
#pragma once
#include <utility>

#include "call/allocation.hpp"
#include "program/resolving.hpp"
#include "replay/issuing.hpp"
#include "running/host_calls.hpp"

namespace coilwork {

template <size_t... I>
static int64_t call_with(void* function, const uint64_t* words, std::index_sequence<I...>) {
  return reinterpret_cast<int64_t (*)(decltype((void)I, uint64_t{})...)>(function)(words[I]...);
}

// Calls a C function of `count` pointers and 64-bit integers. It may be handed more arguments than it takes: in the calling
// conventions of Linux on x86-64 and AArch64 the caller removes them. Those are zero.
static int64_t call_words(void* function, uint64_t* words, size_t count) {
#define COILWORK_UP_TO(n)                                                                  \
  if (count <= n) {                                                                        \
    memset(words + count, 0, (n - count) * sizeof *words);                                 \
    return call_with(function, words, std::make_index_sequence<n>{});                      \
  }
  COILWORK_UP_TO(4)
  COILWORK_UP_TO(6)
  COILWORK_UP_TO(8)
  COILWORK_UP_TO(12)
  COILWORK_UP_TO(16)
  COILWORK_UP_TO(32)
  COILWORK_UP_TO(64)
  COILWORK_UP_TO(128)
  COILWORK_UP_TO(MOST_WORDS)
#undef COILWORK_UP_TO
  throw Failed{"a kernel has too many parameters"};
}

class Launches {
 public:
  Launches(Call& call, Frame& frame, Memory& memory) : call_(call), frame_(frame), memory_(memory) {}

  // Calls a C++ kernel whose arguments were laid out when the program was loaded.
  void run_kernel(const Step& step) {
    if ((++call_.launches & 3) == 0) look_for_signals(call_);
    const Argument* arguments = frame_.part.arguments.data() + step.list.first;
    uint64_t words[MOST_PREPARED];
    for (uint32_t k = 0; k < step.list.count; ++k) {
      const Argument& argument = arguments[k];
      words[k] = argument.is_size ? static_cast<uint64_t>(frame_.registers[argument.number])
                                  : address_of(argument.number) + static_cast<uint64_t>(argument.offset);
    }
    const int64_t failed = call_words(step.function, words, step.list.count);
    if (step.flag && failed) refuse(*call_.program.kernels[step.a], failed);
  }

  void launch(const Step& step) {
    Kernel& kernel = *call_.program.kernels[step.a];
    const Form* form = kernel.form.load(std::memory_order_acquire);
    const bool direct = form && form->tensors == step.list.count && form->sizes == step.more.count &&
                        (!form->gpu || (form->device == call_.program.cuda_device && (call_.stream_known || form->device < 0)));
    if (!direct) return launch_slowly(call_, frame_, memory_, kernel, step);
    if ((++call_.launches & 3) == 0) look_for_signals(call_);
    if (form->otherwise) form = &right_one(*form, step);
    form->gpu ? on_gpu(*form, step) : on_cpu(*form, kernel, step);
  }

  // Launches a kernel of the user's as an earlier call did whose arguments were alike; false if there was none, or if Triton's
  // hooks are to hear of it.
  bool launch_alike(const Plan& plan) {
    if (call_.profiled) return false;
    for (const UserLaunch* one = plan.launches.first(); one; one = one->next) {
      const int32_t device = one->form.device;
      if (device != call_.program.cuda_device || (!call_.stream_known && device >= 0) || !is_for(*one, plan)) continue;
      launch_user(*one, plan);
      return true;
    }
    return false;
  }

 private:
  bool is_for(const UserLaunch& launch, const Plan& plan) {
    for (const UserLaunch::Condition& condition : launch.conditions) {
      bool holds = false;
      switch (condition.kind) {
        case UserLaunch::Condition::ALIGNED:
          holds = (address_of(plan.slots[condition.number]) % 16 == 0) == (condition.value != 0);
          break;
        case UserLaunch::Condition::EQUAL:
          holds = frame_.registers[plan.sizes[condition.number]] == condition.value;
          break;
        case UserLaunch::Condition::ALIKE:
          holds = (traits_of(frame_.registers[plan.sizes[condition.number]]) & (condition.value >> 8)) == (condition.value & 0xff);
          break;
      }
      if (!holds) return false;
    }
    return true;
  }

  // What Triton tells integers apart by.
  static int64_t traits_of(int64_t number) {
    return (number == 1 ? UserLaunch::ONE : 0) | (number % 16 == 0 ? UserLaunch::MULTIPLE_OF_16 : 0) |
           (number >= INT32_MIN && number <= INT32_MAX ? UserLaunch::OF_32_BITS : 0);
  }

  uint64_t word_of(const UserLaunch::Word& word, const Plan& plan) {
    if (word.kind == UserLaunch::Word::TENSOR) return address_of(plan.slots[word.number]);
    return word.kind == UserLaunch::Word::SIZE ? static_cast<uint64_t>(frame_.registers[plan.sizes[word.number]]) : word.bits;
  }

  void launch_user(const UserLaunch& launch, const Plan& plan) {
    int64_t grid[GRID_WORDS];
    for (uint32_t axis = 0; axis < GRID_WORDS; ++axis) grid[axis] = static_cast<int64_t>(word_of(launch.grid[axis], plan));
    Passed passed;
    for (const UserLaunch::Word& word : launch.parameters) passed.words[passed.count++] = word_of(word, plan);
    Around around(*this);
    if (surround(launch.form, grid, passed, around)) put_on_gpu(launch.form, passed);
  }

  const Form& right_one(const Form& form, const Step& step) {
    int64_t sizes[MOST_WORDS];
    const uint32_t* registers = frame_.words(step.more);
    for (size_t k = 0; k < form.sizes; ++k) sizes[k] = frame_.registers[registers[k]];
    return select_version(form, sizes);
  }

  // Scratch memory of one launch.
  struct Scratch {
    explicit Scratch(WorkQueue* work_queue) : work_queue(work_queue) {}
    Slot slot{};
    WorkQueue* work_queue;
    ~Scratch() { slot.release(work_queue); }
  };

  uint64_t address_of(uint32_t slot) { return reinterpret_cast<uint64_t>(data_of(memory_.slot(slot))); }

  // What laying out a launch takes of a running program (gpu_launch.hpp).
  struct Around {
    Launches& launches;
    const uint32_t* slots;
    List<Scratch> held;

    explicit Around(Launches& launches) : launches(launches), slots(nullptr) {}
    Around(Launches& launches, const Step& step) : launches(launches), slots(launches.frame_.words(step.list)) {}
    uint64_t address(size_t tensor) { return launches.address_of(slots[tensor]); }
    uint64_t scratch(const Form& form, int64_t bytes) { return launches.scratch_memory(form, bytes, held); }
    template <class... Given>
    [[noreturn]] void overflow(const char* format, Given... given) {
      raise(launches.call_, Fault::OVERFLOW, format, given...);
    }
  };

  void read_sizes(const Form& form, const Step& step, Passed& passed) {
    const uint32_t* registers = frame_.words(step.more);
    for (size_t k = 0; k < form.sizes; ++k) passed.sizes[k] = frame_.registers[registers[k]];
  }

  void on_cpu(const Form& form, const Kernel& kernel, const Step& step) {
    Passed passed;
    Around around(*this, step);
    read_sizes(form, step, passed);
    lay_out(form, passed, around);
    const int64_t failed = call_words(form.function, passed.words, passed.count);
    if (form.checks && failed) refuse(kernel, failed);
  }

  [[noreturn]] void refuse(const Kernel& kernel, int64_t failed) {
    fail_check(call_, kernel, failed);
    throw Failed{"a check in a kernel failed"};
  }

  void on_gpu(const Form& form, const Step& step) {
    Passed passed;
    Around around(*this, step);
    read_sizes(form, step, passed);
    if (lay_out_on_gpu(form, passed, around)) put_on_gpu(form, passed);
  }

  void put_on_gpu(const Form& form, const Passed& passed) {
    const Work work{Work::KERNEL, passed.all(), &form, passed.room};
    const int result = call_.work_queue ? call_.work_queue->take(work) : coilwork::launch(form, work.words, work.count, call_.stream);
    if (result) refuse_work(call_, work, result);
  }

  uint64_t scratch_memory(const Form& form, int64_t bytes, List<Scratch>& held) {
    const int32_t device = form.gpu ? form.device : -1;
    held.reserve(form.parameters.size() + 1);  // so that slots never move
    held.emplace_back(call_.work_queue);
    Slot& slot = held.back().slot;
    if (void* found = memory_.bytes(bytes, device, slot)) return reinterpret_cast<uint64_t>(found);
    if (!slot.handle) slot.own(scratch_slowly(call_, bytes, device));
    return reinterpret_cast<uint64_t>(data_of(slot));
  }

  Call& call_;
  Frame& frame_;
  Memory& memory_;
};

}  // namespace coilwork
