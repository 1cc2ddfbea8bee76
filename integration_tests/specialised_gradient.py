"""The gradient of attention whose warps have roles, in Triton's interpreter: what is off of each case."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import parse_mapping
from coilwork_ir.target import get_target
from coilwork_runtime import Builder
from coilwork_triton import TritonCodegen
from integration_tests.emitted_kernels import spec_of
from integration_tests.specialised_attention import BLOCK, COLUMNS, MASKS, find_same, list_blocks

# All heads of queries share keys if there is one head of these.
TEXT: Final = """kernel @gradient fast {{
  range y0: `{points}` parallel
  range y1: `{rows}` parallel
  range x0: `64` parallel
  range r0: `{rows}` reduction
  range r1: `64` reduction
  arg in0: {dtype} in span `{points}*64*{rows}` aligned
  arg in1: {dtype} in span `{heads}*64*{rows}` aligned
  arg in2: {dtype} in span `{heads}*64*{rows}` aligned
  {args}
  arg in8: {dtype} in span `{points}*64*{rows}` aligned
  arg in9: f32 in span `{points}*{rows}`
  arg in10: f32 in span `{points}*{rows}`
  arg out0: {dtype} out span `{points}*64*{rows}` aligned
  arg out1: {dtype} out span `{heads}*64*{rows}` aligned
  arg out2: {dtype} out span `{heads}*64*{rows}` aligned
  attention_gradient f32 (y0, y1, x0) over (r0, r1) {{
    t0 = load %in0[64*{rows}*y0 + 64*y1 + r1] : {dtype}
    t1 = load %in1[64*{rows}*({head}) + 64*r0 + r1] : {dtype}
    t2 = load %in2[64*{rows}*({head}) + 64*r0 + x0] : {dtype}
    t3 = parameter 0 : f32
    t4 = const 0.125 : f32
    t6 = parameter 1 : f32
    {score}
    t7 = index [y1]
    t8 = index [r0]
    {mask}
    t30 = load %in8[64*{rows}*y0 + 64*y1 + x0] : {dtype}
    t31 = load %in9[{rows}*y0 + y1] : f32
    t32 = load %in10[{rows}*y0 + y1] : f32
    query t0, key t1, value t2
    score t5
    {asked}
    {logarithms}
    inner t32, logsumexp t31, gradient t30
    slope t36
  }}
  body {{
    t0 = parameter 0 : f32
    t1 = parameter 1 : f32
    t2 = parameter 2 : f32
    t3 = cast(t0) : {dtype}
    t4 = cast(t1) : {dtype}
    t5 = cast(t2) : {dtype}
    store %out0[64*{rows}*y0 + 64*y1 + r1] = t3
    store %out1[64*{rows}*({head}) + 64*r0 + r1] = t4
    store %out2[64*{rows}*({head}) + 64*r0 + x0] = t5
  }}
}}
"""
SCORES: Final = {
    "": "t5 = mul(t3, t4)\n    t36 = mul(t6, t4)",
    "slope": """t15 = load %in3[y0] : f32
    t16 = index [r0 - y1]
    t17 = cast(t16) : f32
    t18 = mul(t15, t17)
    t19 = mul(t3, t4)
    t5 = add(t19, t18)
    t36 = mul(t6, t4)""",
    "cap": """t15 = mul(t3, t4)
    t16 = tanh(t15)
    t17 = const 3.0 : f32
    t5 = mul(t16, t17)
    t33 = mul(t16, t16)
    t34 = const 1.0 : f32
    t35 = sub(t34, t33)
    t37 = const 0.375 : f32
    t38 = mul(t35, t37)
    t36 = mul(t6, t38)""",
}
LISTS: Final = """t20 = load %in4[y1 // 128] : i32
    t21 = load %in5[r0 // 128 + {blocks}*(y1 // 128)] : i32
    t22 = load %in6[y1 // 128] : i32
    t23 = load %in7[r0 // 128 + {blocks}*(y1 // 128)] : i32
    t24 = load %in11[r0 // 128] : i32
    t25 = load %in12[y1 // 128 + {blocks}*(r0 // 128)] : i32
    t26 = load %in13[r0 // 128] : i32
    t27 = load %in14[y1 // 128 + {blocks}*(r0 // 128)] : i32"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The gradient of an attention of `points` heads, and how it runs: `stages` blocks at a time, and so many
    programs. If it is open, the call says how many rows there are.
    """

    rows: int = 200
    score: str = ""
    mask: str = "causal"
    points: int = 2
    heads: int = 2
    listed: bool = False
    natural: bool = False
    dtype: str = "bf16"
    stages: int = 2
    consumers: int = 2
    programs: int = 3
    is_open: bool = False

    @property
    def kernel(self) -> Kernel:
        blocks = -(-self.rows // BLOCK)
        args = {
            "slope": [f"arg in3: f32 in span `{self.points}` aligned"],
            "documents": [f"arg in3: i32 in span `{self.rows}`"],
        }
        declared = args.get(self.score, []) + args.get(self.mask, [])
        mask, asked = MASKS[self.mask]
        mask = mask.replace("y2", "y1")
        if self.listed:
            spans = (blocks, blocks**2) * 2
            numbers = (4, 5, 6, 7, 11, 12, 13, 14)
            declared += [
                f"arg in{k}: i32 in span `{span}`" for k, span in zip(numbers, spans * 2, strict=True)
            ]
            mask += "\n    " + LISTS.format(blocks=blocks)
            asked += (
                "\n    blocks 128 by 128 (keys (t20, t21), full_keys (t22, t23), rows (t24, t25), "
                "full_rows (t26, t27))"
            )
        text = TEXT.format(
            rows="n0" if self.is_open else self.rows,
            points=self.points,
            heads=self.heads,
            head="y0" if self.heads == self.points else f"y0 // {self.points // self.heads}",
            args="\n  ".join(declared),
            score=SCORES[self.score],
            mask=mask,
            asked=asked,
            dtype=self.dtype,
            logarithms="" if self.natural else "logarithms binary",
        )
        if self.is_open:
            text = text.replace("  range y0", "  size n0 in [1, 1048576]\n  range y0", 1)
        return parse_kernel(text)

    @property
    def mapping(self) -> str:
        """Directives."""
        return (
            f"tile x0 by 64 tile y1 by {64 * self.consumers} tile y0 by 1 flat resident {self.programs} "
            f"loop r0 by 64 stages {self.stages} keep r1 by 64 unit mma "
            f"specialise {self.consumers} consumers warps 4 index i32 contract"
        )


CASES: Final = {
    "causal": Case(),
    "a tile in no pair": Case(points=3, heads=3, rows=300, programs=2),
    "fewer tiles than programs": Case(rows=128, programs=3),
    "all keys": Case(mask=""),
    "window": Case(mask="window", rows=330),
    "keys of no tile's middle": Case(mask="narrow window", rows=130),
    "three stages": Case(stages=3, rows=256),
    "one consumer": Case(consumers=1, programs=2),
    "slopes": Case(score="slope"),
    "a cap, shared keys": Case(score="cap", heads=1),
    "pairs of heads share keys": Case(points=4, heads=2, mask="window", score="slope", rows=130),
    "natural logarithms": Case(natural=True, mask="documents"),
    "lists": Case(mask="documents", listed=True, rows=400),
    "lists, shared keys": Case(mask="documents", listed=True, rows=300, heads=1),
    "f16": Case(dtype="f16"),
    "open sizes": Case(is_open=True, heads=1, mask="window"),
}


def compute(case: Case, given: Tensor, up: Tensor, *operands: Tensor) -> tuple[Tensor, ...]:
    """Logarithms, what rows pass on, and the gradients of queries, keys and values in float64."""
    exact = [x.double().requires_grad_() for x in operands]
    q, k, v = exact
    k, v = (x.repeat_interleave(case.points // x.shape[0], 0) for x in (k, v))
    scores = q @ k.mT * 0.125
    i, j = torch.arange(case.rows)[:, None], torch.arange(case.rows)
    if case.score == "slope":
        scores = scores + given.double()[:, None, None] * (j - i)
    elif case.score == "cap":
        scores = 3 * torch.tanh(scores)
    keep = {
        "": torch.ones(case.rows, case.rows, dtype=torch.bool),
        "causal": i >= j,
        "window": (i >= j) & (i - j <= 100),
        "narrow window": (i >= j) & (i - j <= 20),
        "documents": find_same(given) if case.mask == "documents" else i >= j,
    }[case.mask]
    logs = scores.detach().masked_fill(~keep, -torch.inf).logsumexp(-1)
    # rows of no key have no weights
    result = (scores.masked_fill(~keep, -1e30).softmax(-1) * keep) @ v
    gradients = torch.autograd.grad(result, exact, up.double())
    if case.natural:
        logs = torch.where(keep.any(-1), logs, 0.0)
    else:
        logs = logs / torch.log(torch.tensor(2.0))
    return logs, (result * up.double()).sum(-1).detach(), *gradients


def explain_fault(case: Case) -> str:
    """Return how far results are off, if they are."""
    kernel = case.kernel
    source = TritonCodegen().emit_mapping(kernel, parse_mapping(case.mapping), get_target("sm_90"))
    assert "warp_specialize" in source.text
    generator = torch.Generator().manual_seed(0)
    dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float16
    q, k, v, up = (
        torch.randn(n, case.rows, COLUMNS, generator=generator).to(dtype)
        for n in (case.points, case.heads, case.heads, case.points)
    )
    given = torch.linspace(0.01, 0.05, case.points)
    if case.mask == "documents":
        given = torch.tensor([-1] * 3 + [0] * 150 + [1] * (case.rows - 153), dtype=torch.int32)
    more = {"in3": given} if case.score == "slope" or case.mask == "documents" else {}
    if case.listed:
        same = find_same(given)
        lists = [
            x for keep in (same, same.mT) for full in (False, True) for x in list_blocks(keep, full=full)
        ]
        numbers = (4, 5, 6, 7, 11, 12, 13, 14)
        more |= {f"in{k}": x for k, x in zip(numbers, lists, strict=True)}
    logs, inner, *wanted = compute(case, given, up, q, k, v)
    tensors = {"in0": q, "in1": k, "in2": v, "in8": up, "in9": logs.float(), "in10": inner.float(), **more}
    outs = [torch.zeros_like(x) for x in (q, k, v)]
    tensors |= {f"out{number}": x for number, x in enumerate(outs)}
    given_to = [tensors[arg.name].view(-1) for arg in kernel.args]
    sizes = [case.rows] if case.is_open else []
    Builder().build([spec_of(source)])[kernel.name](*given_to, *sizes)
    for found, one in zip(outs, wanted, strict=True):
        try:
            torch.testing.assert_close(found.double(), one, rtol=2e-2, atol=2e-2)
        except AssertionError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps({name: explain_fault(case) for name, case in CASES.items()}))
