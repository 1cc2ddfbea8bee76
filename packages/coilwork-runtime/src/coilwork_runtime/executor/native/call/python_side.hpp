// Crossing into Python: tensors as objects, and what is done there because it is rare.
#pragma once
#include "call/frames.hpp"

namespace coilwork {

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

static AtenTensorHandle alias(AtenTensorHandle handle) {
  AtenTensorHandle copy = nullptr;
  if (torch.aoti_torch_new_tensor_handle(handle, &copy) != 0) throw Failed{"a tensor cannot be shared"};
  return copy;
}

// The tensor that is none: what an operator is given for a tensor that its schema does not let be left out.
static AtenTensorHandle undefined() {
  static const AtenTensorHandle made = [] {
    AtenTensorHandle handle = nullptr;
    if (torch.aoti_torch_new_uninitialized_tensor(&handle) != 0) throw Failed{"there is no undefined tensor"};
    return handle;
  }();
  return made;
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

}  // namespace coilwork
