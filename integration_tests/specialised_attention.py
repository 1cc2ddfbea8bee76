"""Attention whose warps have roles, in Triton's interpreter: what is off of each case.

The text of a kernel is Gluon, whose roles run one at a time there. A stage that is overwritten too early, or
a barrier that nobody arrives at, shows, and so do results that are stored over others on their way.
"""

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

COLUMNS, BLOCK = 64, 128
# All heads of queries share keys if there is one head of these.
TEXT: Final = """kernel @attention fast {{
  range y0: `1` parallel
  range y1: `{points}` parallel
  range y2: `{rows}` parallel
  range x0: `64` parallel
  range r0: `{known}` reduction
  range r1: `64` reduction
  arg in0: bf16 in span `{points}*64*{rows}` aligned
  arg in1: bf16 in span `{heads}*64*{known}` aligned
  arg in2: bf16 in span `{heads}*64*{known}` aligned
  {args}
  arg out0: {result} out span `{points}*64*{rows}` aligned
  arg out1: f32 out span `{points}*{rows}`
  attention f32 (y0, y1, y2, x0) over (r0, r1) {{
    t0 = load %in0[{points}*64*{rows}*y0 + 64*{rows}*y1 + 64*y2 + r1] : bf16
    t1 = load %in1[64*{known}*({head}) + 64*r0 + r1] : bf16
    t2 = load %in2[64*{known}*({head}) + 64*r0 + x0] : bf16
    t3 = parameter 0 : f32
    t4 = const 0.125 : f32
    {score}
    t7 = index [y2]
    t8 = index [r0]
    {mask}
    query t0, key t1, value t2
    score t5
    {asked}
    {logarithms}
  }}
  body {{
    t0 = parameter 0 : f32
    t1 = cast(t0) : {result}
    t2 = parameter 1 : f32
    store %out0[{points}*64*{rows}*y0 + 64*{rows}*y1 + 64*y2 + x0] = {stored}
    store %out1[{points}*{rows}*y0 + {rows}*y1 + y2] = t2
  }}
}}
"""
SCORES: Final = {
    "": "t5 = mul(t3, t4)",
    "slope": """t15 = load %in3[y1] : f32
    t16 = index [r0 - y2]
    t17 = cast(t16) : f32
    t18 = mul(t15, t17)
    t19 = mul(t3, t4)
    t5 = add(t19, t18)""",
    "cap": "t15 = mul(t3, t4)\n    t16 = tanh(t15)\n    t17 = const 3.0 : f32\n    t5 = mul(t16, t17)",
}
MASKS: Final = {
    "": ("", ""),
    "causal": ("t10 = ge(t7, t8)", "mask t10"),
    "window": (
        """t10 = ge(t7, t8)
    t11 = index [y2 - r0]
    t12 = const 100 : i64
    t13 = le(t11, t12)
    t14 = bitwise_and(t10, t13)""",
        "mask t14",
    ),
    "narrow window": (
        """t10 = ge(t7, t8)
    t11 = index [y2 - r0]
    t12 = const 20 : i64
    t13 = le(t11, t12)
    t14 = bitwise_and(t10, t13)""",
        "mask t14",
    ),
    "documents": (
        """t9 = load %in3[y2] : i32
    t10 = load %in3[r0] : i32
    t11 = eq(t9, t10)
    t12 = const 0 : i32
    t13 = ge(t9, t12)
    t14 = bitwise_and(t11, t13)""",
        "mask t14",
    ),
}
LISTS: Final = """t20 = load %in4[y2 // 128] : i32
    t21 = load %in5[r0 // 128 + {blocks}*(y2 // 128)] : i32
    t22 = load %in6[y2 // 128] : i32
    t23 = load %in7[r0 // 128 + {blocks}*(y2 // 128)] : i32"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An attention of `points` heads and `few` keys, or as many as rows, and how it runs: blocks of `keys`,
    `stages` at a time, and so many programs.
    """

    rows: int = 200
    few: int = 0
    score: str = ""
    mask: str = "causal"
    points: int = 2
    heads: int = 2
    listed: bool = False
    natural: bool = False
    result: str = "bf16"
    keys: int = 64
    stages: int = 2
    consumers: int = 2
    programs: int = 3

    @property
    def known(self) -> int:
        """The number of keys."""
        return self.few or self.rows

    @property
    def kernel(self) -> Kernel:
        blocks = -(-self.rows // BLOCK)
        args = {
            "slope": [f"arg in3: f32 in span `{self.points}` aligned"],
            "documents": [f"arg in3: i32 in span `{self.rows}`"],
        }
        declared = args.get(self.score, []) + args.get(self.mask, [])
        mask, asked = MASKS[self.mask]
        if self.listed:
            spans = (blocks, blocks**2) * 2
            declared += [f"arg in{4 + k}: i32 in span `{span}`" for k, span in enumerate(spans)]
            mask += "\n    " + LISTS.format(blocks=blocks)
            asked += "\n    blocks 128 by 128 (keys (t20, t21), full_keys (t22, t23))"
        text = TEXT.format(
            rows=self.rows,
            known=self.known,
            points=self.points,
            heads=self.heads,
            head="y1" if self.heads == self.points else f"y1 // {self.points}",
            args="\n  ".join(declared),
            score=SCORES[self.score],
            mask=mask,
            asked=asked,
            result=self.result,
            stored="t1" if self.result != "f32" else "t0",
            logarithms="" if self.natural else "logarithms binary",
        )
        return parse_kernel(text.replace("t1 = cast(t0) : f32\n", ""))

    @property
    def mapping(self) -> str:
        """Directives."""
        return (
            f"tile x0 by 64 tile y2 by {64 * self.consumers} tile y0, y1 by 1 flat resident {self.programs} "
            f"loop r0 by {self.keys} stages {self.stages} keep r1 by 64 unit mma "
            f"specialise {self.consumers} consumers warps 4 index i32 contract"
        )


CASES: Final = {
    "causal": Case(),
    "a tile in no pair": Case(points=3, heads=3, rows=300, programs=2),
    "fewer tiles than programs": Case(rows=128, programs=3),
    "all keys": Case(mask=""),
    "window": Case(mask="window", rows=330),
    "keys of no tile's middle": Case(mask="narrow window", rows=130),
    "four consumers": Case(consumers=4, rows=300, programs=1),
    "wide blocks, three stages": Case(keys=128, stages=3, rows=256),
    "one consumer": Case(consumers=1, programs=2),
    "slopes": Case(score="slope"),
    "a cap, shared keys": Case(score="cap", heads=1),
    "natural logarithms": Case(natural=True, mask="documents"),
    "lists": Case(mask="documents", listed=True, rows=400),
    "f32 results": Case(result="f32"),
    "one block of keys": Case(mask="", few=50, programs=2),
    "one block of keys, the last tiles": Case(mask="", few=64, rows=256, programs=1, keys=128),
    "two blocks of keys": Case(few=100, score="slope", programs=1),
    "fewer blocks than stages": Case(mask="", few=130, stages=4, consumers=4, rows=520, programs=1),
}


def compute(case: Case, q: Tensor, k: Tensor, v: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and its logarithms in float64."""
    k, v = (x.repeat_interleave(case.points // x.shape[0], 0).double() for x in (k, v))
    scores = q.double() @ k.mT * 0.125
    i, j = torch.arange(case.rows)[:, None], torch.arange(case.known)
    if case.score == "slope":
        scores = scores + given.double()[:, None, None] * (j - i)
    elif case.score == "cap":
        scores = 3 * torch.tanh(scores)
    keep = {
        "": torch.ones(case.rows, case.known, dtype=torch.bool),
        "causal": i >= j,
        "window": (i >= j) & (i - j <= 100),
        "narrow window": (i >= j) & (i - j <= 20),
        "documents": find_same(given) if case.mask == "documents" else i >= j,
    }[case.mask]
    scores = scores.masked_fill(~keep, -torch.inf)
    logs = scores.logsumexp(-1)
    if case.natural:
        logs = torch.where(keep.any(-1), logs, 0.0)
    else:
        logs = logs / torch.log(torch.tensor(2.0))
    return scores.softmax(-1).nan_to_num(0) @ v, logs


def find_same(document: Tensor) -> Tensor:
    """Which rows and keys are of one document."""
    return (document[:, None] == document) & (document[:, None] >= 0)


def list_blocks(keep: Tensor, *, full: bool) -> list[Tensor]:
    """Counts and indices of blocks of keys in which some keys count, or all, for blocks of rows."""
    blocks = -(-len(keep) // BLOCK)
    found: list[list[int]] = []
    for i in range(blocks):
        parts = [keep[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK] for j in range(blocks)]
        found.append([j for j, part in enumerate(parts) if part.any() and bool(part.all()) is full])
    rows = [row + [0] * (blocks - len(row)) for row in found]
    return [
        torch.tensor([len(row) for row in found], dtype=torch.int32),
        torch.tensor(rows, dtype=torch.int32).flatten(),
    ]


def explain_fault(case: Case) -> str:
    """Return how far results are off, if they are."""
    kernel = case.kernel
    source = TritonCodegen().emit_mapping(kernel, parse_mapping(case.mapping), get_target("sm_90"))
    assert "warp_specialize" in source.text
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(heads, n, COLUMNS, generator=generator).bfloat16()
        for heads, n in ((case.points, case.rows), (case.heads, case.known), (case.heads, case.known))
    )
    given = torch.tensor([0.01, 0.05])
    if case.mask == "documents":
        given = torch.tensor([-1] * 3 + [0] * 150 + [1] * (case.rows - 153), dtype=torch.int32)
    more = [given] if case.score == "slope" or case.mask == "documents" else []
    if case.listed:
        same = find_same(given)
        more += [*list_blocks(same, full=False), *list_blocks(same, full=True)]
    out = torch.zeros(
        case.points, case.rows, COLUMNS, dtype=torch.float32 if case.result == "f32" else torch.bfloat16
    )
    logs = torch.zeros(case.points, case.rows)
    Builder().build([spec_of(source)])[kernel.name](*(x.view(-1) for x in (q, k, v, *more, out, logs)))
    wanted, wanted_logs = compute(case, q, k, v, given)
    try:
        torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(logs.double(), wanted_logs, rtol=1e-4, atol=1e-3)
    except AssertionError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print(json.dumps({name: explain_fault(case) for name, case in CASES.items()}))
