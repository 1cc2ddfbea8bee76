// What a tensor is to torch's dispatcher: a program reads memory, so it takes tensors that have some.
//
// torch's C interface tells neither. The set of a tensor's dispatch keys is a word of the tensor itself, and so is where its memory is;
// at which place Python finds out (tensor_samples.hpp). Without it every tensor is taken for one in memory.
#pragma once
#include "call/host.hpp"

namespace coilwork {

struct TensorKinds {
  // Where a tensor has its keys, its storage and the first element's place in that, and where a storage has its size; 0: not known.
  size_t keys_at = 0, storage_at = 0, start_at = 0, bytes_at = 0;
  Kinds plain;                        // of tensors in memory
  uint64_t on_cpu = 0;                // the key of a tensor in the memory of the CPU
  uint64_t marks = 0;                 // keys of tensors that operators read with another sign

  // Whether a tensor lies in memory as `kinds` say. A handle is the address of a pointer to the tensor.
  bool fits(AtenTensorHandle handle, const Kinds& kinds) const { return fits(tensor_in(handle), kinds); }

  // The same of a constant or an operator's result, which may be marked as negated or conjugated: only operators read it then.
  bool fits_inside(AtenTensorHandle handle, const Kinds& kinds) const {
    return fits(tensor_in(handle), {kinds.allowed | marks, kinds.required});
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

  // The same by the address of a tensor.
  bool fits(const char* tensor, const Kinds& kinds) const {
    const uint64_t keys = word(tensor, keys_at);
    return !(keys & ~kinds.allowed) && (keys & kinds.required);
  }
  static const char* tensor_in(AtenTensorHandle handle) { return *reinterpret_cast<const char* const*>(handle); }
  static uint64_t word(const char* start, size_t at) {
    uint64_t found = 0;
    memcpy(&found, start + at, sizeof found);
    return found;
  }
};

inline TensorKinds tensor_kinds;  // guarded by the interpreter's lock

// Whether the memory of a tensor is large enough for what it says that it has.
inline bool lies_in_memory(AtenTensorHandle tensor) {
  int64_t rank = 0, last = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0;
  if (torch.aoti_torch_get_dim(tensor, &rank) || torch.aoti_torch_get_sizes(tensor, &sizes) || torch.aoti_torch_get_dtype(tensor, &dtype) ||
      torch.aoti_torch_get_strides(tensor, &strides))
    return true;
  for (int64_t d = 0; d < rank; ++d) {
    if (sizes[d] == 0) return true;
    last += (sizes[d] - 1) * strides[d];
  }
  return tensor_kinds.holds(tensor, last + 1, torch.aoti_torch_dtype_element_size(dtype));
}

}  // namespace coilwork
