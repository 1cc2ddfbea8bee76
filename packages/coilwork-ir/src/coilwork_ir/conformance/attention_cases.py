"""Graphs with attention and its gradient, for what computes these nodes: a template, a library, a pass.

`check_attention` runs all of them and compares with the interpreter, as `check_codegen` does with kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from coilwork_ir.buffers import Buffer
from coilwork_ir.conformance.check import TOLERANCES, Result
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.index import evaluate
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.nodes import Graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph

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
        made: list[Tensor] = []
        for entry in parse_graph(self.text).inputs:
            assert isinstance(entry, Buffer)
            value = torch.randn([evaluate(size, {}) for size in entry.shape], generator=generator)
            if entry.name == "b":
                value.flatten()[::5] = float("-inf")
                value[..., -1, :] = float("-inf")
            made.append(value.to(torch_dtype(entry.dtype)))
        return made


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
    """Return what became of each case: `compute` is given its graph, and gives what the interpreter does."""
    return [check_graph(case.name, case.text, case.make(), compute) for case in cases]


def check_graph(name: str, text: str, inputs: Sequence[Tensor], compute: Compute) -> Result:
    """Return what became of the case `name`, the graph `text` of `inputs`."""
    graph = parse_graph(text)
    verify_graph(graph)
    try:
        found = compute(graph, [value.clone() for value in inputs])
    except CoilworkIRError as error:
        return Result(case=name, sizes=(), status="refused", reason=str(error))
    faults: list[str] = []
    for number, (ours, theirs) in enumerate(zip(found, interpret_graph(graph, inputs), strict=True)):
        assert isinstance(theirs, Tensor)
        tolerance = 2 * TOLERANCES[theirs.dtype]
        if not isinstance(ours, Tensor) or ours.dtype is not theirs.dtype or ours.shape != theirs.shape:
            faults.append(f"result {number} has another type or shape")
        elif not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance):
            faults.append(f"result {number} is off by {float((ours - theirs).abs().max()):.2e}")
    return Result(case=name, sizes=(), status="failed" if faults else "passed", reason="; ".join(faults))
