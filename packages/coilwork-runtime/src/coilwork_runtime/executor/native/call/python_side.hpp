// The host of an extension module, Python: crossing into it, tensors as objects, and what is done there because it is rare.
#pragma once
#include <utility>

#include "call/frames.hpp"
#include "call/references.hpp"

namespace coilwork {

// Holds the interpreter's lock for a while.
class WithPython {
 public:
  explicit WithPython(Call& call) : call_(call), took_(call.released != nullptr) {
    if (took_) {
      PyEval_RestoreThread(call_.released);
      call_.released = nullptr;
    }
  }
  ~WithPython() {
    if (took_) call_.released = PyEval_SaveThread();
  }
  WithPython(const WithPython&) = delete;

 private:
  Call& call_;
  bool took_;
};

static void look_for_signals(Call& call, bool now = false) {
  const int64_t time_ms = coarse_ms();
  if (!now && time_ms - call.looked_ms < 50) return;
  call.looked_ms = time_ms;
  WithPython python(call);
  if (PyErr_CheckSignals() != 0) throw_python();
}

static void close_streams(Call& call) {
  // whatever happened, torch's current stream is what it was
  Py_XDECREF(PyObject_CallMethod(call.streams, "close", nullptr));
  PyErr_Clear();
  Py_DECREF(call.streams);
}

// Makes the object of a tensor, or finds the one that it has; null if torch has no such function that is known to work
// (`tensor_objects.hpp`). torch's C interface makes objects only of lists of capsules, at a third of a microsecond for each.
using ObjectMaker = PyObject* (*)(AtenTensorHandle);
inline ObjectMaker make_object = nullptr;

// The object of a tensor, null with an exception.
inline PyObject* made_object(ObjectMaker make, AtenTensorHandle handle) {
  PyObject* object = nullptr;
  try {
    object = make(handle);
  } catch (...) {  // of types that torch's headers declare
  }
  if (!object && !PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a tensor has no object");
  return object;
}

// A new list of tensors; takes over the handles, whatever happens.
static Reference tensors_from(const Program& program, AtenTensorHandle* handles, size_t count) {
  if (make_object) {
    Reference list(PyList_New(static_cast<Py_ssize_t>(count)));
    bool good = list.get() != nullptr;
    for (size_t k = 0; k < count; ++k) {
      PyObject* object = good ? made_object(make_object, handles[k]) : nullptr;
      torch.aoti_torch_delete_tensor_object(handles[k]);
      good = object != nullptr;
      if (good) PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(k), object);
    }
    if (!good) throw_python();
    return list;
  }
  PyObject* capsules = PyList_New(static_cast<Py_ssize_t>(count));
  size_t wrapped = 0;
  for (; capsules && wrapped < count; ++wrapped) {
    PyObject* capsule = PyCapsule_New(handles[wrapped], nullptr, nullptr);
    if (!capsule) break;
    PyList_SET_ITEM(capsules, static_cast<Py_ssize_t>(wrapped), capsule);
  }
  if (!capsules || wrapped < count) {
    for (size_t k = 0; k < count; ++k) torch.aoti_torch_delete_tensor_object(handles[k]);
    Py_XDECREF(capsules);
    throw_python();
  }
  Reference owner(capsules);
  return checked(PyObject_CallOneArg(program.tensors_of, capsules));
}

static AtenTensorHandle handle_of(const Program& program, PyObject* tensor) {
  const Reference list = checked(PyList_New(1));
  Py_INCREF(tensor);
  PyList_SET_ITEM(list.get(), 0, tensor);
  List<AtenTensorHandle> handles;
  handles_from(program, list.get(), handles);
  if (handles.size() != 1) throw Failed{"a tensor has no handle"};
  return handles[0];
}

// A new tensor object for `handle`, which stays.
static Reference object_of(const Program& program, AtenTensorHandle handle) {
  AtenTensorHandle copy = alias(handle);
  const Reference list = tensors_from(program, &copy, 1);
  PyObject* tensor = PyList_GetItem(list.get(), 0);
  Py_XINCREF(tensor);
  return checked(tensor);
}

static Reference tuple_of(const int64_t* values, uint32_t count) {
  Reference tuple = checked(PyTuple_New(count));
  for (uint32_t k = 0; k < count; ++k) {
    PyObject* number = PyLong_FromLongLong(values[k]);
    if (!number) throw_python();
    PyTuple_SET_ITEM(tuple.get(), k, number);
  }
  return tuple;
}

// Calls a function of `coilwork_runtime.executor.slow_path`; `format` as for Py_BuildValue, in parentheses.
template <class... Args>
static Reference slowly(Call& call, const char* function, const char* format, Args... args) {
  call.program.counters.slow_paths.fetch_add(1, std::memory_order_relaxed);
  call.settle();
  const Reference callable = checked(PyObject_GetAttrString(call.program.faults, function));
  const Reference arguments = checked(Py_BuildValue(format, args...));
  return checked(PyObject_CallObject(callable.get(), arguments.get()));
}

// As `slowly`, for a function that returns a tensor: a new handle on it.
template <class... Args>
static AtenTensorHandle tensor_slowly(Call& call, const char* function, const char* format, Args... args) {
  const Reference made = slowly(call, function, format, args...);
  return handle_of(call.program, made.get());
}

// Adds where it happened to an exception that leaves a program.
static void annotate(const Program& program, const Frame& frame, Raised& raised) {
  PyErr_NormalizeException(&raised.type, &raised.value, &raised.trace);
  if (!raised.value) return;
  const Step& step = frame.part.steps[frame.at];
  PyObject* note = PyUnicode_FromFormat("instruction %u of program %s: %s", step.number,
                                        program.text(frame.part.name), program.text(step.place));
  PyObject* done = note ? PyObject_CallMethod(raised.value, "add_note", "O", note) : nullptr;
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  Py_XDECREF(note);
}

// ---- what every host has ----

[[noreturn]] inline void raise_text(Call& call, Fault fault, const char* text) {
  WithPython python(call);
  PyObject* const types[] = {PyExc_RuntimeError, PyExc_OverflowError, PyExc_ZeroDivisionError};
  PyErr_SetString(types[static_cast<int>(fault)], text);
  throw_python();
}

static void annotate_here(Call& call, const Frame& frame, Raised& raised) {
  WithPython python(call);
  annotate(call.program, frame, raised);
}

static void forget(Call& call, Raised& raised) {
  WithPython python(call);
  PyErr_Restore(raised.type, raised.value, raised.trace);
  PyErr_Clear();
}

static AtenTensorHandle allocate_slowly(Call& call, const Layout& layout, const Extents& extents) {
  WithPython python(call);
  const Reference sizes = tuple_of(extents.sizes, extents.rank), strides = tuple_of(extents.strides, extents.rank);
  return tensor_slowly(call, "allocate_empty", "(OOss)", sizes.get(), strides.get(), call.program.text(layout.dtype_name),
                       call.program.text(layout.device_name));
}

static AtenTensorHandle scratch_slowly(Call& call, int64_t bytes, int32_t device) {
  WithPython python(call);
  return tensor_slowly(call, "allocate_scratch", "(Li)", static_cast<long long>(bytes), int(device));
}

static AtenTensorHandle check_slowly(Call& call, AtenTensorHandle value, const char* name, const Layout& wanted,
                                     const Extents& extents, bool aligned) {
  WithPython python(call);
  const Reference tensor = object_of(call.program, value);
  const Reference sizes = tuple_of(extents.sizes, extents.rank), strides = tuple_of(extents.strides, extents.rank);
  return tensor_slowly(call, "check", "(OsssOOi)", tensor.get(), name, call.program.text(wanted.dtype_name),
                       call.program.text(wanted.device_name), sizes.get(), strides.get(), int(aligned));
}

static AtenTensorHandle settle_slowly(Call& call, AtenTensorHandle value, const Layout& wanted, const Extents& extents, bool aligned) {
  WithPython python(call);
  const Reference tensor = object_of(call.program, value);
  const Reference shape = tuple_of(extents.sizes, extents.rank), steps = tuple_of(extents.strides, extents.rank);
  return tensor_slowly(call, "settle", "(OOOsi)", tensor.get(), shape.get(), steps.get(), call.program.text(wanted.dtype_name),
                       int(aligned));
}

static AtenTensorHandle reread_slowly(Call& call, AtenTensorHandle value, const Layout& wanted, const Extents& extents, int64_t offset) {
  WithPython python(call);
  const Reference tensor = object_of(call.program, value);
  const Reference sizes = tuple_of(extents.sizes, extents.rank), strides = tuple_of(extents.strides, extents.rank);
  return tensor_slowly(call, "reinterpret_again", "(OOOsL)", tensor.get(), sizes.get(), strides.get(), call.program.text(wanted.dtype_name),
                       static_cast<long long>(offset));
}

static void check_rank(Call& call, AtenTensorHandle value, const char* name, int64_t expected) {
  WithPython python(call);
  const Reference tensor = object_of(call.program, value);
  slowly(call, "check_rank", "(OsL)", tensor.get(), name, static_cast<long long>(expected));
}

static void fail_check(Call& call, const Kernel& kernel, int64_t failed) {
  WithPython python(call);
  slowly(call, "raise_failed_check", "(OL)", kernel.launcher, static_cast<long long>(failed));
}

// What torch says at present of how a library is to compute.
static int32_t settings_of(PyObject* asked) {
  const Reference number = checked(PyObject_CallNoArgs(asked));
  const long found = PyLong_AsLong(number.get());
  if (found == -1 && PyErr_Occurred()) throw_python();
  return static_cast<int32_t>(found);
}

// With the interpreter's lock held.
static void read_settings(Call& call) {
  if (call.program.products) call.product_settings = settings_of(call.program.product_settings);
  if (call.program.convolutions) call.convolution_settings = settings_of(call.program.convolution_settings);
}

static int64_t count_allocated(Call& call) {
  WithPython python(call);
  const Reference found = checked(PyObject_CallMethod(call.program.faults, "count_allocated_bytes", "i", int(call.program.cuda_device)));
  const long long has = PyLong_AsLongLong(found.get());
  if (has == -1 && PyErr_Occurred()) throw_python();
  return has;
}

}  // namespace coilwork
