"""The private torch API that this package touches; the same in 2.11 to 2.13."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import torch
from torch.library import Library as Library

_new_handles: Final = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
_tensors_of: Final = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs
_capsule_pointer: Final = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_new_capsule: Final = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def handles_of(tensors: list[torch.Tensor]) -> list[int]:
    """Return a new handle, which somebody has to delete, for each tensor: an address as an integer."""
    return [_capsule_pointer(capsule, None) for capsule in _new_handles(tensors)]


def tensors_from(handles: Sequence[int]) -> list[torch.Tensor]:
    """Return the tensors behind `handles`, which are deleted."""
    return _tensors_of([_new_capsule(handle, None, None) for handle in handles])


def new_library(namespace: str) -> Library:
    """Return a library that adds operators to `namespace`."""
    return Library(namespace, "FRAGMENT")


def size_in(argument: int | torch.SymInt) -> int:
    """Return an integer input as a number; 0 for the length of a jagged dimension, which has none and is only
    passed on.
    """
    if isinstance(argument, torch.SymInt) and argument.node.is_nested_int():
        return 0
    return int(argument)


def abi_version() -> int:
    """Return the version of torch's C interface as its C functions take it: major, minor and patch in the
    upper bytes.
    """
    major, minor, rest = torch.__version__.split("+")[0].split(".", 2)
    patch = "".join(c for c in rest if c.isdigit())[:1] or "0"
    return int(major) << 56 | int(minor) << 48 | int(patch) << 40
