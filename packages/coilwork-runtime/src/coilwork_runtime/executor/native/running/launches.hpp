// Launching kernels: C++ functions and GPU binaries directly, anything else through its Python launcher.
#pragma once
#include <utility>

#include "call/memory.hpp"
#include "program/resolving.hpp"

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
    if (!direct) return through_python(kernel, step);
    if ((++call_.launches & 3) == 0) look_for_signals(call_);
    form->gpu ? on_gpu(*form, step) : on_cpu(*form, kernel, step);
  }

 private:
  // Scratch memory of one launch.
  struct Scratch {
    Slot slot{};
    ~Scratch() { slot.release(); }
  };

  void gather(const Form& form, const Step& step, int64_t* sizes) {
    const uint32_t* registers = frame_.words(step.more);
    for (size_t k = 0; k < form.sizes; ++k) sizes[k] = frame_.registers[registers[k]];
  }

  uint64_t address_of(uint32_t slot) { return reinterpret_cast<uint64_t>(data_of(memory_.slot(slot))); }

  void on_cpu(const Form& form, const Kernel& kernel, const Step& step) {
    uint64_t words[MOST_WORDS];
    int64_t sizes[MOST_WORDS];
    gather(form, step, sizes);
    const uint32_t* slots = frame_.words(step.list);
    std::vector<Scratch> scratch;
    size_t count = 0, tensor = 0, size = 0;
    for (const Form::Parameter& parameter : form.parameters) {
      switch (parameter.role) {
        case Form::Parameter::POINTER:
          words[count++] = address_of(slots[tensor++]);
          break;
        case Form::Parameter::SCRATCH:
          words[count++] = scratch_memory(parameter, sizes, scratch, form.parameters.size(), -1);
          break;
        default:
          words[count++] = static_cast<uint64_t>(sizes[size++]);
      }
    }
    const int64_t failed = call_words(form.function, words, count);
    if (form.checks && failed) refuse(kernel, failed);
  }

  [[noreturn]] void refuse(const Kernel& kernel, int64_t failed) {
    WithPython python(call_);
    slowly(call_, "failed_check", "(OL)", kernel.launcher, static_cast<long long>(failed));
    throw Failed{"a check in a kernel failed"};
  }

  void on_gpu(const Form& form, const Step& step) {
    uint64_t words[MOST_WORDS];
    void* parameters[MOST_WORDS];
    int64_t sizes[MOST_WORDS];
    gather(form, step, sizes);
    int64_t grid[3], blocks = 1;
    for (int axis = 0; axis < 3; ++axis) {
      grid[axis] = form.grid[axis](sizes);
      blocks *= grid[axis];
      if (grid[axis] == 0) return;
      if (grid[axis] < 0 || grid[axis] > INT32_MAX)
        raise(PyExc_OverflowError, "kernel %s: a grid of %lld blocks cannot be launched", form.name.c_str(), grid[axis]);
    }
    const uint32_t* slots = frame_.words(step.list);
    std::vector<Scratch> scratch;
    size_t count = 0, tensor = 0, size = 0;
    for (const Form::Parameter& parameter : form.parameters) {
      switch (parameter.role) {
        case Form::Parameter::POINTER:
          words[count++] = address_of(slots[tensor++]);
          break;
        case Form::Parameter::SCRATCH:
          words[count++] = scratch_memory(parameter, sizes, scratch, form.parameters.size() + 1, form.device);
          break;
        default: {
          const int64_t number = sizes[size++];
          if (parameter.role == Form::Parameter::SIZE32 && (number > INT32_MAX || number < INT32_MIN))
            raise(PyExc_OverflowError, "size %lld does not fit the 32 bits that the kernel was compiled for", number);
          words[count++] = static_cast<uint64_t>(number);
        }
      }
    }
    words[count] = words[count + 1] = 0;
    if (form.compiler_scratch_bytes) {
      Form::Parameter own{Form::Parameter::SCRATCH, static_cast<uint32_t>(form.compiler_scratch_bytes), {}};
      words[count] = scratch_bytes(blocks * own.item_bytes, scratch, form.parameters.size() + 1, form.device);
    }
    for (size_t k = 0; k < count + 2; ++k) parameters[k] = &words[k];
    int result = form.how(grid, call_.stream, parameters);
    if (result == INVALID_CONTEXT && form.set_context && form.context) {
      // a thread that has not used the device yet
      if (reinterpret_cast<SetContext>(form.set_context)(form.context) == 0) result = form.how(grid, call_.stream, parameters);
    }
    if (result) {
      WithPython python(call_);
      PyErr_Format(PyExc_RuntimeError, "kernel %s: the driver refuses a launch of %lld x %lld x %lld blocks: error %d",
                   form.name.c_str(), static_cast<long long>(grid[0]), static_cast<long long>(grid[1]),
                   static_cast<long long>(grid[2]), result);
      throw_python();
    }
  }

  template <class T>
  [[noreturn]] void raise(PyObject* type, const char* format, T value) {
    WithPython python(call_);
    PyErr_Format(type, format, static_cast<long long>(value));
    throw_python();
  }
  template <class T>
  [[noreturn]] void raise(PyObject* type, const char* format, const char* name, T value) {
    WithPython python(call_);
    PyErr_Format(type, format, name, static_cast<long long>(value));
    throw_python();
  }

  uint64_t scratch_memory(const Form::Parameter& parameter, const int64_t* sizes, std::vector<Scratch>& scratch,
                          size_t most, int32_t device) {
    return scratch_bytes(parameter.elements(sizes) * parameter.item_bytes, scratch, most, device);
  }

  uint64_t scratch_bytes(int64_t bytes, std::vector<Scratch>& scratch, size_t most, int32_t device) {
    scratch.reserve(most);  // so that slots never move
    scratch.emplace_back();
    Slot& slot = scratch.back().slot;
    if (void* found = memory_.bytes(bytes, device, slot)) return reinterpret_cast<uint64_t>(found);
    if (!slot.handle) {
      WithPython python(call_);
      slot.own(tensor_slowly(call_, "scratch", "(Li)", static_cast<long long>(bytes), int(device)));
    }
    return reinterpret_cast<uint64_t>(data_of(slot));
  }

  void through_python(Kernel& kernel, const Step& step) {
    const uint32_t* slots = frame_.words(step.list);
    for (uint32_t k = 0; k < step.list.count; ++k) memory_.tensor(slots[k]);
    WithPython python(call_);
    call_.program.counters.python_launches.fetch_add(1, std::memory_order_relaxed);
    std::vector<AtenTensorHandle> handles;
    for (uint32_t k = 0; k < step.list.count; ++k) handles.push_back(alias(memory_.tensor(slots[k])));
    const Reference tensors = tensors_from(call_.program, handles.data(), handles.size());
    const uint32_t* registers = frame_.words(step.more);
    const Reference arguments = checked(PyTuple_New(step.list.count + step.more.count));
    for (uint32_t k = 0; k < step.list.count; ++k) {
      PyObject* tensor = PyList_GetItem(tensors.get(), k);
      Py_XINCREF(tensor);
      PyTuple_SET_ITEM(arguments.get(), k, tensor);
    }
    for (uint32_t k = 0; k < step.more.count; ++k) {
      PyObject* size = PyLong_FromLongLong(frame_.registers[registers[k]]);
      PyTuple_SET_ITEM(arguments.get(), step.list.count + k, size);
    }
    checked(PyObject_CallObject(kernel.launcher, arguments.get()));
    if (kernel.settle && !kernel.form.load(std::memory_order_acquire)) settle(kernel);
    if (PyErr_CheckSignals() != 0) throw_python();
  }

  // Asks for the form of a kernel that has chosen its configuration; null until then.
  void settle(Kernel& kernel) {
    const Reference bytes = checked(PyObject_CallNoArgs(kernel.settle));
    if (bytes.get() == Py_None) return;
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) throw_python();
    const Form* form = parse_form(data, static_cast<size_t>(size)).release();
    const Form* expected = nullptr;
    if (!kernel.form.compare_exchange_strong(expected, form, std::memory_order_acq_rel)) delete form;
  }

  Call& call_;
  Frame& frame_;
  Memory& memory_;
};

}  // namespace coilwork
