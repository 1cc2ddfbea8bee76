"""The C++ library for tests: that of the wheel, or one that is built once."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

import coilwork_runtime
from coilwork_aot.cpp_library import LIBRARY, build_library
from coilwork_runtime import native_build


def find_or_build(folder: Path) -> Path:
    """The library's file; skips where there is neither one nor a compiler."""
    if LIBRARY.exists():
        return LIBRARY
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ library, and no g++ to build it")
    data = build_library(native_build, Path(coilwork_runtime.__file__).parent, "g++", ("-O0",))
    assert data is not None, "the C++ library does not compile"
    path = folder / LIBRARY.name
    path.write_bytes(data)
    return path


class Library:
    """The functions of the C interface that tests of refusals need."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.coilwork_error_code.restype = ctypes.c_char_p
        self._library.coilwork_error_message.restype = ctypes.c_char_p
        self._library.coilwork_model_open.restype = ctypes.c_void_p

    def open(self, path: Path) -> tuple[str, str]:
        """Load a package; return the code and message of the refusal, empty if there is none."""
        model = ctypes.c_void_p()
        error = self._library.coilwork_model_open(str(path).encode(), None, ctypes.byref(model))
        if not error:
            self._library.coilwork_model_close(model)
            return "", ""
        pointer = ctypes.c_void_p(error)
        code: bytes = self._library.coilwork_error_code(pointer)
        message: bytes = self._library.coilwork_error_message(pointer)
        found = code.decode(), message.decode(errors="replace")
        self._library.coilwork_error_delete(pointer)
        return found
