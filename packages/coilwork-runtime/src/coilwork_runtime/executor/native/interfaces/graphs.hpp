// The part of the GPU driver's interface that records work on a stream and repeats it, found in the driver's library.
//
// Declared after NVIDIA's cuda.h and the chapters "Stream Management" and "Graph Management" of the CUDA driver API
// (https://docs.nvidia.com/cuda/cuda-driver-api/). Types that the documentation calls opaque are pointers.
#pragma once
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

namespace coilwork::driver {

enum : int { SUCCESS = 0 };
enum : unsigned { STREAM_NON_BLOCKING = 1 };  // CUstream_flags: it does not wait for the default stream
enum : int { CAPTURE_MODE_RELAXED = 2 };      // CUstreamCaptureMode: other threads may do what they like meanwhile

using Stream = void*;
using Graph = void*;
using GraphExec = void*;

// name, as the library exports it, parameters
#define COILWORK_GRAPH_FUNCTIONS(F)                                                        \
  F(stream_create, "cuStreamCreate", (Stream*, unsigned flags))                            \
  F(begin_capture, "cuStreamBeginCapture_v2", (Stream, int mode))                          \
  F(end_capture, "cuStreamEndCapture", (Stream, Graph*))                                   \
  F(is_capturing, "cuStreamIsCapturing", (Stream, int* state))                             \
  F(instantiate, "cuGraphInstantiateWithFlags", (GraphExec*, Graph, unsigned long long))   \
  F(launch, "cuGraphLaunch", (GraphExec, Stream))                                          \
  F(destroy, "cuGraphDestroy", (Graph))                                                    \
  F(destroy_exec, "cuGraphExecDestroy", (GraphExec))

struct Functions {
#define COILWORK_FIELD(name, symbol, parameters) int(*name) parameters = nullptr;
  COILWORK_GRAPH_FUNCTIONS(COILWORK_FIELD)
#undef COILWORK_FIELD

  // The name of a function that `library` has not, or null.
  const char* find(void* library) {
#define COILWORK_FIND(name, symbol, parameters)                             \
  name = reinterpret_cast<int(*) parameters>(dlsym(library, symbol));       \
  if (!name) return symbol;
    COILWORK_GRAPH_FUNCTIONS(COILWORK_FIND)
#undef COILWORK_FIND
    return nullptr;
  }
};

}  // namespace coilwork::driver
