"""A GPU that is not there: a driver and the part of libtorch_cuda that programs call, in the host's memory.

Loading a module takes the name of one of the functions below for machine code; a launch calls it for each
block. Both libraries have the names of the real ones, so a process that loads them must not use others.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Final

DRIVER: Final = r"""
#include <cstdint>
#include <cstring>
#define API extern "C" __attribute__((visibility("default")))
API int64_t launches = 0, loads = 0, last_stream = 0, last_blocks = 0, last_threads = 0, refuse = 0;
template <class T> static T read(void** values, int k) { T v; memcpy(&v, values[k], sizeof v); return v; }
using Function = void (*)(int64_t block, unsigned threads, void** values);
static void relu_add(int64_t block, unsigned threads, void** values) {
  const float *a = read<float*>(values, 0), *b = read<float*>(values, 1);
  float* c = read<float*>(values, 2);
  const int64_t n = read<int64_t>(values, 3);
  for (int64_t i = block * threads; i < n && i < (block + 1) * threads; ++i)
    c[i] = (a[i] > 0 ? a[i] : 0) + b[i];
}
static void double_it(int64_t block, unsigned threads, void** values) {  // through scratch memory
  float* io = read<float*>(values, 0);
  const int32_t n = read<int32_t>(values, 1);
  double* scratch = read<double*>(values, 2);
  for (int32_t i = block * threads; i < n && i < (block + 1) * threads; ++i) {
    scratch[2 * i] = io[i];
    io[i] = 2 * scratch[2 * i];
  }
}
API int cuInit(unsigned) { return 0; }
API int cuDeviceGetCount(int* count) { *count = 2; return 0; }
API int cuDeviceGet(int* device, int index) { *device = index; return 0; }
API int cuDeviceGetAttribute(int* value, int which, int) { *value = which == 75 ? 9 : 0; return 0; }
API int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = reinterpret_cast<void*>(0x70 + device);
  return 0;
}
API int cuCtxSetCurrent(void*) { return 0; }
API int cuModuleLoadData(void** module, const void* image) {
  __atomic_fetch_add(&loads, 1, __ATOMIC_RELAXED);
  const char* name = static_cast<const char*>(image);
  *module = !strcmp(name, "relu_add") ? (void*)relu_add : !strcmp(name, "double_it") ? (void*)double_it : 0;
  return *module ? 0 : 200;
}
API int cuModuleGetFunction(void** function, void* module, const char*) { *function = module; return 0; }
API int cuFuncSetAttribute(void*, int, int) { return 0; }
API int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                       unsigned, unsigned, void* stream, void** values, void**) {
  if (refuse) return int(refuse);
  // several threads launch at once: what the counters hold is for those who read them alone
  const int64_t blocks = int64_t(x) * y * z;
  __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&last_stream, reinterpret_cast<int64_t>(stream), __ATOMIC_RELAXED);
  __atomic_store_n(&last_blocks, blocks, __ATOMIC_RELAXED);
  __atomic_store_n(&last_threads, int64_t(threads), __ATOMIC_RELAXED);
  for (int64_t block = 0; block < blocks; ++block)
    reinterpret_cast<Function>(function)(block, threads, values);
  return 0;
}
"""
TORCH: Final = r"""
#include <cstdint>
#define API extern "C" __attribute__((visibility("default")))
API int32_t current_device = 0;
API int64_t guards = 0, stream = 0x50;
API int32_t aoti_torch_device_type_cuda() { return 0; }
API int32_t aoti_torch_get_current_device_index(int32_t* index) { *index = current_device; return 0; }
API int32_t aoti_torch_create_cuda_guard(int32_t, void** guard) {
  __atomic_fetch_add(&guards, 1, __ATOMIC_RELAXED);
  *guard = &guards;
  return 0;
}
API int32_t aoti_torch_delete_cuda_guard(void*) {
  __atomic_fetch_sub(&guards, 1, __ATOMIC_RELAXED);
  return 0;
}
API int32_t aoti_torch_get_current_cuda_stream(int32_t index, void** found) {
  *found = reinterpret_cast<void*>(stream + index);
  return 0;
}
"""


def load_stubs(folder: Path) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Build and load both; the driver's counters, and libtorch_cuda's."""
    loaded = []
    for name, text in (("libcuda.so.1", DRIVER), ("libtorch_cuda.so", TORCH)):
        source = folder / f"{name}.cpp"
        source.write_text(text, encoding="utf-8")
        command = ["g++", "-shared", "-fPIC", "-O1", "-w", str(source), f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", str(folder / name)], check=True)
        loaded.append(ctypes.CDLL(str(folder / name)))
    return loaded[0], loaded[1]
