// Finds out from tensors of which torch tells where a tensor has what `tensor_kinds.hpp` reads, and asks whether somebody listens to
// operators: a program runs only while nobody wants to see them. Modes of Python that listen are counted by libc10.
#pragma once
#include "call/tensor_kinds.hpp"

namespace coilwork {

struct Modes {
  bool (*any)(bool) = nullptr;   // null: torch has no such function
  PyObject* wanted = nullptr;    // asks whether one of the modes wants to see operators
};

inline Modes modes;  // guarded by the interpreter's lock

constexpr size_t MOST_BYTES = 192;  // of a tensor; no release had a smaller one
constexpr size_t STORAGE_BYTES = 64;

struct Sample {
  const char* tensor;
  uint64_t keys, storage, bytes, start;
};
template <class Found>
static size_t find_place(size_t most, const List<Sample>& samples, Found found) {
  for (size_t at = sizeof(void*); at < most; at += sizeof(uint64_t)) {
    bool all = true;
    for (const Sample& one : samples) all = all && found(one, at);
    if (all) return at;
  }
  return 0;
}

// The address of the tensor of an object; null with an exception.
static const char* address_of(PyObject* object) {
  const Reference number(PyObject_GetAttrString(object, "_cdata"));
  return number.get() ? static_cast<const char*>(PyLong_AsVoidPtr(number.get())) : nullptr;
}

// Learns from tuples: a tensor, its keys, the address of its storage (0: it has none), the bytes of that, its start. No two of a
// kind are equal. False with an exception.
static bool learn_from(PyObject* samples, PyObject* asked, const Kinds& common, uint64_t cpu, uint64_t marked) {
  tensor_kinds.plain = common;
  tensor_kinds.on_cpu = cpu;
  tensor_kinds.marks = marked;
  if (!modes.wanted) {
    Py_INCREF(asked);
    modes.wanted = asked;
    void* core = dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY);
    // bool c10::impl::TorchDispatchModeTLS::any_modes_set(bool skip_infra_modes)
    modes.any = reinterpret_cast<bool (*)(bool)>(core ? dlsym(core, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb") : nullptr);
  }
  if (tensor_kinds.keys_at) return true;
  List<Sample> known;
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(samples); ++k) {
    PyObject* tensor = nullptr;
    unsigned long long keys = 0, storage = 0, bytes = 0, start = 0;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(samples, k), "OKKKK", &tensor, &keys, &storage, &bytes, &start)) return false;
    const char* inside = address_of(tensor);
    if (!inside) return false;
    known.push_back({inside, keys, storage, bytes, start});
  }
  if (known.empty()) return true;
  tensor_kinds.storage_at = find_place(MOST_BYTES, known, [](const Sample& one, size_t at) { return TensorKinds::word(one.tensor, at) == one.storage; });
  tensor_kinds.start_at = find_place(MOST_BYTES, known, [](const Sample& one, size_t at) { return TensorKinds::word(one.tensor, at) == one.start; });
  tensor_kinds.bytes_at = find_place(STORAGE_BYTES, known, [](const Sample& one, size_t at) {
    return !one.storage || TensorKinds::word(reinterpret_cast<const char*>(one.storage), at) == one.bytes;
  });
  tensor_kinds.keys_at = find_place(MOST_BYTES, known, [](const Sample& one, size_t at) { return TensorKinds::word(one.tensor, at) == one.keys; });
  return true;
}

// Whether the tensor of an object lies in memory as `kinds` say; 2 if it is no tensor, -1 with an exception.
static int fits_object(PyObject* object, const Kinds& kinds) {
  const char* tensor = address_of(object);
  if (tensor) return tensor_kinds.fits(tensor, kinds);
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
  PyErr_Clear();
  return 2;
}

// Whether a mode of Python wants to see operators; with `own`, one of torch's own. Throws what asking raises.
static bool is_watched(bool own) {
  if (modes.any && !modes.any(false)) return false;
  const Reference answer = checked(PyObject_CallOneArg(modes.wanted, own ? Py_True : Py_False));
  return answer.get() == Py_True;
}

}  // namespace coilwork
