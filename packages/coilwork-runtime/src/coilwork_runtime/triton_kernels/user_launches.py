"""Launch a kernel of the user's again without Python, from a launch that Triton made.

Triton compiles a kernel for traits of its arguments: whether a tensor begins at a multiple of 16 bytes, and
whether an integer is 1, is a multiple of 16, and has 32 bits. A launch has the function that Triton compiled,
its parameters, its grid, and the traits that another call must share to be launched in the same way
(`UserLaunch` in native/program/model.hpp). An autotuner chooses by some integers, which are then the same.

What runs Python in each launch stays Python's: heuristics, hooks of a kernel or configuration, tensor
descriptors, kernels in Gluon.
"""

from __future__ import annotations

import ctypes
import logging
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from coilwork_runtime.errors import RuntimeFault
from coilwork_runtime.launch_descriptor import encode_entry
from coilwork_runtime.manifest.wire_format import i64, join_items, text, u32
from coilwork_runtime.triton_kernels.compilation import read_binary
from coilwork_runtime.triton_kernels.gpu import load_entry
from coilwork_runtime.triton_kernels.user_kernels import Launched, UserKernel
from coilwork_runtime.triton_kernels.worker import METADATA

log = logging.getLogger("coilwork.runtime")

MOST_LAUNCHES: Final = 16
"""Of one call: beyond that its arguments differ so often that Python launches what is left."""


@dataclass(frozen=True, slots=True)
class TensorOperand:
    """The tensor of this number in each call."""

    number: int


@dataclass(frozen=True, slots=True)
class SizeOperand:
    """The integer of this number in each call."""

    number: int


# Anything else is the same in every call.
Operand = Any


@dataclass(frozen=True, slots=True)
class LaunchArguments:
    """The arguments of one call of a kernel's operator, by their names there."""

    kernel: UserKernel
    operands: Mapping[str, Operand]

    def find(self, parameter: str) -> Operand:
        """Return the operand that is passed for `parameter` of the kernel.

        Raises:
            _PythonOnlyError: nothing that is known here.
        """
        if parameter in self.kernel.arguments:
            return self.operands[self.kernel.arguments[parameter]]
        if parameter in self.kernel.constants:
            return self.kernel.constants[parameter]
        raise _PythonOnlyError(f"{parameter} is neither given nor a constant")


class _PythonOnlyError(Exception):
    """A launch that only Python can make. The text says why."""


def explain_obstacle(kernel: UserKernel) -> str:
    """Return why each launch of `kernel` is made in Python; empty if none but the first is."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    if kernel.descriptors:
        return "it takes tensor descriptors, which Python makes"
    function = kernel.kernel
    if isinstance(function, Autotuner):
        if any(config.pre_hook is not None for config in function.configs):
            return "a configuration has a hook"
        function = function.fn
    if not isinstance(function, JITFunction):
        return "heuristics are functions in Python"
    if function.is_gluon():
        return "it is written in Gluon"
    if function.pre_run_hooks:
        return "it has hooks"
    return ""


def remember_launches(
    arguments: LaunchArguments, fill: Callable[[list[torch.Tensor], list[int]], list[Any]]
) -> Callable[[list[torch.Tensor], list[int]], bytes | None]:
    """Return a function over a call's tensors and integers that launches the kernel, and returns how to
    launch it without Python, or None. `fill` lists the operator's arguments.
    """
    lock = threading.Lock()
    known: set[bytes] = set()
    kernel = arguments.kernel

    def launch(tensors: list[torch.Tensor], sizes: list[int]) -> bytes | None:
        launched = kernel.launch(*fill(tensors, sizes))
        if launched is None or len(known) >= MOST_LAUNCHES or not tensors:
            return None
        try:
            found = encode_launch(arguments, launched, tensors, sizes)
        except (_PythonOnlyError, RuntimeFault) as error:
            log.debug("Python launches %s: %s", kernel.name, error)
            return None
        with lock:
            if found in known:
                return None
            known.add(found)
        return found

    # a program may be called where Dynamo traces what Python runs
    untraced: Callable[[list[torch.Tensor], list[int]], bytes | None] = torch.compiler.disable(launch)
    return untraced


# ---- one launch ----


# Kinds of conditions and words (native/program/model.hpp).
_ALIGNED, _EQUAL, _ALIKE = range(3)
_TENSOR, _SIZE, _NUMBER = range(3)
_ONE, _MULTIPLE_OF_16, _OF_32_BITS = 1, 2, 4
# What Triton makes of a kernel for devices of NVIDIA's: elsewhere it tells addresses apart by more.
_IMAGE: Final = "cubin"
_INTEGERS: Final = frozenset({"i1", "u1", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"})


def encode_launch(
    arguments: LaunchArguments,
    launched: Launched,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int],
) -> bytes:
    """Return the bytes of a launch like `launched`, which was made with `tensors` and `sizes`.

    Raises:
        _PythonOnlyError: there is none.
        RuntimeFault: the driver does not load the kernel.
    """
    compiled = launched.compiled
    if compiled is None or _IMAGE not in compiled.asm:
        raise _PythonOnlyError("it was not compiled for a device of NVIDIA's")
    known = compiled.metadata._asdict()
    metadata = {name: known.get(name, default) for name, default in METADATA}
    try:
        binary = read_binary(metadata, compiled.asm[_IMAGE])
    except ValueError as error:
        raise _PythonOnlyError(str(error)) from error
    conditions = list(_list_choices(arguments, sizes))
    words = []
    parameters = {one.name: one for one in _function_of(arguments.kernel).params}
    for name, kind in compiled.src.signature.items():
        if kind == "constexpr":
            conditions += _list_constants(arguments, name, sizes)
            continue
        operand = arguments.find(name)
        words.append(_encode_word(operand, kind))
        conditions += _list_traits(operand, parameters[name], tensors, sizes)
    extents = arguments.operands[arguments.kernel.grid_argument]
    grid = [_encode_word(one, "i64") for one in extents[3 * launched.grid : 3 * launched.grid + 3]]
    entry = load_entry(binary, tensors[0].get_device())
    head = text(binary.name) + entry.handle.to_bytes(8, "little") + encode_entry(entry)
    return head + join_items(list(dict.fromkeys(conditions))) + join_items(words) + b"".join(grid)


def _function_of(kernel: UserKernel) -> Any:
    """Return the function of `triton.jit`, inside of an autotuner if there is one."""
    from triton.runtime.autotuner import Autotuner

    return kernel.kernel.fn if isinstance(kernel.kernel, Autotuner) else kernel.kernel


def _list_choices(arguments: LaunchArguments, sizes: Sequence[int]) -> Iterator[bytes]:
    """Conditions under which an autotuner chooses the same configuration."""
    from triton.runtime.autotuner import Autotuner

    tuner = arguments.kernel.kernel
    if not isinstance(tuner, Autotuner):
        return
    for name in tuner.keys:
        if name not in arguments.kernel.arguments:
            continue
        operand = arguments.find(name)
        if isinstance(operand, TensorOperand):
            raise _PythonOnlyError(f"it is tuned by the tensor {name}")
        if isinstance(operand, SizeOperand):
            yield _condition(_EQUAL, operand.number, sizes[operand.number])


def _list_constants(arguments: LaunchArguments, name: str, sizes: Sequence[int]) -> Iterator[bytes]:
    """Conditions for a parameter that the compiled kernel does not have, since its value is known: an
    integer that is 1 is one."""
    if name not in arguments.kernel.arguments:
        return
    operand = arguments.find(name)
    if isinstance(operand, TensorOperand):
        raise _PythonOnlyError(f"the tensor {name} is a constant of the kernel")
    if isinstance(operand, SizeOperand):
        yield _condition(_EQUAL, operand.number, sizes[operand.number])


def _list_traits(
    operand: Operand, parameter: Any, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
) -> Iterator[bytes]:
    """Conditions under which Triton would have compiled the same for an argument."""
    is_free = parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
    if isinstance(operand, TensorOperand) and not is_free:
        is_aligned = tensors[operand.number].data_ptr() % 16 == 0
        yield _condition(_ALIGNED, operand.number, int(is_aligned))
    if isinstance(operand, SizeOperand):
        value = sizes[operand.number]
        seen = _OF_32_BITS if parameter.do_not_specialize else _OF_32_BITS | _ONE
        if not is_free:
            seen |= _MULTIPLE_OF_16
        traits = _ONE * (value == 1) | _MULTIPLE_OF_16 * (value % 16 == 0)
        traits |= _OF_32_BITS * (-(1 << 31) <= value < 1 << 31)
        yield _condition(_ALIKE, operand.number, seen << 8 | (traits & seen))


def _condition(kind: int, number: int, value: int) -> bytes:
    return bytes((kind,)) + u32(number) + i64(value)


def _encode_word(operand: Operand, kind: str) -> bytes:
    """Encode an argument of Triton's type `kind` as 64 bits, of which the driver reads the lower ones."""
    if kind.startswith("*"):
        if not isinstance(operand, TensorOperand):
            raise _PythonOnlyError("an address is no tensor's")
        return bytes((_TENSOR,)) + u32(operand.number)
    if isinstance(operand, TensorOperand):
        raise _PythonOnlyError(f"a tensor is given for {kind}")
    if isinstance(operand, SizeOperand):
        if kind not in ("i32", "i64"):
            raise _PythonOnlyError(f"a size is given for {kind}")
        return bytes((_SIZE,)) + u32(operand.number)
    return bytes((_NUMBER,)) + _encode_number(operand, kind)


def _encode_number(value: Any, kind: str) -> bytes:
    if isinstance(value, bool | int) and kind in _INTEGERS:
        return (int(value) % (1 << 64)).to_bytes(8, "little")
    if isinstance(value, bool | int | float) and kind == "fp32":
        # rounds, and overflows to infinity, as C does
        return struct.pack("<f4x", ctypes.c_float(value).value)
    if isinstance(value, bool | int | float) and kind == "fp64":
        return struct.pack("<d", value)
    raise _PythonOnlyError(f"{value!r} is given for {kind}")
