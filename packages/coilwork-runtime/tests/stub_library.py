"""Libraries that stand for those of a GPU: compiled from text, and asked afterwards for the numbers that they
noted.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

API = """
#include <cmath>
#include <cstdint>
#include <cstring>
#define API extern "C" __attribute__((visibility("default")))
#define NUMBERS __attribute__((visibility("default"))) int64_t
"""
# Elements in memory: in cuBLASLt and cuDNN alike type 0 is f32 and 2 is f16; the others that are asked for
# here are bf16.
ELEMENTS = """
static float load(const void* data, int32_t type, int64_t at) {
  if (type == 0) return static_cast<const float*>(data)[at];
  const uint16_t half = static_cast<const uint16_t*>(data)[at];
  if (type == 2) return static_cast<float>(*reinterpret_cast<const _Float16*>(&half));
  uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value; memcpy(&value, &bits, 4); return value;
}
static void store(void* data, int32_t type, int64_t at, float value) {
  if (type == 0) { static_cast<float*>(data)[at] = value; return; }
  if (type == 2) { static_cast<_Float16*>(data)[at] = static_cast<_Float16>(value); return; }
  uint32_t bits; memcpy(&bits, &value, 4);
  static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
"""


class StubLibrary:
    """A library built from `source`, in which `API` exports a function and `NUMBERS` declares integers that
    can be seen from here.
    """

    def __init__(self, folder: Path, name: str, source: str) -> None:
        """Compile it as `name` in `folder`; skips the test where there is no compiler."""
        compiler = shutil.which("g++")
        if compiler is None:
            pytest.skip("needs g++")
        text = folder / f"{name}.cpp"
        text.write_text(API + source)
        self.path = folder / f"lib{name}.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-w", str(text), "-o", str(self.path)]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(self.path))

    def number(self, name: str) -> int:
        return ctypes.c_int64.in_dll(self.library, name).value

    def numbers(self, name: str, count: int) -> list[int]:
        return list((ctypes.c_int64 * count).in_dll(self.library, name))

    def set(self, name: str, value: int) -> None:
        ctypes.c_int64.in_dll(self.library, name).value = value
