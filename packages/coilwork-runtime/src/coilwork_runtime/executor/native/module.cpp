// coilwork_executor: Program(data, plans, kernels, constants, torch, faults, fallback, watch) is a callable over one list of
// inputs, which it empties, or over the inputs one by one, that returns a list of results. See coilwork_runtime/executor/native_program.py.
#include <new>
#include <utility>

#include "call/roles.hpp"
#include "call/surroundings.hpp"
#include "interfaces/ending.hpp"
#include "libraries/opening.hpp"
#include "replay/replayed_call.hpp"
#include "running/host_regions.hpp"
#include "running/steps.hpp"

namespace coilwork {

struct Object {
  PyObject_HEAD
  vectorcallfunc call;
  Program* program;
};

// What becomes of a call, by its inputs.
enum class Inputs {
  READ,     // the program runs
  NUMBERS,  // there are some that only Python can read
  FOREIGN,  // there are tensors that are no memory, or none: the graph's operators are run
};

// New handles on the inputs that are tensors of types that nobody has told of; false if one is no tensor at all, or not one for the program.
static bool read_others(const Program& program, PyObject* const* given, size_t tensors, Frame& frame) {
  const Part& part = frame.part;
  const Reference only = checked(PyList_New(static_cast<Py_ssize_t>(tensors)));
  Py_ssize_t next = 0;
  for (size_t k = 0; k < part.inputs.size(); ++k) {
    if (part.inputs[k].kind != 0 || frame.slots[part.inputs[k].number].handle) continue;
    Py_INCREF(given[k]);
    PyList_SET_ITEM(only.get(), next++, given[k]);
  }
  PyObject* made = PyObject_CallOneArg(program.handles_of, only.get());
  if (!made) {
    // what is no tensor is for torch to refuse, in its own words
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw_python();
    PyErr_Clear();
    return false;
  }
  const Reference capsules(made);
  next = 0;
  bool fit = true;
  for (const Part::Input& input : part.inputs) {
    if (input.kind != 0 || frame.slots[input.number].handle) continue;
    Slot& slot = frame.slots[input.number];
    slot.own(handle_in(capsules.get(), next++));
    fit = fit && tensor_kinds.fits(slot.handle, program.kinds);
  }
  return fit;
}

// Reads inputs as they are given: handles for tensors, numbers for sizes. `held` are inputs that the caller holds until the program is
// over; others may go before.
static Inputs read_inputs(const Program& program, PyObject* const* given, size_t count, bool held, Frame& frame) {
  const Part& part = frame.part;
  if (count != part.inputs.size()) {
    PyErr_Format(PyExc_ValueError, count < part.inputs.size() ? "not enough values to unpack (expected %zu, got %zu)"
                                                              : "too many values to unpack (expected %zu)",
                 part.inputs.size(), count);
    throw_python();
  }
  size_t tensors = 0;
  Inputs found = Inputs::READ;
  const Kinds kinds{program.kinds.allowed | program.refused, program.kinds.required};
  for (size_t k = 0; k < count; ++k) {
    const Part::Input& input = part.inputs[k];
    if (input.kind == 0) {
      Slot& slot = frame.slots[input.number];
      const AtenTensorHandle inside = tensor_objects.in(given[k]);
      if (!inside) {
        ++tensors;
      } else if (!tensor_kinds.fits(inside, kinds)) {
        return Inputs::FOREIGN;
      } else if (held) {
        slot.handle = inside;
        slot.state = Slot::BORROWED;
      } else {
        slot.own(alias(inside));
      }
    } else if (input.kind == 1) {
      if (!PyLong_Check(given[k])) return Inputs::FOREIGN;
      if (!PyLong_CheckExact(given[k])) {
        found = Inputs::NUMBERS;
        continue;
      }
      int overflow = 0;
      frame.registers[input.number] = PyLong_AsLongLongAndOverflow(given[k], &overflow);
      if (overflow) return Inputs::FOREIGN;
    }
  }
  if (tensors && !read_others(program, given, tensors, frame)) return Inputs::FOREIGN;
  return found;
}

static PyObject* results_of(Call& call, Runner& runner, const Frame& frame, const Step& last) {
  const uint32_t* words = frame.words(last.list);
  const uint32_t count = last.list.count;
  List<AtenTensorHandle> handles;
  handles.reserve(count);
  for (uint32_t k = 0; k < count; ++k)
    if (words[2 * k] == TENSOR) handles.push_back(runner.result(words[2 * k + 1]));
  Reference tensors = tensors_from(call.program, handles.data(), handles.size());
  if (handles.size() == count) return tensors.release();
  Reference results = checked(PyList_New(count));
  Py_ssize_t next = 0;
  for (uint32_t k = 0; k < count; ++k) {
    PyObject* value = Py_None;
    if (words[2 * k] == TENSOR) value = PyList_GetItem(tensors.get(), next++);
    if (words[2 * k] == NUMBER) {
      value = PyLong_FromLongLong(frame.registers[words[2 * k + 1]]);
    } else {
      Py_XINCREF(value);
    }
    if (!value) throw_python();
    PyList_SET_ITEM(results.get(), k, value);
  }
  return results.release();
}

// Does the whole call in Python, with `instead`.
static PyObject* hand_over(Call& call, PyObject* instead, PyObject* list, PyObject* const* given, size_t count) {
  call.program.counters.fallbacks.fetch_add(1, std::memory_order_relaxed);
  const Surroundings surroundings(call);
  if (list) return PyObject_CallOneArg(instead, list);
  const Reference inputs = checked(PyList_New(static_cast<Py_ssize_t>(count)));
  for (size_t k = 0; k < count; ++k) {
    Py_INCREF(given[k]);
    PyList_SET_ITEM(inputs.get(), static_cast<Py_ssize_t>(k), given[k]);
  }
  return PyObject_CallOneArg(instead, inputs.get());
}

// Runs the instructions, with stretches of work as graphs of the driver's if the calls of the program are alike.
static const Step& run_instructions(Call& call, Runner& runner) {
  if (call.program.regions) {
    HostRegions regions(call);
    const Step& last = runner.run();
    regions.finish();
    return last;
  }
  ReplayedCall replayed(call);
  const Step& last = runner.run();
  replayed.finish();
  return last;
}

// `list` holds the inputs if they were given in one, which is emptied once they are read.
static PyObject* run_program(const Program& program, PyObject* list, PyObject* const* given, size_t count) {
  program.counters.calls.fetch_add(1, std::memory_order_relaxed);
  Call call(program);
  Phases phases(call.timing);
  Frame frame(program.parts[0]);
  const Inputs inputs = is_watched(program.strict) ? Inputs::FOREIGN : read_inputs(program, given, count, list == nullptr, frame);
  if (inputs != Inputs::READ)
    return hand_over(call, inputs == Inputs::NUMBERS ? program.fallback : program.operators, list, given, count);
  if (list && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) != 0) throw_python();
  phases.done(Timing::INPUTS);
  Runner::place_constants(program, frame);
  call.profiled = is_profiled(program);
  read_settings(call);
  Runner runner(call, frame);
  const Step* last = nullptr;
  {
    const Surroundings surroundings(call);
    call.released = PyEval_SaveThread();
    phases.done(Timing::BEGINNING);
    try {
      last = &run_instructions(call, runner);
    } catch (...) {
      PyEval_RestoreThread(call.released);
      throw;
    }
    phases.done(Timing::INSTRUCTIONS);
    PyEval_RestoreThread(call.released);
    call.released = nullptr;
  }
  PyObject* results = results_of(call, runner, frame, *last);
  if (call.timing) frame.clear();
  phases.done(Timing::RESULTS);
  return results;
}

static PyObject* object_call(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  if (keywords && PyTuple_GET_SIZE(keywords)) {
    PyErr_SetString(PyExc_TypeError, "a program takes one list of inputs, or the inputs one by one");
    return nullptr;
  }
  const Program& program = *reinterpret_cast<Object*>(self)->program;
  const size_t count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  try {
    if (count == 1 && PyList_Check(args[0])) {
      PyObject* list = args[0];
      return run_program(program, list, PySequence_Fast_ITEMS(list), static_cast<size_t>(PyList_GET_SIZE(list)));
    }
    return run_program(program, nullptr, args, count);
  } catch (Raised& raised) {
    PyErr_Restore(raised.type, raised.value, raised.trace);
  } catch (const Failed& failed) {
    PyErr_SetString(PyExc_RuntimeError, failed.what);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  return nullptr;
}

static PyObject* object_new(PyTypeObject* type, PyObject* args, PyObject*) {
  Program* program = load_program(args);
  if (!program) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) {
    unload_program(program);
    return nullptr;
  }
  reinterpret_cast<Object*>(self)->call = object_call;
  reinterpret_cast<Object*>(self)->program = program;
  return self;
}

static void object_dealloc(PyObject* self) {
  unload_program(reinterpret_cast<Object*>(self)->program);
  Py_TYPE(self)->tp_free(self);
}

static PyObject* object_counters(PyObject* self, PyObject*) {
  const Counters& counters = reinterpret_cast<Object*>(self)->program->counters;
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "calls", counters.calls.load(), "python_calls",
                       counters.python_calls.load(), "python_launches", counters.python_launches.load(), "slow_paths",
                       counters.slow_paths.load(), "fallbacks", counters.fallbacks.load(), "products",
                       counters.products.load(), "refused_products", counters.refused_products.load(), "convolutions",
                       counters.convolutions.load(), "refused_convolutions", counters.refused_convolutions.load(), "graphs", counters.graphs.load(),
                       "work_in_graphs", counters.work_in_graphs.load());
}

// Begins to measure anew, or ends it.
static PyObject* object_time(PyObject* self, PyObject* on) {
  const Program& program = *reinterpret_cast<Object*>(self)->program;
  const int wanted = PyObject_IsTrue(on);
  if (wanted < 0) return nullptr;
  if (wanted) program.timings.push_back(Owned<Timing>(new Timing(program)));
  program.timing.store(wanted ? program.timings.back().get() : nullptr, std::memory_order_release);
  Py_RETURN_NONE;
}

// (calls, nanoseconds) of each phase, and (part, number, code, what it is about, place, calls, nanoseconds) of each instruction.
static PyObject* object_times(PyObject* self, PyObject*) {
  const Program& program = *reinterpret_cast<Object*>(self)->program;
  const Reference phases(PyList_New(0)), rows(PyList_New(0));
  const auto add = [](PyObject* list, PyObject* row) {
    const Reference made(row);
    return made.get() && PyList_Append(list, made.get()) == 0;
  };
  if (!phases.get() || !rows.get()) return nullptr;
  if (!program.timings.empty()) {
    const Timing& timing = *program.timings.back();
    for (const Timing::Entry& entry : timing.phases)
      if (!add(phases.get(), Py_BuildValue("(KK)", entry.times.load(), entry.ns.load()))) return nullptr;
    for (const Part& part : program.parts)
      for (const Step& step : part.steps) {
        const Timing::Entry& entry = timing.of(program, part)[&step - part.steps.data()];
        if (!add(rows.get(), Py_BuildValue("(sIBIsKK)", program.text(part.name), step.number, step.code, step.a,
                                           program.text(step.place), entry.times.load(), entry.ns.load())))
          return nullptr;
      }
  }
  return Py_BuildValue("(OO)", phases.get(), rows.get());
}

static PyMethodDef object_methods[] = {
    {"time", object_time, METH_O, "Begins to measure what instructions take, or ends it."},
    {"times", object_times, METH_NOARGS, "What was measured: of the phases of a call, and of each instruction."},
    {"counters", object_counters, METH_NOARGS, "How often the program was called, and how often it went through Python."},
    {nullptr, nullptr, 0, nullptr}};

static PyTypeObject ObjectType = {PyVarObject_HEAD_INIT(nullptr, 0) "coilwork_executor.Program"};

// The address of a C function of torch, 0 if it has none of that name.
static PyObject* symbol(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  return text ? PyLong_FromVoidPtr(torch_symbol(text)) : nullptr;
}

// What a function of torch that names a constant returns, such as aoti_torch_dtype_float32; None without it.
static PyObject* code(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (!text) return nullptr;
  auto* function = reinterpret_cast<int32_t (*)()>(torch_symbol(text));
  if (!function) Py_RETURN_NONE;
  return PyLong_FromLong(function());
}

// Opens a library: the one that torch has loaded, or a file. Each is opened once, and stays.
template <class Library>
static PyObject* opened(PyObject*, PyObject* given) {
  struct Opened {
    Text path;
    Library* library;
  };
  static List<Opened> known;  // guarded by the interpreter's lock
  const char* path = PyUnicode_AsUTF8(given);
  if (!path) return nullptr;
  for (const Opened& one : known)
    if (one.path == path) return PyLong_FromVoidPtr(one.library);
  void* file = *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (*path && !file) return PyErr_Format(PyExc_ImportError, "%s cannot be loaded", path);
  if (!*path && !torch.cuda) return PyErr_Format(PyExc_ImportError, "this torch has no libtorch_cuda");
  const char* missing = nullptr;
  Library* made = file ? Library::open(file, &missing) : open_loaded<Library>(&missing);
  if (!made) return PyErr_Format(PyExc_ImportError, "there is no %s", missing);
  known.push_back({Text(path), made});
  return PyLong_FromVoidPtr(made);
}

// Learns from tensors how tensor objects look.
static PyObject* learn(PyObject*, PyObject* samples) {
  if (!PyList_Check(samples)) return PyErr_Format(PyExc_TypeError, "samples come as a list");
  if (!tensor_objects.learn(samples)) return nullptr;
  return PyBool_FromLong(tensor_objects.offset != 0);
}

// Two sets of keys, as a tuple; false with an exception.
static bool read_kinds(PyObject* pair, Kinds& kinds) {
  unsigned long long allowed = 0, required = 0;
  if (!PyArg_ParseTuple(pair, "KK", &allowed, &required)) return false;
  kinds = {allowed, required};
  return true;
}

// Learns from samples what a tensor looks like (tensor_kinds.hpp), and whom to ask whether somebody watches operators.
static PyObject* learn_kinds(PyObject*, PyObject* const* given, Py_ssize_t count) {
  Kinds plain;
  if (count != 5 || !PyList_Check(given[0]) || !PyTuple_Check(given[2]))
    return PyErr_Format(PyExc_TypeError, "a list of samples, a callable, a pair of sets of keys and two sets are needed");
  const uint64_t cpu = PyLong_AsUnsignedLongLong(given[3]), marks = PyLong_AsUnsignedLongLong(given[4]);
  if (PyErr_Occurred() || !read_kinds(given[2], plain) || !learn_from(given[0], given[1], plain, cpu, marks)) return nullptr;
  return PyBool_FromLong(tensor_kinds.keys_at != 0);
}

// Whether operators have to run instead of kernels that would read the memory of the tensors in a list; None where something else is
// in the list, or a tensor has too little memory.
static PyObject* any_foreign(PyObject*, PyObject* const* given, Py_ssize_t count) {
  Kinds kinds;
  if (count != 2 || !PyList_Check(given[0]) || !PyTuple_Check(given[1]))
    return PyErr_Format(PyExc_TypeError, "a list and a pair of keys are needed");
  if (!read_kinds(given[1], kinds)) return nullptr;
  if (!tensor_kinds.keys_at) Py_RETURN_NONE;
  try {
    if (is_watched(false)) Py_RETURN_TRUE;
  } catch (Raised& raised) {
    PyErr_Restore(raised.type, raised.value, raised.trace);
    return nullptr;
  }
  bool others = false;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(given[0]); ++k) {
    PyObject* value = PyList_GET_ITEM(given[0], k);
    if (PyLong_Check(value) || value == Py_None) continue;
    const AtenTensorHandle tensor = tensor_objects.in(value);
    const int fits = tensor ? tensor_kinds.fits(tensor, kinds) : fits_object(value, kinds);
    if (fits < 0) return nullptr;
    if (!fits) Py_RETURN_TRUE;
    others = others || fits == 2 || (tensor && !lies_in_memory(tensor));
  }
  if (others) Py_RETURN_NONE;
  Py_RETURN_FALSE;
}

// How objects of tensors are made: with true directly, if torch lets that be done, else from capsules. What is so afterwards.
static PyObject* makes_objects(PyObject*, PyObject* directly) {
  const int wanted = PyObject_IsTrue(directly);
  if (wanted < 0) return nullptr;
  make_object = wanted ? tensor_objects.maker : nullptr;
  return PyBool_FromLong(make_object != nullptr);
}

static PyObject* remove_folder_when_ended(PyObject*, PyObject* path) {
  const char* text = PyBytes_AsString(path);
  return text ? PyBool_FromLong(remove_when_ended(text)) : nullptr;
}

static PyMethodDef module_methods[] = {
    {"remove_when_ended", remove_folder_when_ended, METH_O,
     "Lets SIGTERM and SIGHUP remove a folder before they end this process, unless they are handled; whether that can be done."},
    {"makes_objects", makes_objects, METH_O, "Whether to make objects of tensors directly; whether that is done."},
    {"learn", learn, METH_O, "Learns from a list of tensors how to find the tensor in an object; whether that succeeds."},
    {"learn_kinds", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(learn_kinds)), METH_FASTCALL,
     "Learns from samples where a tensor has its dispatch keys; whether that succeeds."},
    {"any_foreign", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(any_foreign)), METH_FASTCALL,
     "Whether an item of a list is a tensor with other keys, or operators are watched; None for items that are no plain tensors."},
    {"products", opened<ProductLibrary>, METH_O, "The address of an opened cuBLASLt: torch's own, or that of a file. ImportError without it."},
    {"convolutions", opened<ConvolutionLibrary>, METH_O, "The address of an opened cuDNN: torch's own, or that of a file. ImportError without it."},
    {"graphs", opened<GraphLibrary>, METH_O, "The address of opened graphs: the loaded driver's, or those of a file. ImportError without them."},
    {"read_manifest", read_manifest, METH_O, "What is read of a kernel's manifest: a dictionary of its fields."},
    {"evaluate_code", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(evaluate_code)), METH_FASTCALL,
     "The value of code for a tuple of sizes and a tuple of parameters."},
    {"code", code, METH_O, "What a function of torch that names a constant returns, None without it."},
    {"symbol", symbol, METH_O, "The address of a C function of torch, 0 if it has none of that name."},
    {nullptr, nullptr, 0, nullptr}};

static PyModuleDef Module = {PyModuleDef_HEAD_INIT, "coilwork_executor", nullptr, -1, module_methods};

}  // namespace coilwork

PyMODINIT_FUNC PyInit_coilwork_executor() {
  using namespace coilwork;
  if (!profilers.find()) return nullptr;
  if (const char* missing = find_torch()) {
    PyErr_Format(PyExc_ImportError, "this torch does not export %s", missing);
    return nullptr;
  }
  ObjectType.tp_basicsize = sizeof(Object);
  ObjectType.tp_dealloc = object_dealloc;
  ObjectType.tp_call = PyVectorcall_Call;
  ObjectType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  ObjectType.tp_vectorcall_offset = offsetof(Object, call);
  ObjectType.tp_new = object_new;
  ObjectType.tp_methods = object_methods;
  if (PyType_Ready(&ObjectType) < 0) return nullptr;
  PyObject* module = PyModule_Create(&Module);
  if (!module) return nullptr;
  Py_INCREF(&ObjectType);
  if (PyModule_AddObject(module, "Program", reinterpret_cast<PyObject*>(&ObjectType)) < 0) {
    Py_DECREF(&ObjectType);
    Py_DECREF(module);
    return nullptr;
  }
  if (!add_roles(module) || !add_library_call(module)) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
