// Launching GPU kernels from Python at about the driver's own cost.
//
// Kernel(launch, launch_ex, set_context, function, context, threads, shared_bytes, cluster, cooperative, kinds, name) is a callable
// kernel(grid_x, grid_y, grid_z, stream, scratch, *arguments). `launch`, `launch_ex` and `set_context` are addresses of
// cuLaunchKernel, cuLaunchKernelEx (0 unless it is needed) and cuCtxSetCurrent, so this needs no header and no library of a vendor. `kinds` has a letter per argument: P for a tensor
// (or an address), i for int32, l for int64. Two pointers follow the arguments: scratch memory, and one that is never used.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "interfaces/driver.hpp"

namespace {

using coilwork::DriverLaunch;
using coilwork::DriverLaunchEx;
using coilwork::HowToLaunch;
using coilwork::SetContext;

const Py_ssize_t kMostArguments = 510;
const Py_ssize_t kFixed = 5;

struct Kernel {
  PyObject_HEAD
  vectorcallfunc call;
  HowToLaunch how;
  SetContext set_context;
  void* context;
  Py_ssize_t count;
  char kinds[kMostArguments + 1];
  PyObject* name;
};

PyObject* data_ptr_name;  // the interned string "data_ptr"; set once, on import

bool read_pointer(PyObject* value, uint64_t* slot) {
  if (PyLong_Check(value)) {
    *slot = PyLong_AsUnsignedLongLong(value);
    return !(*slot == static_cast<uint64_t>(-1) && PyErr_Occurred());
  }
  PyObject* address = PyObject_VectorcallMethod(data_ptr_name, &value, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!address) return false;
  *slot = PyLong_AsUnsignedLongLong(address);
  Py_DECREF(address);
  return !(*slot == static_cast<uint64_t>(-1) && PyErr_Occurred());
}

bool read_number(PyObject* value, char kind, uint64_t* slot) {
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred()) return false;
  if (kind == 'i' && (number > INT32_MAX || number < INT32_MIN)) {
    PyErr_Format(PyExc_OverflowError, "size %lld does not fit the 32 bits that the kernel was compiled for", number);
    return false;
  }
  *slot = static_cast<uint64_t>(number);
  return true;
}

PyObject* kernel_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  Kernel* self = reinterpret_cast<Kernel*>(object);
  const Py_ssize_t given = PyVectorcall_NARGS(flags);
  if (given != self->count + kFixed || (keywords && PyTuple_GET_SIZE(keywords))) {
    PyErr_Format(PyExc_TypeError, "kernel %U takes %zd arguments, not %zd", self->name, self->count, given - kFixed);
    return nullptr;
  }
  int64_t grid[3];
  for (int axis = 0; axis < 3; ++axis) {
    grid[axis] = PyLong_AsLong(args[axis]);
    if (grid[axis] == -1 && PyErr_Occurred()) return nullptr;
    if (grid[axis] == 0) Py_RETURN_NONE;
    if (grid[axis] < 0 || grid[axis] > INT32_MAX) {
      PyErr_Format(PyExc_OverflowError, "kernel %U: a grid of %lld blocks cannot be launched", self->name,
                   static_cast<long long>(grid[axis]));
      return nullptr;
    }
  }
  void* stream = PyLong_AsVoidPtr(args[3]);
  if (!stream && PyErr_Occurred()) return nullptr;
  uint64_t slots[kMostArguments + 2];
  void* parameters[kMostArguments + 2];
  const Py_ssize_t count = self->count;
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* value = args[kFixed + k];
    const char kind = self->kinds[k];
    if (!(kind == 'P' ? read_pointer(value, &slots[k]) : read_number(value, kind, &slots[k]))) return nullptr;
  }
  if (!read_pointer(args[4], &slots[count])) return nullptr;
  slots[count + 1] = 0;
  for (Py_ssize_t k = 0; k < count + 2; ++k) parameters[k] = &slots[k];
  int result;
  Py_BEGIN_ALLOW_THREADS
  result = self->how(grid, stream, parameters);
  if (result == coilwork::INVALID_CONTEXT && self->set_context && self->context) {
    // a thread that has not used the device yet
    if (self->set_context(self->context) == 0)
      result = self->how(grid, stream, parameters);
  }
  Py_END_ALLOW_THREADS
  if (result) {
    PyErr_Format(PyExc_RuntimeError, "kernel %U: the driver refuses a launch of %lld x %lld x %lld blocks: error %d",
                 self->name, static_cast<long long>(grid[0]), static_cast<long long>(grid[1]),
                 static_cast<long long>(grid[2]), result);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* kernel_new(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long launch, launch_ex, set_context, function, context;
  unsigned threads, shared_bytes, cluster;
  int cooperative;
  const char* kinds;
  Py_ssize_t count;
  PyObject* name;
  if (!PyArg_ParseTuple(args, "KKKKKIIIps#U", &launch, &launch_ex, &set_context, &function, &context, &threads, &shared_bytes,
                        &cluster, &cooperative, &kinds, &count, &name))
    return nullptr;
  if (count > kMostArguments) {
    PyErr_SetString(PyExc_ValueError, "a kernel has too many arguments");
    return nullptr;
  }
  Kernel* self = reinterpret_cast<Kernel*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->call = kernel_call;
  self->how = HowToLaunch{reinterpret_cast<DriverLaunch>(static_cast<uintptr_t>(launch)),
                          reinterpret_cast<DriverLaunchEx>(static_cast<uintptr_t>(launch_ex)),
                          reinterpret_cast<void*>(static_cast<uintptr_t>(function)),
                          threads,
                          shared_bytes,
                          cluster,
                          cooperative != 0};
  self->set_context = reinterpret_cast<SetContext>(static_cast<uintptr_t>(set_context));
  self->context = reinterpret_cast<void*>(static_cast<uintptr_t>(context));
  self->count = count;
  for (Py_ssize_t k = 0; k < count; ++k) self->kinds[k] = kinds[k];
  Py_INCREF(name);
  self->name = name;
  return reinterpret_cast<PyObject*>(self);
}

void kernel_dealloc(PyObject* object) {
  Py_DECREF(reinterpret_cast<Kernel*>(object)->name);
  Py_TYPE(object)->tp_free(object);
}

PyTypeObject KernelType = {PyVarObject_HEAD_INIT(nullptr, 0) "coilwork_launcher.Kernel"};

PyModuleDef Module = {PyModuleDef_HEAD_INIT, "coilwork_launcher", nullptr, -1};

}  // namespace

PyMODINIT_FUNC PyInit_coilwork_launcher() {
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  if (!data_ptr_name) return nullptr;
  KernelType.tp_basicsize = sizeof(Kernel);
  KernelType.tp_dealloc = kernel_dealloc;
  KernelType.tp_call = PyVectorcall_Call;
  KernelType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  KernelType.tp_vectorcall_offset = offsetof(Kernel, call);
  KernelType.tp_new = kernel_new;
  if (PyType_Ready(&KernelType) < 0) return nullptr;
  PyObject* module = PyModule_Create(&Module);
  if (!module) return nullptr;
  Py_INCREF(&KernelType);
  if (PyModule_AddObject(module, "Kernel", reinterpret_cast<PyObject*>(&KernelType)) < 0) {
    Py_DECREF(&KernelType);
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
