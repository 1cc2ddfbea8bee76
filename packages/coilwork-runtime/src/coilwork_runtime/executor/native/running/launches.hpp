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
    int64_t grid[3];
    for (int axis = 0; axis < 3; ++axis) grid[axis] = static_cast<int64_t>(word_of(launch.grid[axis], plan));
    Passed passed;
    for (const UserLaunch::Word& word : launch.parameters) passed.words[passed.count++] = word_of(word, plan);
    put_on_gpu(launch.form, grid, passed);
  }

  // The first of `form` and those after it that is for the sizes of this launch.
  const Form& right_one(const Form& form, const Step& step) {
    int64_t sizes[MOST_WORDS];
    const uint32_t* registers = frame_.words(step.more);
    for (size_t k = 0; k < form.sizes; ++k) sizes[k] = frame_.registers[registers[k]];
    const Form* found = &form;
    while (found->otherwise && found->guard(sizes) != 0) found = found->otherwise.get();
    return *found;
  }

  // Scratch memory of one launch.
  struct Scratch {
    explicit Scratch(WorkQueue* work_queue) : work_queue(work_queue) {}
    Slot slot{};
    WorkQueue* work_queue;
    ~Scratch() { slot.release(work_queue); }
  };

  uint64_t address_of(uint32_t slot) { return reinterpret_cast<uint64_t>(data_of(memory_.slot(slot))); }

  // What one launch passes to its kernel, behind room for the grid.
  struct Passed {
    uint64_t room[GRID_WORDS + MOST_WORDS];
    uint64_t* const words = room + GRID_WORDS;
    int64_t sizes[MOST_WORDS];
    size_t count = 0;
    List<Scratch> scratch;
  };

  void read_sizes(const Form& form, const Step& step, Passed& passed) {
    const uint32_t* registers = frame_.words(step.more);
    for (size_t k = 0; k < form.sizes; ++k) passed.sizes[k] = frame_.registers[registers[k]];
  }

  // Lays out tensors, scratch memory and sizes, which are read already, in the order of the kernel's parameters.
  void lay_out(const Form& form, const Step& step, Passed& passed) {
    const uint32_t* slots = frame_.words(step.list);
    size_t tensor = 0, size = 0;
    for (const Form::Parameter& parameter : form.parameters) {
      uint64_t& word = passed.words[passed.count++];
      switch (parameter.role) {
        case Form::Parameter::POINTER:
          word = address_of(slots[tensor++]);
          break;
        case Form::Parameter::SCRATCH:
          word = scratch_memory(form, parameter.elements(passed.sizes) * parameter.item_bytes, passed);
          break;
        default: {
          const int64_t number = passed.sizes[size++];
          if (parameter.role == Form::Parameter::SIZE32 && (number > INT32_MAX || number < INT32_MIN))
            raise(call_, Fault::OVERFLOW, "size %lld does not fit the 32 bits that the kernel was compiled for", static_cast<long long>(number));
          word = static_cast<uint64_t>(number);
        }
      }
    }
  }

  void on_cpu(const Form& form, const Kernel& kernel, const Step& step) {
    Passed passed;
    read_sizes(form, step, passed);
    lay_out(form, step, passed);
    const int64_t failed = call_words(form.function, passed.words, passed.count);
    if (form.checks && failed) refuse(kernel, failed);
  }

  [[noreturn]] void refuse(const Kernel& kernel, int64_t failed) {
    fail_check(call_, kernel, failed);
    throw Failed{"a check in a kernel failed"};
  }

  void on_gpu(const Form& form, const Step& step) {
    Passed passed;
    read_sizes(form, step, passed);
    int64_t grid[3];
    for (int axis = 0; axis < 3; ++axis) {
      grid[axis] = form.grid[axis](passed.sizes);
      if (grid[axis] == 0) return;
    }
    lay_out(form, step, passed);
    put_on_gpu(form, grid, passed);
  }

  void put_on_gpu(const Form& form, const int64_t* grid, Passed& passed) {
    int64_t blocks = 1;
    for (int axis = 0; axis < 3; ++axis) {
      blocks *= grid[axis];
      if (grid[axis] == 0) return;
      if (grid[axis] < 0 || grid[axis] > INT32_MAX)
        raise(call_, Fault::OVERFLOW, "kernel %s: a grid of %lld blocks cannot be launched", form.name.c_str(), static_cast<long long>(grid[axis]));
    }
    // Triton's own scratch memory, of the launch and for profiling, comes last
    uint64_t* own = passed.words + passed.count;
    own[0] = own[1] = 0;
    if (form.compiler_scratch_bytes)
      own[0] = scratch_memory(form, blocks * static_cast<int64_t>(form.compiler_scratch_bytes), passed);
    for (uint32_t axis = 0; axis < GRID_WORDS; ++axis) passed.room[axis] = static_cast<uint64_t>(grid[axis]);
    const Work work{Work::KERNEL, GRID_WORDS + static_cast<uint32_t>(passed.count) + 2, &form, passed.room};
    const int result = call_.work_queue ? call_.work_queue->take(work) : coilwork::launch(form, work.words, work.count, call_.stream);
    if (result) refuse_work(call_, work, result);
  }

  uint64_t scratch_memory(const Form& form, int64_t bytes, Passed& passed) {
    const int32_t device = form.gpu ? form.device : -1;
    passed.scratch.reserve(form.parameters.size() + 1);  // so that slots never move
    passed.scratch.emplace_back(call_.work_queue);
    Slot& slot = passed.scratch.back().slot;
    if (void* found = memory_.bytes(bytes, device, slot)) return reinterpret_cast<uint64_t>(found);
    if (!slot.handle) slot.own(scratch_slowly(call_, bytes, device));
    return reinterpret_cast<uint64_t>(data_of(slot));
  }

  Call& call_;
  Frame& frame_;
  Memory& memory_;
};

}  // namespace coilwork
