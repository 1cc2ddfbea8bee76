"""A driver that runs its kernels on the CPU, and records and repeats what goes to a stream; a cuBLASLt and a
cuDNN that use its streams.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import stub_convolutions
import stub_products
from stub_library import ELEMENTS, StubLibrary

DRIVER = r"""
#include <functional>
#include <vector>
NUMBERS launches, graph_launches, instantiated, destroyed_graphs, want_parameters, fail_with, captured,
    fail_capture, fail_graphs;
NUMBERS refused_launch;
typedef std::vector<std::function<void()>> Actions;
static Actions* recorded = nullptr;
static void* const RECORDING = reinterpret_cast<void*>(0x5711);
// Does it now, or keeps it if it goes to the stream that is recorded.
static void put(void* stream, std::function<void()> action) {
  if (recorded && stream == RECORDING) recorded->push_back(action); else action();
}
typedef void (*Kernel)(const int64_t* parameters);
API int cuLaunchKernel(void* function, unsigned gx, unsigned, unsigned, unsigned, unsigned, unsigned,
    unsigned, void* stream, void** values, void**) {
  if (fail_with) return static_cast<int>(fail_with);
  std::vector<int64_t> given(want_parameters);
  for (size_t k = 0; k < given.size(); ++k) memcpy(&given[k], values[k], 8);
  ++launches;
  put(stream, [function, given] { reinterpret_cast<Kernel>(function)(given.data()); });
  return 0;
}
API int cuCtxSetCurrent(void*) { return 0; }
API int cuStreamCreate(void** stream, unsigned flags) { *stream = RECORDING; return flags == 1 ? 0 : 1; }
API int cuStreamIsCapturing(void*, int* state) { *state = int(captured); return 0; }
API int cuStreamBeginCapture_v2(void*, int mode) { recorded = new Actions(); return mode == 2 ?
    int(fail_capture) : 1; }
API int cuStreamEndCapture(void*, void** graph) { *graph = recorded; recorded = nullptr; return 0; }
API int cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
  ++instantiated; *made = new Actions(*static_cast<Actions*>(graph)); return 0;
}
API int cuGraphLaunch(void* graph, void*) {
  if (fail_graphs) return int(fail_graphs);
  ++graph_launches;
  for (auto& action : *static_cast<Actions*>(graph)) action();
  return 0;
}
API int cuGraphDestroy(void* graph) { delete static_cast<Actions*>(graph); return 0; }
API int cuGraphExecDestroy(void* graph) { ++destroyed_graphs; delete static_cast<Actions*>(graph); return 0; }

typedef void (*Heard)();
static Heard heard = nullptr;
API void listen(Heard callback) { heard = callback; }
// y[i] = 3 * x[i] + y[i] + c over n numbers of 64 bits
API void kernel(const int64_t* parameters) {
  if (heard) heard();
  const int64_t* x = reinterpret_cast<const int64_t*>(parameters[0]);
  int64_t* y = reinterpret_cast<int64_t*>(parameters[1]);
  for (int64_t k = 0; k < parameters[2]; ++k) y[k] = 3 * x[k] + y[k] + parameters[3];
}
// y[i] = x[i] + c
API void start(const int64_t* parameters) {
  const int64_t* x = reinterpret_cast<const int64_t*>(parameters[0]);
  int64_t* y = reinterpret_cast<int64_t*>(parameters[1]);
  for (int64_t k = 0; k < parameters[2]; ++k) y[k] = x[k] + parameters[3];
}
"""
PRODUCTS = r"""
API int cublasLtMatmul(void* handle, void* desc, const void* alpha, const void* a, void* al, const void* b,
    void* bl, const void* beta,
                       const void* c, void* cl, void* d, void* dl, const void* algo, void* workspace, size_t
                           size, void* stream) {
  // the descriptor is read when the product is put on a stream
  const product_library::Desc now = *static_cast<product_library::Desc*>(desc);
  put(stream, [=] {
    product_library::Desc then = now;
    const float one = 1, zero = 0;
    const uint64_t algorithm[8] = {0x77};
    product_library::multiply_now(handle, &then, &one, a, al, b, bl, &zero, c, cl, d, dl, algorithm,
        workspace, size, stream);
  });
  return 0;
}
"""
CONVOLUTIONS = r"""
API int cudnnBackendExecute(void* handle, void* plan, void* pack) {
  // the pack is gone when the convolution is computed
  const convolution_library::Desc now = *static_cast<convolution_library::Desc*>(pack);
  put(*static_cast<void**>(handle), [=] {
    convolution_library::Desc then = now;
    convolution_library::execute_now(handle, plan, &then);
  });
  return 0;
}
"""


def _within(name: str, source: str, exported: str, renamed: str) -> str:
    """`source` in a namespace, with one of its functions under another name."""
    includes = "\n".join(line for line in source.splitlines() if line.startswith("#include"))
    rest = "\n".join(line for line in source.splitlines() if not line.startswith("#include"))
    return f"{includes}\n#define {exported} {renamed}\nnamespace {name} {{\n{rest}\n}}\n#undef {exported}\n"


LIBRARIES = "".join(
    (
        ELEMENTS,
        _within("product_library", stub_products.SOURCE, "cublasLtMatmul", "multiply_now"),
        PRODUCTS,
        _within("convolution_library", stub_convolutions.SOURCE, "cudnnBackendExecute", "execute_now"),
        CONVOLUTIONS,
    )
)


class StubGraphs(StubLibrary):
    """The libraries in one, and their counters."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "stub_graphs", DRIVER + LIBRARIES)
        self.set("want_parameters", 6)

    def address(self, name: str) -> int:
        return ctypes.cast(self.library[name], ctypes.c_void_p).value or 0
