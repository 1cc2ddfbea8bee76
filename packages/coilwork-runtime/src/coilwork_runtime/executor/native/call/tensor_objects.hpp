// Where a tensor object has its tensor. torch's C interface makes handles only of lists of objects, through capsules, at a tenth of a
// microsecond for each. A handle is the address of a pointer to the tensor, and an object holds such a pointer: at which place in the
// object is found out by looking at some, whose pointers torch tells (`_cdata`). Where that fails, the C interface does it.
//
// The way back is a function of torch's, none of the C interface, which is looked up under the name that it has in torch 2.11 and 2.13
// and is used if it finds the samples' own objects; else capsules do that, too.
#pragma once
#include "call/host.hpp"

namespace coilwork {

struct TensorObjects {
  static constexpr size_t MOST_TYPES = 4;
  PyTypeObject* types[MOST_TYPES] = {};  // exactly these; set once, and they stay
  size_t offset = 0;                     // 0: not known
  ObjectMaker maker = nullptr;           // null: none is known

  // Learns from sample objects of each type. False with an exception.
  bool learn(PyObject* samples) {
    if (offset) return true;
    size_t found = 0, count = 0;
    PyTypeObject* seen[MOST_TYPES] = {};
    for (size_t at = sizeof(PyObject); !found; at += sizeof(void*)) {
      bool good = PyList_GET_SIZE(samples) > 0;
      for (Py_ssize_t k = 0; k < PyList_GET_SIZE(samples); ++k) {
        PyObject* sample = PyList_GET_ITEM(samples, k);
        if (at + sizeof(void*) > static_cast<size_t>(Py_TYPE(sample)->tp_basicsize)) return true;
        const Reference number(PyObject_GetAttrString(sample, "_cdata"));
        const void* expected = number.get() ? PyLong_AsVoidPtr(number.get()) : nullptr;
        if (PyErr_Occurred()) return false;
        good = good && expected && *place(sample, at) == expected;
      }
      found = good ? at : 0;
    }
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(samples); ++k) {
      PyTypeObject* type = Py_TYPE(PyList_GET_ITEM(samples, k));
      bool known = false;
      for (size_t at = 0; at < count; ++at) known = known || seen[at] == type;
      if (known || count == MOST_TYPES) continue;
      Py_INCREF(reinterpret_cast<PyObject*>(type));
      seen[count++] = type;
    }
    for (size_t at = 0; at < count; ++at) types[at] = seen[at];
    offset = found;
    return find_maker(samples);
  }

  // A handle on the tensor of `object`, good as long as that lives; null if it is of another type.
  AtenTensorHandle in(PyObject* object) const {
    if (!offset) return nullptr;
    const PyTypeObject* type = Py_TYPE(object);
    for (const PyTypeObject* known : types) {
      if (type == known) {
        void** found = place(object, offset);
        return *found ? reinterpret_cast<AtenTensorHandle>(found) : nullptr;
      }
    }
    return nullptr;
  }

 private:
  bool find_maker(PyObject* samples) {
    void* python = dlopen("libtorch_python.so", RTLD_NOLOAD | RTLD_LAZY);
    // PyObject* THPVariable_Wrap(const at::TensorBase&)
    const auto known = reinterpret_cast<ObjectMaker>(python ? dlsym(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE") : nullptr);
    for (Py_ssize_t k = 0; known && k < PyList_GET_SIZE(samples); ++k) {
      PyObject* sample = PyList_GET_ITEM(samples, k);
      const Reference object(made_object(known, in(sample)));
      if (!object.get()) return false;
      if (object.get() != sample) return true;
    }
    make_object = maker = known;
    return true;
  }
  static void** place(PyObject* object, size_t at) {
    return reinterpret_cast<void**>(reinterpret_cast<char*>(object) + at);
  }
};

inline TensorObjects tensor_objects;  // guarded by the interpreter's lock

}  // namespace coilwork
