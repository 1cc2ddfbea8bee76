"""A driver library that launches nothing and remembers everything, for machines without a GPU."""

from __future__ import annotations

from pathlib import Path

from stub_library import StubLibrary

SOURCE = r"""
NUMBERS record[16], parameters[64], want_parameters, fail_with;
NUMBERS launches, shared_limit, current_context, no_context, modules;
API int cuModuleLoadData(void** module, const void* image) {
  ++modules;
  if (*static_cast<const char*>(image) == '!') return 200;
  if (*static_cast<const char*>(image) == '?') return 710;
  *module = reinterpret_cast<void*>(0x1000);
  return 0;
}
API int cuModuleGetFunction(void** function, void*, const char* name) {
  if (!strcmp(name, "absent")) return 500;
  *function = reinterpret_cast<void*>(0x2000 + strlen(name));
  return 0;
}
API int cuFuncSetAttribute(void*, int attribute, int value) {
  record[8] = attribute; record[9] = value;
  return value > 232448 ? 1 : 0;
}
API int cuFuncGetAttribute(int* value, int attribute, void*) {
  *value = attribute == 4 ? 40 : attribute == 3 ? 16 : 0;
  return 0;
}
API int cuCtxGetCurrent(void** context) { *context = no_context ? nullptr : reinterpret_cast<void*>(0x77);
    return 0; }
API int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
API int cuDevicePrimaryCtxRetain(void** context, int) { *context = reinterpret_cast<void*>(0x78); return 0; }
API int cuCtxSetCurrent(void* context) { current_context = reinterpret_cast<int64_t>(context); fail_with = 0;
    return 0; }
API int cuGetErrorName(int, const char** name) { *name = "CUDA_ERROR_STUB"; return 0; }
API int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
    unsigned bz,
                       unsigned shared, void* stream, void** values, void**) {
  if (fail_with) return static_cast<int>(fail_with);
  const int64_t now[8] = {reinterpret_cast<int64_t>(function), gx, gy, gz, int64_t(bx) * by * bz, shared,
                          reinterpret_cast<int64_t>(stream), 0};
  memcpy(record, now, sizeof now);
  for (int64_t k = 0; k < want_parameters; ++k) memcpy(&parameters[k], values[k], 8);
  ++launches;
  return 0;
}
NUMBERS attributes[16], attribute_count;
struct Attribute { int32_t which, padding; uint32_t numbers[16]; };
struct Config { unsigned grid[3], block[3], shared; void* stream; Attribute* attributes; unsigned count; };
API int cuLaunchKernelEx(const Config* config, void* function, void** values, void** extra) {
  const int failed = cuLaunchKernel(function, config->grid[0], config->grid[1], config->grid[2],
      config->block[0], config->block[1],
                                    config->block[2], config->shared, config->stream, values, extra);
  if (failed) return failed;
  attribute_count = config->count;
  for (unsigned k = 0; k < config->count; ++k) {
    attributes[4 * k] = config->attributes[k].which;
    for (int n = 0; n < 3; ++n) attributes[4 * k + 1 + n] = config->attributes[k].numbers[n];
  }
  return 0;
}
"""


class StubDriver(StubLibrary):
    """The library and its memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "stub_cuda", SOURCE)

    def launch(self) -> list[int]:
        """Function, grid (3), threads, shared bytes, stream of the last launch."""
        return self.numbers("record", 16)[:7]

    def attributes(self) -> list[list[int]]:
        """Number and first three values of each attribute of the last launch that had some."""
        values = self.numbers("attributes", 16)
        return [values[4 * k : 4 * k + 4] for k in range(self.number("attribute_count"))]

    def parameters(self) -> list[int]:
        return self.numbers("parameters", 64)[: self.number("want_parameters")]
