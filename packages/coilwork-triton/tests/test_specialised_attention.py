"""Attention whose warps have roles: what it computes, in a simulation of its barriers; what has roles, and what
is refused by name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gluon_simulator import simulate
from kernel_bench import TritonProcess
from torch import Tensor

from coilwork_ir.errors import EmitError
from coilwork_ir.index import as_expr, as_int
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.attention import find_core, roles_of
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.mapping import Loop, Mapping, Resident, Specialise, Tile
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.attention_roles import find_operands

HOPPER = get_target("sm_90")
CAUSAL = ("t10 = ge(t7, t8)", "mask t10")
WINDOW = (
    "t10 = ge(t7, t8)\n t11 = index [y2 - r0]\n t12 = const 200 : i64\n t13 = le(t11, t12)\n"
    " t14 = bitwise_and(t10, t13)",
    "mask t14",
)
SLOPED = "t15 = load %in3[y1] : f32\n t16 = index [r0 - y2]\n t17 = cast(t16) : f32\n t18 = mul(t15, t17)\n t19 = mul(t3, t4)\n t5 = add(t19, t18)"
CAPPED = "t15 = mul(t3, t4)\n t16 = tanh(t15)\n t17 = const 3.0 : f32\n t5 = mul(t16, t17)"


def write_kernel(
    *,
    rows: int = 600,
    group: int = 1,
    mask: tuple[str, str] = CAUSAL,
    score: str = "t5 = mul(t3, t4)",
    query: str = "",
) -> str:
    """Two heads of queries, `group` of which share keys, in one batch."""
    inner, heads = 64 * rows, 2 // group
    at = f"{inner * heads} * y0 + {inner} * " + ("y1" if group == 1 else f"(y1 // {group})")
    lines, asked = mask
    return f"""kernel @attention fast {{
  range y0: `1` parallel
  range y1: `2` parallel
  range y2: `{rows}` parallel
  range x0: `64` parallel
  range r0: `{rows}` reduction
  range r1: `64` reduction
  arg in0: bf16 in span `{2 * inner}` aligned
  arg in1: bf16 in span `{heads * inner}` aligned
  arg in2: bf16 in span `{heads * inner}` aligned
  {"arg in3: f32 in span `2` aligned" if "in3" in score else ""}
  arg out0: bf16 out span `{2 * inner}` aligned
  arg out1: f32 out span `{2 * rows}`
  attention f32 (y0, y1, y2, x0) over (r0, r1) {{
    t0 = load %in0[{2 * inner} * y0 + {inner} * y1 + 64 * y2 + r1] : bf16
    t1 = load %in1[{at} + 64 * r0 + r1] : bf16
    t2 = load %in2[{at} + 64 * r0 + x0] : bf16
    t3 = parameter 0 : f32
    t4 = const 0.125 : f32
    {score}
    t7 = index [y2]
    t8 = index [r0]
    {query}
    {lines}
    query {"t9" if query else "t0"}, key t1, value t2
    score t5
    {asked}
    logarithms binary
  }}
  body {{
    t0 = parameter 0 : f32
    t1 = cast(t0) : bf16
    t2 = parameter 1 : f32
    store %out0[{2 * inner} * y0 + {inner} * y1 + 64 * y2 + x0] = t1
    store %out1[{2 * rows} * y0 + {rows} * y1 + y2] = t2
  }}
}}
"""


def compute(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Attention and logarithms of the variant `name`, in float64."""
    rows = q.shape[1]
    k, v = (x.repeat_interleave(2 // x.shape[0], 0).double() for x in (k, v))
    scores = q.double() @ k.mT * 0.125
    i, j = torch.arange(rows)[:, None], torch.arange(rows)
    if name == "sloped":
        scores = scores + slopes.double()[:, None, None] * (j - i)
    elif name == "capped":
        scores = 3 * torch.tanh(scores)
    if name != "all":
        scores = scores.masked_fill(i < j, -torch.inf)
    if name == "window":
        scores = scores.masked_fill(i - j > 200, -torch.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1) / torch.log(torch.tensor(2.0))


CASES = {
    "causal": write_kernel(),
    "all": write_kernel(mask=("", "")),
    "window": write_kernel(mask=WINDOW),
    "sloped": write_kernel(score=SLOPED),
    "capped": write_kernel(score=CAPPED, group=2),
}


@pytest.mark.parametrize("name", CASES)
def test_roles_compute_attention(name: str, tmp_path: Path) -> None:
    """Rows end within a tile and keys within a block; programs have several tiles, and stages several rounds."""
    kernel = parse_kernel(CASES[name])
    verify_kernel(kernel)
    source = TritonCodegen().emit(kernel, HOPPER, {})
    generator = torch.Generator().manual_seed(0)
    heads = as_int(kernel.args[1].span // (600 * 64))
    q, k, v = (
        torch.randn(n, 600, 64, generator=generator).bfloat16() for n in (2, heads or 2, heads or 2)
    )
    slopes, out, logs = torch.tensor([0.01, 0.05]), torch.zeros(2, 600, 64).bfloat16(), torch.zeros(2, 600)
    given = [q, k, v, *([slopes] if name == "sloped" else []), out, logs]
    simulate(source, [x.view(-1) for x in given], tmp_path, programs=3)
    wanted, wanted_logs = compute(q, k, v, slopes, name)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(logs.double(), wanted_logs, rtol=1e-4, atol=1e-4)
