"""What the emitter returns: C++ text and everything that building and calling it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or result, in order.

    `kind`: a tensor, an integer, or nothing (results only). `type` describes it to people, e.g. `"f32[s0,
    4]"`.
    """

    kind: Literal["tensor", "size", "none"]
    name: str
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelUnit:
    """One kernel: a translation unit of its own.

    Attributes:
        name: the kernel's name.
        text: complete source.
        entry: the function in `text`.
        symbol: what `entry` is renamed to when compiled, so that kernels may use the same name.
        features: instruction set extensions to enable.
    """

    name: str
    text: str
    entry: str
    symbol: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CppProgram:
    """A program as C++.

    Attributes:
        name: the program's.
        text: the translation unit that defines `coilwork_run`; needs no header but C's own.
        kernels: the kernels it calls, linked with it.
        inputs: what `coilwork_run` takes, tensors and sizes in one order; each kind is passed in its own
            array.
        outputs: what it returns, likewise.
        constants: keys of the tensors known at compile time, in the order they are passed in.
        relayed: operators that it calls through Python, in a process that has it.
    """

    name: str
    text: str
    kernels: tuple[KernelUnit, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[str, ...]
    relayed: tuple[str, ...] = ()
