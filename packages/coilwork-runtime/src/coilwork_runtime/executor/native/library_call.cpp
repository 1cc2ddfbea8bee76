// coilwork_executor.LibraryCall(run, constants, inputs, outputs, kinds, instead, failed): a program in a shared library, called with one
// list of inputs, which it empties, or with the inputs one by one. See coilwork_runtime/executor/library_call.py.
#include <new>
#include <utility>

#include "call/roles.hpp"
#include "call/tensor_samples.hpp"

namespace coilwork {

// Takes inputs over, also when it fails, and borrows constants. 0, or the kind of a failure.
using RunLibrary = int (*)(const AtenTensorHandle* constants, AtenTensorHandle* inputs, const int64_t* sizes, AtenTensorHandle* outputs,
                           int64_t* output_sizes);

struct LibraryCall {
  RunLibrary run = nullptr;
  const AtenTensorHandle* constants = nullptr;
  Text inputs, outputs;         // a letter each: a tensor, a size, or nothing
  size_t tensors = 0;
  Kinds kinds;
  PyObject* instead = nullptr;  // does a call that is rare: of other tensors, or while somebody watches operators
  PyObject* failed = nullptr;   // raises the error of a kind
};

struct LibraryObject {
  PyObject_HEAD
  vectorcallfunc call;
  LibraryCall* library;
};

constexpr char OF_TENSOR = 't', OF_SIZE = 's';

// Handles that nobody has taken over yet.
struct OwnHandles {
  List<AtenTensorHandle> all;
  ~OwnHandles() {
    for (AtenTensorHandle one : all)
      if (one) torch.aoti_torch_delete_tensor_object(one);
  }
};

// False: there is an input that is not as almost all are.
static bool read_library_inputs(const LibraryCall& library, PyObject* const* given, size_t count, OwnHandles& handles, List<int64_t>& sizes) {
  if (count != library.inputs.size() || !tensor_kinds.keys_at || !make_object || is_watched(false)) return false;
  handles.all.reserve(library.tensors + 1);
  for (size_t k = 0; k < count; ++k) {
    if (library.inputs.c_str()[k] == OF_TENSOR) {
      const AtenTensorHandle inside = tensor_objects.in(given[k]);
      if (!inside || !tensor_kinds.fits(inside, library.kinds) || !lies_in_memory(inside)) return false;
      handles.all.push_back(alias(inside));
      continue;
    }
    int overflow = 0;
    if (!PyLong_CheckExact(given[k])) return false;
    sizes.push_back(PyLong_AsLongLongAndOverflow(given[k], &overflow));
    if (overflow) return false;
  }
  return true;
}

static PyObject* make_library_results(const LibraryCall& library, OwnHandles& outputs, const List<int64_t>& sizes) {
  const size_t count = library.outputs.size();
  Reference list = checked(PyList_New(static_cast<Py_ssize_t>(count)));
  size_t tensor = 0, size = 0;
  for (size_t k = 0; k < count; ++k) {
    PyObject* value = nullptr;
    const char kind = library.outputs.c_str()[k];
    if (kind == OF_SIZE) {
      value = PyLong_FromLongLong(sizes[size++]);
    } else if (AtenTensorHandle handle = outputs.all[tensor++]) {
      value = made_object(make_object, handle);
    } else {
      Py_INCREF(Py_None);
      value = Py_None;
    }
    if (!value) throw_python();
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(k), value);
  }
  return list.release();
}

static PyObject* run_library(const LibraryCall& library, PyObject* list, PyObject* const* given, size_t count) {
  OwnHandles inputs, outputs;
  List<int64_t> sizes, output_sizes;
  if (!read_library_inputs(library, given, count, inputs, sizes)) {
    if (list) return PyObject_CallOneArg(library.instead, list);
    const Reference made = checked(PyList_New(static_cast<Py_ssize_t>(count)));
    for (size_t k = 0; k < count; ++k) {
      Py_INCREF(given[k]);
      PyList_SET_ITEM(made.get(), static_cast<Py_ssize_t>(k), given[k]);
    }
    return PyObject_CallOneArg(library.instead, made.get());
  }
  if (list && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) != 0) throw_python();
  for (size_t k = 0; k < library.outputs.size(); ++k)
    library.outputs.c_str()[k] == OF_SIZE ? output_sizes.push_back(0) : outputs.all.push_back(nullptr);
  List<AtenTensorHandle> taken;
  std::swap(taken, inputs.all);
  PyThreadState* const released = PyEval_SaveThread();
  const int kind = library.run(library.constants, taken.data(), sizes.data(), outputs.all.data(), output_sizes.data());
  PyEval_RestoreThread(released);
  if (!kind) return make_library_results(library, outputs, output_sizes);
  const Reference number = checked(PyLong_FromLong(kind));
  checked(PyObject_CallOneArg(library.failed, number.get()));
  return PyErr_Format(PyExc_SystemError, "a failure of kind %d raised nothing", kind);
}

static PyObject* call_library(PyObject* self, PyObject* const* args, size_t flags, PyObject* keywords) {
  if (keywords && PyTuple_GET_SIZE(keywords)) {
    PyErr_SetString(PyExc_TypeError, "a program takes one list of inputs, or the inputs one by one");
    return nullptr;
  }
  const LibraryCall& library = *reinterpret_cast<LibraryObject*>(self)->library;
  const size_t count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  try {
    if (count != 1 || !PyList_Check(args[0])) return run_library(library, nullptr, args, count);
    return run_library(library, args[0], PySequence_Fast_ITEMS(args[0]), static_cast<size_t>(PyList_GET_SIZE(args[0])));
  } catch (Raised& raised) {
    PyErr_Restore(raised.type, raised.value, raised.trace);
  } catch (const Failed& failed) {
    PyErr_SetString(PyExc_RuntimeError, failed.what);
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  return nullptr;
}

static PyObject* new_library(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long run = 0, constants = 0, allowed = 0, required = 0;
  const char *inputs = nullptr, *outputs = nullptr;
  PyObject *instead = nullptr, *failed = nullptr;
  if (!PyArg_ParseTuple(args, "KKss(KK)OO", &run, &constants, &inputs, &outputs, &allowed, &required, &instead, &failed)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  LibraryCall* library = self ? new (std::nothrow) LibraryCall() : nullptr;
  if (!library) {
    Py_XDECREF(self);
    return PyErr_NoMemory();
  }
  reinterpret_cast<LibraryObject*>(self)->call = call_library;
  reinterpret_cast<LibraryObject*>(self)->library = library;
  library->run = reinterpret_cast<RunLibrary>(static_cast<uintptr_t>(run));
  library->constants = reinterpret_cast<const AtenTensorHandle*>(static_cast<uintptr_t>(constants));
  library->inputs = Text(inputs);
  library->outputs = Text(outputs);
  for (const char* letter = inputs; *letter; ++letter) library->tensors += *letter == OF_TENSOR;
  library->kinds = {allowed, required};
  Py_INCREF(library->instead = instead);
  Py_INCREF(library->failed = failed);
  return self;
}

static void free_library(PyObject* self) {
  LibraryCall* library = reinterpret_cast<LibraryObject*>(self)->library;
  if (library) {
    Py_XDECREF(library->instead);
    Py_XDECREF(library->failed);
    delete library;
  }
  Py_TYPE(self)->tp_free(self);
}

static PyTypeObject LibraryType = {PyVarObject_HEAD_INIT(nullptr, 0) "coilwork_executor.LibraryCall"};

bool add_library_call(PyObject* module) {
  LibraryType.tp_basicsize = sizeof(LibraryObject);
  LibraryType.tp_dealloc = free_library;
  LibraryType.tp_call = PyVectorcall_Call;
  LibraryType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  LibraryType.tp_vectorcall_offset = offsetof(LibraryObject, call);
  LibraryType.tp_new = new_library;
  if (PyType_Ready(&LibraryType) < 0) return false;
  Py_INCREF(&LibraryType);
  if (PyModule_AddObject(module, "LibraryCall", reinterpret_cast<PyObject*>(&LibraryType)) == 0) return true;
  Py_DECREF(&LibraryType);
  return false;
}

}  // namespace coilwork
