"""Kernels written by hand, in the IR and in C++, and a way to run a program's text through interpreter and
C++.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import torch

from coilwork_cpp_wrapper import CompiledProgram, build_cpp, emit_cpp
from coilwork_ir.conformance.wrappers import RELU_ADD as RELU_ADD
from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernel_source import KernelSource, SourceArg, write_kernels
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import parse_program
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.module_loader import load_kernels

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
IN, OUT, INOUT, SIZE = (
    SourceArg(name="in0", role="in", dtype=DType.F32),
    SourceArg(name="out0", role="out", dtype=DType.F32),
    SourceArg(name="io0", role="inout", dtype=DType.F32),
    SourceArg(name="n0", role="size", dtype=DType.I64),
)
RELU_ADD_SOURCE: Final = KernelSource(
    name="relu_add",
    language="cpp",
    text="""
extern "C" __attribute__((visibility("default"))) void kernel(const float* a, const float* b, float* c, long \
n) {
  for (long i = 0; i < n; ++i) c[i] = (a[i] > 0 ? a[i] : 0) + b[i];
}
""",
    entry="kernel",
    args=(IN, SourceArg(name="in1", role="in", dtype=DType.F32), OUT, SIZE),
)
# The same entry as the other kernel, on purpose. It goes through scratch memory.
DOUBLE_SOURCE: Final = KernelSource(
    name="double",
    language="cpp",
    text="""
extern "C" __attribute__((visibility("default"))) void kernel(float* io, long n, double* scratch) {
  for (long i = 0; i < n; ++i) scratch[2 * i] = io[i];
  for (long i = 0; i < n; ++i) io[i] = float(2 * scratch[2 * i]);
}
""",
    entry="kernel",
    args=(
        INOUT,
        SIZE,
        SourceArg(name="scratch0", role="scratch", dtype=DType.F64, elements=2 * symbol("n0", lo=0)),
    ),
)
SOURCES: Final[Mapping[str, KernelSource]] = MappingProxyType(
    {"relu_add": RELU_ADD_SOURCE, "double": DOUBLE_SOURCE}
)


def specs_of(*sources: KernelSource) -> Mapping[str, KernelSpec]:
    """Manifests with texts by name, from the bytes that cross between the IR and the runtime."""
    return {spec.name: spec for spec in load_kernels(write_kernels((source, ()) for source in sources))}


SPECS: Final[Mapping[str, KernelSpec]] = MappingProxyType(dict(specs_of(*SOURCES.values())))


def program_of(text: str) -> Program:
    """The program that `text` spells, where `RELU_ADD` and `DOUBLE` stand for the kernels."""
    return parse_program(text.replace("RELU_ADD", RELU_ADD).replace("DOUBLE", DOUBLE))


def compiled(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> CompiledProgram:
    """The program, built and loaded."""
    return build_cpp(emit_cpp(program_of(text), SPECS), constants=constants, workers=1)


def check_against_interpreter(
    text: str,
    *calls: Sequence[torch.Tensor | int],
    constants: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Run each of `calls` through the interpreter and through C++; results and inputs afterwards
    must agree.
    """
    program, call = program_of(text), compiled(text, constants)
    for inputs in calls:
        mine, theirs = copies(inputs), copies(inputs)
        expected = interpret_program(program, theirs, constants)
        boxed = list(mine)
        results = call(boxed)
        assert boxed == []
        assert len(results) == len(expected)
        for result, wanted in zip((*results, *mine), (*expected, *theirs), strict=True):
            if isinstance(wanted, torch.Tensor):
                assert isinstance(result, torch.Tensor)
                assert meaningful_strides(result) == meaningful_strides(wanted)
                torch.testing.assert_close(result, wanted)
            else:
                assert result == wanted


def copies(inputs: Sequence[torch.Tensor | int]) -> list[torch.Tensor | int]:
    """Inputs of their own, with the same strides."""
    return [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]


def meaningful_strides(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions along which there is more than one element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [] if tensor.numel() == 0 else [stride for extent, stride in pairs if extent > 1]
