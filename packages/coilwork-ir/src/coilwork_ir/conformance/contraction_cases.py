"""Graphs with contractions, for what computes these nodes: a template, a library, a pass.

`check_contractions` runs all of them and compares with the interpreter, as `check_codegen` does with kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from coilwork_ir.conformance.attention_cases import Compute, check_graph
from coilwork_ir.conformance.check import Result
from coilwork_ir.dtypes import DType
from coilwork_ir.interpretation.ops import torch_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionCase:
    """A graph with one contraction of `%x` and `%w`.

    Attributes:
        name: unique in the kit.
        left, right, result: shapes.
        domain: ranges and axes, and groups if there are any, as text.
        at: the indices that the factors are loaded at.
        dtype: the operands' type.
        prologue: an op on every element of the left factor, if there is one.
        bias: a bias's shape and index, if there is one.
        ends: where groups end; they are all of the points.
    """

    name: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]
    domain: str
    at: tuple[str, str]
    dtype: str = "f32"
    prologue: str = ""
    bias: tuple[tuple[int, ...], str] = ((), "")
    ends: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The graph."""
        wide = "f64" if self.dtype == "f64" else "f32"
        shape, index = self.bias
        inputs = {"x": self.left, "w": self.right} | ({"b": shape} if index else {})
        lines = ["graph @contraction {"]
        lines += [f"input %{name}: {self.dtype}{list(sizes)}" for name, sizes in inputs.items()]
        lines += [f"input %ends: i32[{len(self.ends)}]"] if self.ends else []
        lines.append(f"%y: {self.dtype}{list(self.result)} = contract {wide} {self.domain} {{")
        lines.append(f"t0 = load %x[{self.at[0]}] : {self.dtype}")
        lines.append(f"t1 = {self.prologue}(t0)" if self.prologue else "")
        lines.append(f"t2 = load %w[{self.at[1]}] : {self.dtype}")
        lines.append(f"t3 = parameter 0 : {wide}")
        total = "t3"
        if index:
            lines += [f"t4 = load %b[{index}] : {self.dtype}"]
            bias, total = "t4", "t6"
            if self.dtype != wide:
                lines.append(f"t5 = cast(t4) : {wide}")
                bias = "t5"
            lines.append(f"t6 = add(t3, {bias})")
        if self.dtype != wide:
            lines.append(f"t7 = cast({total}) : {self.dtype}")
            total = "t7"
        left = "t1" if self.prologue else "t0"
        lines += [f"multiply {left}, t2", f"yield {total}", "}", "return (%y)", "}"]
        return "\n".join(lines)

    def make(self) -> list[Tensor]:
        """Inputs, the same each time."""
        generator = torch.Generator().manual_seed(len(self.name))
        dtype = torch_dtype(next(one for one in DType if one.text == self.dtype))
        shapes = (self.left, self.right, *([self.bias[0]] if self.bias[1] else []))
        made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        return [*made, *([torch.tensor(self.ends, dtype=torch.int32)] if self.ends else [])]


def _make_grouped_cases(name: str, dtype: str = "f32", prologue: str = "") -> tuple[ContractionCase, ...]:
    """The three ways in which groups lie, the second of which is empty."""
    x, w = "[i0: 7, i1: 5 | r0: 4]", "[i0: 6, i1: 7 | r0: 4]"
    terms = "[i0: 3, i1: 6, i2: 5 | r0: 7] groups [i0: 3] along r0 end %ends"
    return (
        ContractionCase(
            name=f"{name}-of-rows",
            left=(7, 4),
            right=(3, 4, 5),
            result=(7, 5),
            domain=f"{x} groups [g0: 3] along i0 end %ends",
            at=("i0, r0", "g0, r0, i1"),
            bias=((3, 5), "g0, i1"),
            dtype=dtype,
            prologue=prologue,
            ends=(2, 2, 7),
        ),
        ContractionCase(
            name=f"{name}-of-columns",
            left=(3, 6, 4),
            right=(4, 7),
            result=(6, 7),
            domain=f"{w} groups [g0: 3] along i1 end %ends",
            at=("g0, i0, r0", "r0, i1"),
            dtype=dtype,
            prologue=prologue,
            ends=(3, 3, 7),
        ),
        ContractionCase(
            name=f"{name}-of-terms",
            left=(6, 7),
            right=(7, 5),
            result=(3, 6, 5),
            domain=terms,
            at=("i1, r0", "r0, i2"),
            dtype=dtype,
            prologue=prologue,
            ends=(4, 4, 7),
        ),
    )


CONTRACTION_CASES: Final[tuple[ContractionCase, ...]] = (
    ContractionCase(
        name="matrices",
        left=(6, 7),
        right=(7, 5),
        result=(6, 5),
        domain="[i0: 6, i1: 5 | r0: 7]",
        at=("i0, r0", "r0, i1"),
    ),
    ContractionCase(
        name="transposed-and-added",
        left=(7, 6),
        right=(5, 7),
        result=(6, 5),
        domain="[i0: 6, i1: 5 | r0: 7]",
        at=("r0, i0", "i1, r0"),
        dtype="bf16",
        bias=((5,), "i1"),
    ),
    ContractionCase(
        name="batches-with-a-prologue",
        left=(2, 6, 7),
        right=(2, 7, 5),
        result=(2, 6, 5),
        domain="[i0: 2, i1: 6, i2: 5 | r0: 7]",
        at=("i0, i1, r0", "i0, r0, i2"),
        prologue="exp",
    ),
    ContractionCase(
        name="vector",
        left=(6, 7),
        right=(7,),
        result=(6,),
        domain="[i0: 6 | r0: 7]",
        at=("i0, r0", "r0"),
        dtype="f64",
    ),
    *_make_grouped_cases("groups"),
    *_make_grouped_cases("groups-in-halves", dtype="bf16"),
    *_make_grouped_cases("groups-with-a-prologue", prologue="exp"),
)


def check_contractions(
    compute: Compute, cases: Iterable[ContractionCase] = CONTRACTION_CASES
) -> list[Result]:
    """Return what became of each case: `compute` is given its graph, and gives what the interpreter does."""
    return [check_graph(case.name, case.text, case.make(), compute) for case in cases]
