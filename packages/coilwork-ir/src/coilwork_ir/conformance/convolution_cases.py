"""Graphs with convolutions and their gradients, for what computes these nodes: a template, a library, a pass.

`check_convolutions` runs all of them and compares with the interpreter, as `check_codegen` does with kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from coilwork_ir.conformance.attention_cases import Compute, check_graph
from coilwork_ir.conformance.check import Result
from coilwork_ir.dtypes import DType
from coilwork_ir.interpretation.ops import torch_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCase:
    """A graph with one convolution, or with its gradients.

    Attributes:
        name: unique in the kit.
        value, weight, result: shapes.
        windows: one for each dimension of space, as text.
        groups, transposed: as of the node.
        dtype: the operands' type.
        prologue: an op on every element of `value`, if there is one.
        gradients: the gradients of value, weight and bias are computed, in the place of the result.
    """

    name: str
    value: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]
    windows: tuple[str, ...]
    groups: int = 1
    transposed: bool = False
    dtype: str = "f32"
    prologue: str = ""
    gradients: bool = False

    @property
    def text(self) -> str:
        """The graph."""
        wide = "f64" if self.dtype == "f64" else "f32"
        tensors = {"x": self.value, "w": self.weight, "g" if self.gradients else "y": self.result}
        names = {"x": "value", "w": "weight", "g": "gradient", "y": "result"}
        channels = self.result[1]
        inputs = {"x": self.value, "w": self.weight}
        inputs |= {"g": self.result} if self.gradients else {"b": (channels,)}
        lines = ["graph @convolution {"]
        lines += [f"input %{name}: {self.dtype}{list(shape)}" for name, shape in inputs.items()]
        made = (
            {"dx": self.value, "dw": self.weight, "db": (channels,)} if self.gradients else {"y": self.result}
        )
        outputs = ", ".join(f"%{name}: {self.dtype}{list(shape)}" for name, shape in made.items())
        kind = f"groups {self.groups}" + (" transposed" if self.transposed else "")
        lines.append(f"({outputs}) = convolve {wide} ({', '.join(self.windows)}) {kind} {{")
        for name, shape in tensors.items():
            lines.append(f"{names[name]} [{', '.join(f'{name}{k}: {size}' for k, size in enumerate(shape))}]")
        x, w, g = (", ".join(f"{name}{k}" for k in range(len(self.value))) for name in "xwg")
        lines.append(f"t0 = load %x[{x}] : {self.dtype}")
        lines.append(f"t1 = {self.prologue}(t0)" if self.prologue else "")
        lines.append(f"t2 = load %w[{w}] : {self.dtype}")
        value = "t1" if self.prologue else "t0"
        if self.gradients:
            lines += [f"t3 = load %g[{g}] : {self.dtype}", f"multiply {value}, t2 for t3"]
        else:
            bias, total, rounded = "t4", "t5", "t5"
            lines += [f"t3 = parameter 0 : {wide}", f"{bias} = load %b[y1] : {self.dtype}"]
            if self.dtype != wide:
                lines.append(f"t6 = cast(t4) : {wide}")
                bias, rounded = "t6", "t7"
            lines.append(f"{total} = add(t3, {bias})")
            lines.append(f"t7 = cast(t5) : {self.dtype}" if self.dtype != wide else "")
            lines += [f"multiply {value}, t2", f"yield {rounded}"]
        return "\n".join([*lines, "}", f"return ({', '.join(f'%{name}' for name in made)})", "}"])

    def make(self) -> list[Tensor]:
        """Inputs, the same each time."""
        generator = torch.Generator().manual_seed(len(self.name))
        last = self.result if self.gradients else self.result[1:2]
        dtype = torch_dtype(next(one for one in DType if one.text == self.dtype))
        return [
            torch.randn(shape, generator=generator).to(dtype) for shape in (self.value, self.weight, last)
        ]


def _window(stride: int = 1, padding: int = 0, dilation: int = 1, extra: int = 0) -> str:
    return f"stride {stride} padding {padding} dilation {dilation}" + f" extra {extra}" * bool(extra)


_SAME: Final = (_window(padding=1),) * 2
_FORWARD: Final = (
    ConvolutionCase(
        name="square", value=(2, 3, 5, 6), weight=(4, 3, 3, 3), result=(2, 4, 5, 6), windows=_SAME
    ),
    ConvolutionCase(
        name="groups", value=(2, 4, 5, 6), weight=(6, 2, 3, 3), result=(2, 6, 5, 6), windows=_SAME, groups=2
    ),
    ConvolutionCase(
        name="single-channels",
        value=(2, 4, 5, 6),
        weight=(8, 1, 3, 3),
        result=(2, 8, 5, 6),
        windows=_SAME,
        groups=4,
    ),
    ConvolutionCase(
        name="steps",
        value=(2, 3, 11),
        weight=(4, 3, 3),
        result=(2, 4, 5),
        windows=(_window(stride=2, padding=1, dilation=2),),
    ),
    ConvolutionCase(
        name="volume",
        value=(1, 2, 3, 4, 5),
        weight=(3, 2, 2, 2, 2),
        result=(1, 3, 2, 3, 4),
        windows=(_window(),) * 3,
    ),
    ConvolutionCase(
        name="transposed",
        value=(2, 4, 5),
        weight=(4, 3, 3),
        result=(2, 6, 12),
        windows=(_window(stride=2, extra=1),),
        groups=2,
        transposed=True,
    ),
    ConvolutionCase(
        name="halves",
        value=(2, 3, 5, 6),
        weight=(4, 3, 3, 3),
        result=(2, 4, 5, 6),
        windows=_SAME,
        dtype="bf16",
    ),
    ConvolutionCase(
        name="f64", value=(2, 3, 5, 6), weight=(4, 3, 3, 3), result=(2, 4, 5, 6), windows=_SAME, dtype="f64"
    ),
    # outside of the image are zeros, and no exponentials of zero
    ConvolutionCase(
        name="prologue",
        value=(2, 3, 5, 6),
        weight=(4, 3, 3, 3),
        result=(2, 4, 5, 6),
        windows=_SAME,
        prologue="exp",
    ),
)
CONVOLUTION_CASES: Final[tuple[ConvolutionCase, ...]] = (
    *_FORWARD,
    *(replace(case, name=f"{case.name}-gradients", gradients=True) for case in _FORWARD),
)


def check_convolutions(
    compute: Compute, cases: Iterable[ConvolutionCase] = CONVOLUTION_CASES
) -> list[Result]:
    """Return what became of each case: `compute` is given its graph, and gives what the interpreter does."""
    return [check_graph(case.name, case.text, case.make(), compute) for case in cases]
