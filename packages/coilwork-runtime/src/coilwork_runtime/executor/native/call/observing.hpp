// Profilers that are to hear of programs and launches: torch's, and those that hang on Triton's launch hooks. Asked once per
// call, which costs two look-ups in dictionaries; without one nothing else is done.
#pragma once
#include <utility>

#include "call/python_side.hpp"

namespace coilwork {

// What is looked at. Filled while the module is imported.
struct Profilers {
  PyObject* torchs = nullptr;      // the dictionary of torch.autograd.profiler; null if it has changed its name
  PyObject* enabled = nullptr;     // "_is_profiler_enabled"
  PyObject* modules = nullptr;     // sys.modules
  PyObject* knobs = nullptr;       // "triton.knobs"
  PyObject* runtime = nullptr;     // "runtime"
  PyObject* hooks[2] = {};         // "launch_enter_hook", "launch_exit_hook"
  PyObject* calls = nullptr;       // "calls"

  bool find() {
    enabled = PyUnicode_InternFromString("_is_profiler_enabled");
    knobs = PyUnicode_InternFromString("triton.knobs");
    modules = PyImport_GetModuleDict();
    runtime = PyUnicode_InternFromString("runtime");
    hooks[0] = PyUnicode_InternFromString("launch_enter_hook");
    hooks[1] = PyUnicode_InternFromString("launch_exit_hook");
    calls = PyUnicode_InternFromString("calls");
    if (!runtime || !hooks[0] || !hooks[1] || !calls) return false;
    PyObject* profiler = PyImport_ImportModule("torch.autograd.profiler");
    if (!profiler) PyErr_Clear();
    torchs = profiler ? PyModule_GetDict(profiler) : nullptr;  // as long as the module, which stays
    return enabled && knobs;
  }
};

inline Profilers profilers;

// Whether Triton has a hook before or after launches: a chain of some, or any callable.
static bool has_hook(PyObject* knobs) {
  const Reference runtime(PyObject_GetAttr(knobs, profilers.runtime));
  bool has_one = false;
  for (PyObject* name : profilers.hooks) {
    const Reference hook(runtime.get() ? PyObject_GetAttr(runtime.get(), name) : nullptr);
    const Reference calls(hook.get() ? PyObject_GetAttr(hook.get(), profilers.calls) : nullptr);
    if (PyErr_Occurred()) PyErr_Clear();
    if (!hook.get() || hook.get() == Py_None) continue;
    has_one = has_one || !calls.get() || !PyList_Check(calls.get()) || PyList_GET_SIZE(calls.get()) > 0;
  }
  return has_one;
}

// With the interpreter's lock held.
static bool is_profiled(const Program& program) {
  if (profilers.torchs && PyDict_GetItemWithError(profilers.torchs, profilers.enabled) == Py_True) return true;
  if (!program.user_launches && (program.kernels.empty() || (program.cuda_device < 0 && !program.on_gpu))) return false;
  PyObject* knobs = PyDict_GetItemWithError(profilers.modules, profilers.knobs);
  return knobs && has_hook(knobs);
}

// Tells profilers of what happens while it lives, or until it is told that it is over: then what a profiler raises, or an
// interrupt while it is asked, is raised.
class Observed {
 public:
  Observed(Call& call, const char* name, bool is_launch) : call_(call) {
    if (!call.profiled) return;
    WithPython python(call);
    const Reference module = checked(PyImport_ImportModule("coilwork_runtime.executor.profiler"));
    const unsigned long long stream = reinterpret_cast<uintptr_t>(call.stream);
    token_ = checked(PyObject_CallMethod(module.get(), "enter", "sOK", name, is_launch ? Py_True : Py_False, stream)).release();
  }
  ~Observed() {
    if (!token_) return;  // else something is on its way already
    WithPython python(call_);
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* done = PyObject_CallMethod(token_, "leave", nullptr);
    if (!done) PyErr_WriteUnraisable(token_);
    Py_XDECREF(done);
    Py_DECREF(token_);
    PyErr_Restore(type, value, trace);
  }
  Observed(const Observed&) = delete;

  void leave() {
    if (!token_) return;
    WithPython python(call_);
    const Reference token(std::exchange(token_, nullptr));
    checked(PyObject_CallMethod(token.get(), "leave", nullptr));
  }

 private:
  Call& call_;
  PyObject* token_ = nullptr;
};

}  // namespace coilwork
