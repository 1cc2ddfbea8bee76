"""Kernels written by hand, and a way to run a program's text through interpreter, Python and FX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
import wrapper_stand_in

from coilwork_ir.conformance.wrappers import RELU_ADD as RELU_ADD
from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource, SourceArg
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_wrapper import emit_fx, emit_python

Value: TypeAlias = torch.Tensor | int
Call: TypeAlias = Callable[[list[Any]], Sequence[Any]]

DOUBLE: Final = """
kernel @double fast {
  size n0 in [0, inf]
  range x0: `n0` parallel
  arg io0: f32 inout span `n0`
  body {
    t0 = load %io0[x0] : f32
    t1 = add(t0, t0)
    store %io0[x0] = t1
  }
}
"""
SIZE: Final = SourceArg(name="n0", role="size", dtype=DType.I64)
SOURCES: Final[Mapping[str, KernelSource]] = MappingProxyType(
    {
        "relu_add": KernelSource(
            name="relu_add",
            language="cpp",
            text=RELU_ADD,
            entry="relu_add",
            args=(
                SourceArg(name="in0", role="in", dtype=DType.F32, aligned=True),
                SourceArg(name="in1", role="in", dtype=DType.F32),
                SourceArg(name="out0", role="out", dtype=DType.F32),
                SIZE,
            ),
        ),
        "double": KernelSource(
            name="double",
            language="cpp",
            text=DOUBLE,
            entry="double",
            args=(SourceArg(name="io0", role="inout", dtype=DType.F32), SIZE),
        ),
    }
)


def program_of(text: str) -> Program:
    """The verified program that `text` spells, where `RELU_ADD` and `DOUBLE` stand for the kernels."""
    program = parse_program(text.replace("RELU_ADD", RELU_ADD).replace("DOUBLE", DOUBLE))
    verify_program(program)
    return program


def module_text(text: str) -> str:
    """The Python module of the program that `text` spells."""
    return emit_python(program_of(text), SOURCES, runtime="wrapper_stand_in")


def python_call(
    text: str, constants: Mapping[str, torch.Tensor] | None = None, *, program: Program | None = None
) -> Call:
    """`call` of the module."""
    source = emit_python(program or program_of(text), SOURCES, runtime="wrapper_stand_in")
    scope: dict[str, Any] = {"__name__": "generated"}
    exec(compile(source, "<generated>", "exec"), scope)
    call: Call = scope["make_call"](wrapper_stand_in.build(scope["KERNELS"]), constants or {})
    return call


def fx_module(
    text: str, constants: Mapping[str, torch.Tensor] | None = None, *, program: Program | None = None
) -> torch.fx.GraphModule:
    """The graph module."""
    kernels = [
        wrapper_stand_in.CppKernel(name=name, source=source.text, entry=name, args=())
        for name, source in SOURCES.items()
    ]
    return emit_fx(program or program_of(text), wrapper_stand_in.build(kernels), constants)


def fx_call(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Call:
    """The graph module under the boxed convention."""
    graph = fx_module(text, constants)

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        results: Sequence[Any] = graph(*values)
        return results

    return call


BOTH: Final[tuple[Callable[..., Call], ...]] = (python_call, fx_call)


def check_agreement(
    text: str,
    *calls: Sequence[Value],
    constants: Mapping[str, torch.Tensor] | None = None,
    change: Callable[[Program], Program] | None = None,
) -> None:
    """Run each of `calls` through the interpreter and both emitters, which get the program with a `change`.

    Results, inputs afterwards, strides, and which of them share memory must agree.
    """
    program = program_of(text)
    for make in BOTH:
        call = make(format_program(change(program)) if change else text, constants)
        for inputs in calls:
            mine, theirs = copies(inputs), copies(inputs)
            expected = interpret_program(program, theirs, constants)
            boxed = list(mine)
            results = call(boxed)
            assert boxed == []
            assert isinstance(results, tuple)
            compare((*results, *mine), (*expected, *theirs))


def compare(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Equal values, strides and sharing of memory."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other and type(one) is type(other)
            continue
        assert isinstance(one, torch.Tensor)
        assert meaningful_strides(one) == meaningful_strides(other)
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert sharing(found) == sharing(wanted)


def copies(inputs: Sequence[Value]) -> list[Value]:
    """Inputs of their own, with the same strides."""
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]


def meaningful_strides(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions along which there is more than one element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [] if tensor.numel() == 0 else [stride for extent, stride in pairs if extent > 1]


def sharing(values: Sequence[Any]) -> list[int]:
    """For each value the position of the first tensor that has the same memory; its own position if none or
    no tensor.
    """
    seen: dict[int, int] = {}
    found: list[int] = []
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.numel():
            found.append(seen.setdefault(value.untyped_storage().data_ptr(), position))
        else:
            found.append(position)
    return found
