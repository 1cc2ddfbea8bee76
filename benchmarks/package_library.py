"""The C++ library for packages, called from Python through its C interface: for comparisons with what Python
makes of the same package.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

import coilwork_runtime
from coilwork_aot.cpp_library import LIBRARY, build_library
from coilwork_runtime import native_build

_ROOM: Final = 256
_TENSOR: Final = 1
_DEVICES: Final = {"cpu": 0, "cuda": 1}


class _Memory(ctypes.Structure):
    """`CoilworkMemory` of model_c.h."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("dtype", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
    )


class _Options(ctypes.Structure):
    """`CoilworkOptions` of model_c.h as far as it is used; what follows has its defaults."""

    _fields_ = (("size", ctypes.c_size_t), ("device", ctypes.c_char_p))


class _Value(ctypes.Structure):
    """`CoilworkValue` of model_c.h."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("tensor", ctypes.c_void_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("text", ctypes.c_char_p),
    )


# By the numbers of torch's C interface, as `CoilworkDtype` has them.
_DTYPES: Final = {
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.bool: 11,
    torch.bfloat16: 15,
}


@cache
def _open_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY)) if LIBRARY.exists() else _build_library()
    for name in ("error_code", "error_message"):
        getattr(library, f"coilwork_{name}").restype = ctypes.c_char_p
    for name in ("tensor_make", "tensor_describe", "tensor_copy", "model_open", "model_call"):
        getattr(library, f"coilwork_{name}").restype = ctypes.c_void_p
    return library


def _build_library() -> ctypes.CDLL:
    data = build_library(native_build, Path(coilwork_runtime.__file__).parent, "g++", ("-O1",))
    if data is None:
        raise RuntimeError("the C++ library does not compile")
    with tempfile.TemporaryDirectory(prefix="coilwork-library-") as folder:
        path = Path(folder, LIBRARY.name)
        path.write_bytes(data)
        return ctypes.CDLL(str(path))


class PackageInCpp:
    """A package that the C++ library has loaded for `device`. It takes and gives tensors.

    Raises:
        RuntimeError: the library refuses the package or a call; the message begins with the code.
    """

    def __init__(self, path: Path, device: str = "cpu") -> None:
        self._library = _open_library()
        self._model = ctypes.c_void_p()
        options = _Options(size=ctypes.sizeof(_Options), device=device.encode())
        opened = self._library.coilwork_model_open
        self._check(opened(str(path).encode(), ctypes.byref(options), ctypes.byref(self._model)))

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """Return the tensors among the results of the only entry point, in their order."""
        given = [self._make(value) for value in inputs]
        values = (_Value * len(given))(*(_Value(kind=_TENSOR, tensor=one) for one in given))
        results, count = (_Value * _ROOM)(), ctypes.c_size_t(_ROOM)
        call = self._library.coilwork_model_call
        try:
            self._check(
                call(
                    self._model,
                    ctypes.c_size_t(0),
                    values,
                    ctypes.c_size_t(len(given)),
                    results,
                    ctypes.byref(count),
                )
            )
        finally:
            for one in given:
                self._library.coilwork_tensor_delete(ctypes.c_void_p(one))
        return [self._take(one.tensor) for one in results[: count.value] if one.kind == _TENSOR]

    def __del__(self) -> None:
        """Unload the package; its results stay."""
        self._library.coilwork_model_close(self._model)

    def _make(self, value: Tensor) -> int:
        sizes = (ctypes.c_int64 * value.dim())(*value.shape)
        strides = (ctypes.c_int64 * value.dim())(*value.stride())
        memory = _Memory(
            size=ctypes.sizeof(_Memory),
            data=value.data_ptr(),
            rank=value.dim(),
            sizes=sizes,
            strides=strides,
            dtype=_DTYPES[value.dtype],
            device=_DEVICES[value.device.type],
            device_index=max(value.get_device(), 0),
        )
        made = ctypes.c_void_p()
        self._check(self._library.coilwork_tensor_make(ctypes.byref(memory), None, None, ctypes.byref(made)))
        assert made.value is not None
        return made.value

    def _take(self, handle: int) -> Tensor:
        """Copy a result, and let go of it."""
        memory = _Memory(size=ctypes.sizeof(_Memory))
        tensor = ctypes.c_void_p(handle)
        self._check(self._library.coilwork_tensor_describe(tensor, ctypes.byref(memory)))
        sizes, strides = memory.sizes[: memory.rank], memory.strides[: memory.rank]
        dtype = next(one for one, number in _DTYPES.items() if number == memory.dtype)
        device = next(kind for kind, number in _DEVICES.items() if number == memory.device)
        place = device if device == "cpu" else f"{device}:{memory.device_index}"
        made = torch.empty_strided(sizes, strides, dtype=dtype, device=place)
        here = self._make(made)
        self._check(self._library.coilwork_tensor_copy(ctypes.c_void_p(here), tensor))
        for one in (here, handle):
            self._library.coilwork_tensor_delete(ctypes.c_void_p(one))
        return made

    def _check(self, error: Any) -> None:
        if not error:
            return
        pointer = ctypes.c_void_p(error)
        code, message = (
            getattr(self._library, f"coilwork_error_{name}")(pointer).decode(errors="replace")
            for name in ("code", "message")
        )
        self._library.coilwork_error_delete(pointer)
        raise RuntimeError(f"{code}: {message}")


__all__: Sequence[str] = ["PackageInCpp"]
