"""Graphs with attention, contractions and convolutions, for what computes these nodes.

That is a template, a library or a pass. `check_attention`, `check_contractions` and `check_convolutions` run
all graphs of a kind and compare with the interpreter, as `check_codegen` does with kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.buffers import Buffer
from coilwork_ir.conformance.check import TOLERANCES, Result
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.index import evaluate
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph

# ---- Attention ----


Compute: TypeAlias = Callable[[Graph, Sequence[Tensor]], Sequence[object]]
"""Computes a graph's results of CPU tensors, laid out as its inputs. May raise a CoilworkIRError to
refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCase:
    """A graph of `[2, heads, rows, length]` queries, and what its scores are.

    Attributes:
        name: unique in the kit.
        rows, keys, shared, columns: sizes; `shared` heads of keys serve the 4 heads of queries.
        dtype: the operands' type.
        score, mask: statements that make `t19` of the raw score `t3`, and the truth value `t29`; without any,
            all keys count.
        slope: statements that make the gradient `t49` of the raw score of that of the score, `t39`; without
            any it has no gradient.
        epilogue: statements that make `t59` of the weighted sum `t3`; without any that is rounded.
        bias: the shape of a bias `%b`, whose load is `t4`, with its index.
    """

    name: str
    rows: int = 5
    keys: int = 7
    shared: int = 4
    columns: int = 8
    dtype: str = "f32"
    score: str = "t18 = const 0.25 : f32 t19 = mul(t3, t18)"
    mask: str = ""
    slope: str = ""
    epilogue: str = ""
    bias: tuple[str, str] = ("", "")

    @property
    def text(self) -> str:
        """The graph."""
        shape, index = self.bias
        wide = "f64" if self.dtype == "f64" else "f32"
        inputs = {
            "q": f"2, 4, {self.rows}, 8",
            "k": f"2, {self.shared}, {self.keys}, 8",
            "v": f"2, {self.shared}, {self.keys}, {self.columns}",
            **({"b": shape} if shape else {}),
            **({"g": f"2, 4, {self.rows}, {self.columns}"} if self.slope else {}),
        }
        domain = f"[i0: 2, i1: 4, i2: {self.rows}, i3: {self.columns} | r0: {self.keys}, r1: 8]"
        head = {4: "i1", 1: "0"}.get(self.shared, f"i1 // {4 // self.shared}")
        bias = f"t4 = load %b[{index}] : {wide}" if shape else ""
        weights = f"""
          t0 = load %q[i0, i1, i2, r1] : {self.dtype}
          t1 = load %k[i0, {head}, r0, r1] : {self.dtype}
          t2 = load %v[i0, {head}, r0, i3] : {self.dtype}
          t3 = parameter 0 : {wide}
          {bias} {self.score} {self.mask}"""
        behind = "yield t59" if self.epilogue else ""
        says = "query t0, key t1, value t2 score t19" + (" mask t29" if self.mask else "")
        result = f"%o: {self.dtype}[2, 4, {self.rows}, {self.columns}], %s: {wide}[2, 4, {self.rows}]"
        lines = ["graph @attention {"]
        lines += [f"input %{n}: {wide if n == 'b' else self.dtype}[{size}]" for n, size in inputs.items()]
        lines.append(f"({result}) = attention {wide} {domain} {{ {weights} {self.epilogue}")
        lines.append(f"{says} {behind} logsumexp at [i0, i1, i2] }}")
        results = ["%o", "%s"]
        if self.slope:
            results += ["%dq", "%dk", "%dv", *(["%db"] if shape else [])]
            grads = [f"%d{n}: {self.dtype}[{inputs[n]}]" for n in "qkv"]
            grads.append(f"%db: {wide}[{shape}]" if shape else "_")
            lines.append(f"({', '.join(grads)}) = attention_gradient {wide} {domain} {{ {weights}")
            lines.append(f"t30 = load %o[i0, i1, i2, i3] : {self.dtype} t31 = load %s[i0, i1, i2] : {wide}")
            lines.append(
                f"t32 = load %g[i0, i1, i2, i3] : {self.dtype} t39 = parameter 1 : {wide} {self.slope}"
            )
            lines.append(f"{says} output t30, logsumexp t31, gradient t32 slope t49")
            lines.append(f"bias t39 at [{index}] }}" if shape else "}")
        text = "\n".join([*lines, f"return ({', '.join(results)})", "}"])
        return text.replace(": f32", ": f64") if self.dtype == "f64" else text

    def make(self) -> list[Tensor]:
        """Fresh inputs, always the same ones. A bias has places that hide keys, and one row of no others."""
        generator = torch.Generator().manual_seed(len(self.name))
        tensors: list[Tensor] = []
        for entry in parse_graph(self.text).inputs:
            assert isinstance(entry, Buffer)
            value = torch.randn([evaluate(size, {}) for size in entry.shape], generator=generator)
            if entry.name == "b":
                value.flatten()[::5] = float("-inf")
                value[..., -1, :] = float("-inf")
            tensors.append(value.to(torch_dtype(entry.dtype)))
        return tensors


_SCALED: Final = "t48 = const 0.25 : f32 t49 = mul(t39, t48)"
_UP_TO: Final = "t27 = index [r0] t28 = index [{}] t29 = le(t27, t28)"
_CAP: Final = "t17 = tanh(t3) t18 = const 2.0 : f32 t19 = mul(t17, t18)"
_OF_CAP: Final = (
    "t44 = mul(t17, t17) t45 = const 1.0 : f32 t46 = sub(t45, t44) t47 = mul(t46, t18) t49 = mul(t39, t47)"
)
_ALIBI: Final = (
    "t12 = index [-i2 + r0] t13 = cast(t12) : f32 t14 = index [i1 + 1] t15 = cast(t14) : f32 "
    "t16 = div(t13, t15) t18 = const 0.25 : f32 t17 = mul(t3, t18) t19 = add(t17, t16)"
)
_BIAS: Final = "t17 = const 0.25 : f32 t18 = mul(t3, t17) t19 = add(t18, t4)"
_GATE: Final = "t56 = index [i3] t57 = cast(t56) : f32 t58 = mul(t3, t57)"
_WINDOW: Final = (
    "t23 = index [r0] t24 = index [i2] t25 = le(t23, t24) t26 = index [r0 + 2] t27 = gt(t26, t24) "
    "t29 = bitwise_and(t25, t27)"
)

ATTENTION_CASES: Final[tuple[AttentionCase, ...]] = (
    AttentionCase(name="all-keys"),
    AttentionCase(name="causal", mask=_UP_TO.format("i2"), slope=_SCALED),
    AttentionCase(name="causal-from-the-last-key", mask=_UP_TO.format("i2 + 2")),
    AttentionCase(name="fewer-keys-than-rows", keys=3, mask=_UP_TO.format("i2 - 2"), slope=_SCALED),
    AttentionCase(name="window", mask=_WINDOW, slope=_SCALED),
    AttentionCase(name="cap", score=_CAP, slope=_OF_CAP),
    AttentionCase(name="alibi", score=_ALIBI, mask=_UP_TO.format("i2"), slope=_SCALED),
    AttentionCase(name="bias", score=_BIAS, bias=("2, 4, 5, 7", "i0, i1, i2, r0"), slope=_SCALED),
    AttentionCase(name="bias-of-keys", score=_BIAS, bias=("4, 1, 7", "i1, 0, r0"), slope=_SCALED),
    AttentionCase(name="shared-heads", shared=2, slope=_SCALED),
    AttentionCase(name="one-shared-head", shared=1, mask=_UP_TO.format("i2"), slope=_SCALED),
    AttentionCase(name="epilogue", mask=_UP_TO.format("i2"), epilogue=f"{_GATE} t59 = tanh(t58)"),
    AttentionCase(
        name="rounding-epilogue", dtype="bf16", shared=2, epilogue=f"{_GATE} t59 = cast(t58) : bf16"
    ),
    AttentionCase(name="fewer-columns", columns=3, slope=_SCALED),
    AttentionCase(name="one-row", rows=1, slope=_SCALED),
    AttentionCase(name="one-key", keys=1),
    AttentionCase(name="f64", dtype="f64", mask=_UP_TO.format("i2"), slope=_SCALED),
    AttentionCase(name="f16", dtype="f16", slope=_SCALED),
    AttentionCase(name="bf16", dtype="bf16", shared=2, mask=_UP_TO.format("i2"), slope=_SCALED),
)


def check_attention(compute: Compute, cases: Iterable[AttentionCase] = ATTENTION_CASES) -> list[Result]:
    """Run each case and return the outcomes: `compute` should give what the interpreter gives."""
    return [check_graph(case.name, case.text, case.make(), compute) for case in cases]


def check_graph(name: str, text: str, inputs: Sequence[Tensor], compute: Compute) -> Result:
    """Run the case `name`, the graph `text` on `inputs`, and return the outcome."""
    graph = parse_graph(text)
    verify_graph(graph)
    try:
        results = compute(graph, [value.clone() for value in inputs])
    except CoilworkIRError as error:
        return Result(case=name, sizes=(), status="refused", reason=str(error))
    faults: list[str] = []
    for number, (ours, theirs) in enumerate(zip(results, interpret_graph(graph, inputs), strict=True)):
        assert isinstance(theirs, Tensor)
        tolerance = 2 * TOLERANCES[theirs.dtype]
        if not isinstance(ours, Tensor) or ours.dtype is not theirs.dtype or ours.shape != theirs.shape:
            faults.append(f"result {number} has another type or shape")
        elif not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
            faults.append(f"result {number} is off by {float((ours - theirs).abs().max()):.2e}")
    return Result(case=name, sizes=(), status="failed" if faults else "passed", reason="; ".join(faults))


# ---- Contractions ----


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
        dtype = torch_dtype(next(d for d in DType if d.text == self.dtype))
        shapes = (self.left, self.right, *([self.bias[0]] if self.bias[1] else []))
        tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        return [*tensors, *([torch.tensor(self.ends, dtype=torch.int32)] if self.ends else [])]


def _make_grouped_cases(name: str, dtype: str = "f32", prologue: str = "") -> tuple[ContractionCase, ...]:
    """Return the three ways in which groups lie, the second of which is empty."""
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
    """Run each case and return the outcomes: `compute` should give what the interpreter gives."""
    return [check_graph(case.name, case.text, case.make(), compute) for case in cases]


# ---- Convolutions ----


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
        shapes = (
            {"dx": self.value, "dw": self.weight, "db": (channels,)} if self.gradients else {"y": self.result}
        )
        outputs = ", ".join(f"%{name}: {self.dtype}{list(shape)}" for name, shape in shapes.items())
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
        return "\n".join([*lines, "}", f"return ({', '.join(f'%{name}' for name in shapes)})", "}"])

    def make(self) -> list[Tensor]:
        """Inputs, the same each time."""
        generator = torch.Generator().manual_seed(len(self.name))
        last = self.result if self.gradients else self.result[1:2]
        dtype = torch_dtype(next(d for d in DType if d.text == self.dtype))
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
    """Run each case and return the outcomes: `compute` should give what the interpreter gives."""
    return [check_graph(case.name, case.text, case.make(), compute) for case in cases]
