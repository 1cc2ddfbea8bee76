// What a tensor is to torch's dispatcher, and whether somebody listens to operators: a program reads memory, so it takes tensors that
// have some, and only while nobody wants to see its operators.
//
// torch's C interface tells neither. The set of a tensor's dispatch keys is a word of the tensor itself, and so is where its memory is;
// at which place is found out by looking at some tensors of which torch tells. Modes of Python that listen are counted by libc10.
#pragma once
#include "call/references.hpp"

namespace coilwork {

struct TensorKinds {
  static constexpr size_t MOST_BYTES = 192;  // of a tensor; no release had a smaller one
  static constexpr size_t STORAGE_BYTES = 64;
  // Where a tensor has its keys, its storage and the first element's place in that, and where a storage has its size; 0: not known.
  size_t keys_at = 0, storage_at = 0, start_at = 0, bytes_at = 0;
  bool (*any_modes)(bool) = nullptr;  // null: torch has no such function
  PyObject* wanted = nullptr;         // asks whether one of the modes wants to see operators
  Kinds plain;                        // of tensors in memory
  uint64_t on_cpu = 0;                // the key of a tensor in the memory of the CPU
  uint64_t marks = 0;                 // keys of tensors that operators read with another sign

  // Learns from tuples: a tensor, its keys, the address of its storage (0: it has none), the bytes of that, its start. No two of a
  // kind are equal. False with an exception.
  bool learn(PyObject* samples, PyObject* asked, const Kinds& common, uint64_t cpu, uint64_t marked) {
    plain = common;
    on_cpu = cpu;
    marks = marked;
    if (!wanted) {
      Py_INCREF(asked);
      wanted = asked;
      void* core = dlopen("libc10.so", RTLD_NOLOAD | RTLD_LAZY);
      // bool c10::impl::TorchDispatchModeTLS::any_modes_set(bool skip_infra_modes)
      any_modes = reinterpret_cast<bool (*)(bool)>(core ? dlsym(core, "_ZN3c104impl20TorchDispatchModeTLS13any_modes_setEb") : nullptr);
    }
    if (keys_at) return true;
    List<Sample> known;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(samples); ++k) {
      PyObject* tensor = nullptr;
      unsigned long long keys = 0, storage = 0, bytes = 0, start = 0;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(samples, k), "OKKKK", &tensor, &keys, &storage, &bytes, &start)) return false;
      const char* inside = address(tensor);
      if (!inside) return false;
      known.push_back({inside, keys, storage, bytes, start});
    }
    if (known.empty()) return true;
    storage_at = place(MOST_BYTES, known, [](const Sample& one, size_t at) { return word(one.tensor, at) == one.storage; });
    start_at = place(MOST_BYTES, known, [](const Sample& one, size_t at) { return word(one.tensor, at) == one.start; });
    bytes_at = place(STORAGE_BYTES, known, [](const Sample& one, size_t at) {
      return !one.storage || word(reinterpret_cast<const char*>(one.storage), at) == one.bytes;
    });
    keys_at = place(MOST_BYTES, known, [](const Sample& one, size_t at) { return word(one.tensor, at) == one.keys; });
    return true;
  }

  // Whether a tensor lies in memory as `kinds` say. A handle is the address of a pointer to the tensor.
  bool fits(AtenTensorHandle handle, const Kinds& kinds) const { return fits(tensor_in(handle), kinds); }

  // The same of a constant or an operator's result, which may be marked as negated or conjugated: only operators read it then.
  bool fits_inside(AtenTensorHandle handle, const Kinds& kinds) const {
    return fits(tensor_in(handle), {kinds.allowed | marks, kinds.required});
  }

  // The same of an object; 2 if it is no tensor, -1 with an exception.
  int fits(PyObject* object, const Kinds& kinds) const {
    const char* tensor = address(object);
    if (tensor) return fits(tensor, kinds);
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    return 2;
  }

  // Whether operators read a tensor with another sign than memory has.
  bool is_marked(AtenTensorHandle handle) const { return word(tensor_in(handle), keys_at) & marks; }

  // Whether two tensors have one memory; -1 where that is not known.
  int share(AtenTensorHandle one, AtenTensorHandle other) const {
    const uint64_t first = storage_at ? word(tensor_in(one), storage_at) : 0, second = storage_at ? word(tensor_in(other), storage_at) : 0;
    return first && second ? first == second : -1;
  }

  bool is_on_cpu(AtenTensorHandle handle) const { return word(tensor_in(handle), keys_at) & on_cpu; }

  // Whether the memory of a tensor holds so many elements; it does not where somebody has resized it.
  bool holds(AtenTensorHandle handle, int64_t elements, size_t item_bytes) const {
    if (elements == 0) return true;
    int64_t start = 0, bytes = 0;
    if (storage_at && start_at && bytes_at) {
      const char* tensor = tensor_in(handle);
      const uint64_t storage = word(tensor, storage_at);
      start = static_cast<int64_t>(word(tensor, start_at));
      bytes = storage ? static_cast<int64_t>(word(reinterpret_cast<const char*>(storage), bytes_at)) : 0;
    } else if (torch.aoti_torch_get_storage_offset(handle, &start) != 0 || torch.aoti_torch_get_storage_size(handle, &bytes) != 0) {
      return false;
    }
    return (start + elements) * static_cast<int64_t>(item_bytes) <= bytes;
  }

  // Whether a mode of Python wants to see operators; with `own`, one of torch's own. Throws what asking raises.
  bool is_watched(bool own) const {
    if (any_modes && !any_modes(false)) return false;
    const Reference answer = checked(PyObject_CallOneArg(wanted, own ? Py_True : Py_False));
    return answer.get() == Py_True;
  }

 private:
  struct Sample {
    const char* tensor;
    uint64_t keys, storage, bytes, start;
  };
  template <class Found>
  static size_t place(size_t most, const List<Sample>& samples, Found found) {
    for (size_t at = sizeof(void*); at < most; at += sizeof(uint64_t)) {
      bool all = true;
      for (const Sample& one : samples) all = all && found(one, at);
      if (all) return at;
    }
    return 0;
  }
  bool fits(const char* tensor, const Kinds& kinds) const {
    const uint64_t keys = word(tensor, keys_at);
    return !(keys & ~kinds.allowed) && (keys & kinds.required);
  }
  static const char* tensor_in(AtenTensorHandle handle) { return *reinterpret_cast<const char* const*>(handle); }
  // The address of the tensor of an object; null with an exception.
  static const char* address(PyObject* object) {
    const Reference number(PyObject_GetAttrString(object, "_cdata"));
    return number.get() ? static_cast<const char*>(PyLong_AsVoidPtr(number.get())) : nullptr;
  }
  static uint64_t word(const char* start, size_t at) {
    uint64_t found = 0;
    memcpy(&found, start + at, sizeof found);
    return found;
  }
};

inline TensorKinds tensor_kinds;  // guarded by the interpreter's lock

}  // namespace coilwork
