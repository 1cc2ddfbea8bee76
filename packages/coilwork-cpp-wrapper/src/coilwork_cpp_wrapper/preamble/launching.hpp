// What a program and its launcher (launching.cpp) know of each other.
#include <stddef.h>
#include <stdint.h>

extern "C" {
// One launch: addresses of tensors, sizes, and who gives scratch memory, which may throw.
struct CoilworkLaunch {
  const void* const* addresses;
  size_t tensors;
  const int64_t* sizes;
  size_t numbers;
  int32_t device;  // on which the tensors are
  void* stream;
  uint64_t (*scratch)(void* context, int64_t bytes);
  void* context;
  char* error;     // room for words
  size_t room;
};

// A version of a kernel in machine code that the library brings.
struct CoilworkImage {
  const char* name;
  const void* code;
  const int64_t* values;  // of the kernel's compile-time parameters
  uint32_t value_count, threads, shared_bytes, cluster;
  uint64_t scratch_bytes;
  bool cooperative;
};

// A kernel that the library brings: the manifest's bytes, and its versions in order.
struct CoilworkEmbedded {
  const char* manifest;
  size_t size;
  const CoilworkImage* images;
  size_t versions;
};

// In the order of the program's kernels; null where Python binds them.
extern __attribute__((weak, visibility("hidden"))) const CoilworkEmbedded coilwork_embedded[];

// How a kernel is launched, from the bytes of its launch descriptor; null with words in `error`.
const void* coilwork_read_form(const char* data, size_t size, char* error, size_t room);
// The same of a kernel that the library brings, whose code is put on a device.
const void* coilwork_load_form(const CoilworkEmbedded* kernel, int32_t device, char* error, size_t room);
// 0, or the kind of a failure (support.hpp) with words in `error`; below 0, the form is for other arguments or another device.
int coilwork_launch(const void* form, const CoilworkLaunch* launch);
}
