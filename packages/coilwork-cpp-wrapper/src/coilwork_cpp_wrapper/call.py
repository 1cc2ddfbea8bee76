"""Calling a built program from Python."""

from __future__ import annotations

import ctypes
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_cpp_wrapper.program import CppProgram
from coilwork_cpp_wrapper.torch_compat import handles_of, tensors_from
from coilwork_runtime import KernelBuildError, LayoutError

INDEX_FAILED: Final = 3
LAYOUT_FAILED: Final = 4
LAYOUT_REMEDY: Final = (
    "call through torch.compile, which compiles again for new layouts, or pass the compiled layout"
)

Result = torch.Tensor | int | None


class CompiledProgram:
    """A program in a loaded library. Called with one list, which it empties, it returns a tuple.

    Tensors cross as handles, without copying; integers as 64-bit numbers. The interpreter's lock is released during the
    call, and calls from several threads may overlap.

    Raises, when called:
        LayoutError: an input is not what the program was compiled for.
        IndexError: an index was out of range. RuntimeError: another check, or an operator, failed. The message names the
            instruction and the source lines it implements.
    """

    def __init__(
        self, program: CppProgram, library: ctypes.CDLL, constants: Mapping[str, torch.Tensor]
    ) -> None:
        self.program = program
        self._run = library.coilwork_run
        self._run.argtypes = [ctypes.c_void_p] * 5
        self._run.restype = ctypes.c_int
        self._last_error: Callable[[], bytes] = library.coilwork_last_error
        library.coilwork_last_error.argtypes = []
        library.coilwork_last_error.restype = ctypes.c_char_p
        handles = handles_of([constants[key] for key in program.constants])
        self._constants = (ctypes.c_void_p * len(handles))(*handles)
        # turning handles into tensors deletes them; at exit the process does that
        weakref.finalize(self, tensors_from, handles).atexit = False
        self._is_tensor = tuple(port.kind == "tensor" for port in program.inputs)
        kinds = [port.kind for port in program.outputs]
        self._kinds = tuple(kinds)
        self._outputs = ctypes.c_void_p * sum(kind != "size" for kind in kinds)
        self._sizes = ctypes.c_int64 * sum(kind == "size" for kind in kinds)

    def __call__(self, args: list[Any]) -> tuple[Result, ...]:
        handles, numbers = self._take(args)
        inputs = (ctypes.c_void_p * len(handles))(*handles)
        sizes = (ctypes.c_int64 * len(numbers))(*numbers)
        outputs, output_sizes = self._outputs(), self._sizes()
        kind = self._run(self._constants, inputs, sizes, outputs, output_sizes)
        if kind:
            self._raise(kind)
        tensors = iter(tensors_from([handle for handle in outputs if handle]))
        extents = iter(output_sizes)
        results: list[Result] = []
        for port in self._kinds:
            results.append(next(tensors) if port == "tensor" else next(extents) if port == "size" else None)
        return tuple(results)

    def _take(self, args: list[Any]) -> tuple[list[int], list[int]]:
        """Handles of the tensors and the integers of `args`, which is emptied so that only the handles keep memory."""
        expected = self._is_tensor
        fits = len(args) == len(expected) and all(
            isinstance(arg, torch.Tensor) == tensor for arg, tensor in zip(args, expected, strict=True)
        )
        if not fits:
            wanted = ", ".join(port.name for port in self.program.inputs)
            given = ", ".join(type(arg).__name__ for arg in args)
            raise LayoutError(
                "input-count",
                f"program {self.program.name} takes ({wanted})",
                reason=f"it is given ({given})",
            )
        tensors = [arg for arg, tensor in zip(args, expected, strict=True) if tensor]
        numbers = [int(arg) for arg, tensor in zip(args, expected, strict=True) if not tensor]
        args.clear()
        return handles_of(tensors), numbers

    def _raise(self, kind: int) -> None:
        message = self._last_error().decode("utf-8", "replace")
        if kind == LAYOUT_FAILED:
            raise LayoutError("input-layout", message, remedy=LAYOUT_REMEDY)
        if kind == INDEX_FAILED:
            raise IndexError(message)
        raise RuntimeError(message)


def load_program(
    program: CppProgram, library: bytes, constants: Mapping[str, torch.Tensor]
) -> CompiledProgram:
    """Load the bytes of a shared library.

    Raises:
        KernelBuildError: it does not load.
        KeyError: a constant is missing.
    """
    with tempfile.TemporaryDirectory(prefix="coilwork-program-") as folder:
        # The file may go once it is mapped, and every program gets a library of its own.
        path = Path(folder, "program.so")
        path.write_bytes(library)
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:
            raise KernelBuildError(
                program.name, reason=f"the built library does not load: {error}"
            ) from error
    return CompiledProgram(program, loaded, constants)
