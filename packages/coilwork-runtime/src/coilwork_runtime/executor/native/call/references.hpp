// References to Python objects, and handles on tensors that are given as objects.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "program/model.hpp"

namespace coilwork {

// A Python exception, taken out of the interpreter while C++ unwinds.
struct Raised {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
};

// Throws the exception that Python has set.
[[noreturn]] inline void throw_python() {
  Raised raised;
  PyErr_Fetch(&raised.type, &raised.value, &raised.trace);
  throw raised;
}

// Owns a reference; used with the lock held.
class Reference {
 public:
  explicit Reference(PyObject* object = nullptr) : object_(object) {}
  ~Reference() { Py_XDECREF(object_); }
  Reference(const Reference&) = delete;
  Reference(Reference&& other) noexcept : object_(other.release()) {}
  Reference& operator=(Reference&& other) noexcept {
    PyObject* old = object_;
    object_ = other.release();
    Py_XDECREF(old);
    return *this;
  }
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

// A reference to what a function of Python returned.
inline Reference checked(PyObject* object) {
  if (!object) throw_python();
  return Reference(object);
}

// The handle in item `k` of a list of capsules, which is the caller's from now on.
inline AtenTensorHandle handle_in(PyObject* capsules, Py_ssize_t k) {
  if (!PyList_Check(capsules) || k >= PyList_GET_SIZE(capsules)) throw Failed{"there are fewer handles than tensors"};
  void* handle = PyCapsule_GetPointer(PyList_GET_ITEM(capsules, k), nullptr);
  if (!handle) throw_python();
  return static_cast<AtenTensorHandle>(handle);
}

// New handles on the tensors in `list`.
inline void handles_from(const Program& program, PyObject* list, List<AtenTensorHandle>& handles) {
  const Reference capsules = checked(PyObject_CallOneArg(program.handles_of, list));
  const Py_ssize_t count = PyList_Check(capsules.get()) ? PyList_GET_SIZE(capsules.get()) : 0;
  for (Py_ssize_t k = 0; k < count; ++k) handles.push_back(handle_in(capsules.get(), k));
}

// In manifests.cpp. What is read of a manifest's bytes, as Python values; the value of code for sizes and parameters.
PyObject* read_manifest(PyObject*, PyObject* data);
PyObject* evaluate_code(PyObject*, PyObject* const* given, Py_ssize_t count);
// In loading.cpp. A program from the arguments of its Python constructor; null with a Python exception set.
Program* load_program(PyObject* args);
void unload_program(Program* program);
// In library_call.cpp. Adds the type `LibraryCall`; false with a Python exception set.
bool add_library_call(PyObject* module);

}  // namespace coilwork
