"""Calling a built program from Python."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_cpp_wrapper.calls import register_relays
from coilwork_cpp_wrapper.module import CppProgram
from coilwork_cpp_wrapper.torch_compat import handles_of, size_in, tensors_from
from coilwork_runtime import KernelBuildError, LayoutError
from coilwork_runtime.folders import temporary_folder
from coilwork_runtime.layouts import INPUT_REMEDY, RESULT_REMEDY

INDEX_FAILED: Final = 3
LAYOUT_FAILED: Final = 4
RESULT_FAILED: Final = 5
DIVISION_FAILED: Final = 6

Result = torch.Tensor | int | None


class CompiledProgram:
    """A program in a loaded library. Called with one list, which it empties, it returns a tuple.

    Tensors cross as handles, without copying; integers as 64-bit numbers. The interpreter's lock is released
    during the call, and calls from several threads may overlap.

    Raises, when called:
        LayoutError: an input is not what the program was compiled for, or an operator's result is not what
        was planned. IndexError: an index was out of range. ZeroDivisionError: a number that data decides was
        divided by 0. RuntimeError: another check, or an operator, failed. The message names the
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
        # Array types are made once: looking one up costs as much as a small allocation.
        self._is_tensor = tuple(port.kind == "tensor" for port in program.inputs)
        self._inputs = ctypes.c_void_p * sum(self._is_tensor)
        self._numbers = ctypes.c_int64 * (len(self._is_tensor) - sum(self._is_tensor))
        kinds = [port.kind for port in program.outputs]
        self._kinds = tuple(kinds)
        self._only_tensors = all(kind == "tensor" for kind in kinds)
        self._outputs = ctypes.c_void_p * sum(kind != "size" for kind in kinds)
        self._sizes = ctypes.c_int64 * sum(kind == "size" for kind in kinds)

    def __call__(self, args: list[Any]) -> tuple[Result, ...]:
        tensors: list[torch.Tensor] = []
        numbers: list[int] = []
        expected = self._is_tensor
        if len(args) != len(expected):
            raise self._misfit(args)
        for arg, is_tensor in zip(args, expected, strict=True):
            if isinstance(arg, torch.Tensor) is not is_tensor:
                raise self._misfit(args)
            if is_tensor:
                tensors.append(arg)
            else:
                numbers.append(size_in(arg))
        sizes = self._numbers(*numbers)
        inputs = self._inputs(*handles_of(tensors))
        # from here on only the handles keep the inputs' memory
        args.clear()
        tensors.clear()
        arg = None
        outputs, output_sizes = self._outputs(), self._sizes()
        kind = self._run(self._constants, inputs, sizes, outputs, output_sizes)
        if kind:
            self._raise(kind)
        return self._results(outputs, output_sizes)

    def _results(self, outputs: Iterable[int | None], output_sizes: Iterable[int]) -> tuple[Result, ...]:
        tensors = tensors_from([handle for handle in outputs if handle])
        if self._only_tensors:
            return tuple(tensors)
        found, extents = iter(tensors), iter(output_sizes)
        results: list[Result] = []
        for kind in self._kinds:
            results.append(next(found) if kind == "tensor" else next(extents) if kind == "size" else None)
        return tuple(results)

    def _misfit(self, args: list[Any]) -> LayoutError:
        wanted = ", ".join(port.name for port in self.program.inputs)
        given = ", ".join(type(arg).__name__ for arg in args)
        return LayoutError(
            "input-count", f"program {self.program.name} takes ({wanted})", reason=f"it is given ({given})"
        )

    def _raise(self, kind: int) -> None:
        message = self._last_error().decode("utf-8", "replace")
        if kind == LAYOUT_FAILED:
            raise LayoutError("input-layout", message, remedy=INPUT_REMEDY)
        if kind == RESULT_FAILED:
            raise LayoutError("operator-shape", message, remedy=RESULT_REMEDY)
        if kind == INDEX_FAILED:
            raise IndexError(message)
        if kind == DIVISION_FAILED:
            raise ZeroDivisionError(message)
        raise RuntimeError(message)


def load_program(
    program: CppProgram, library: bytes, constants: Mapping[str, torch.Tensor]
) -> CompiledProgram:
    """Load the bytes of a shared library.

    Raises:
        KernelBuildError: it does not load.
        KeyError: a constant is missing.
    """
    register_relays(program.relayed)
    with temporary_folder("program") as folder:
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
