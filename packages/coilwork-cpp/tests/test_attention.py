"""Attention and its gradient in blocks: many blocks of both sides, beside float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from coilwork_cpp import CppCodegen
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.target import Target

BATCH, HEADS, GROUP, LENGTH, COLUMNS, WINDOW = 2, 4, 2, 20, 24, 90

# A window, a bias that lies along the keys, two heads that share keys; numbers of rows and keys are open.
WEIGHTS = f"""
    t0 = load %in0[n0 * {HEADS * LENGTH} * y0 + n0 * {LENGTH} * y1 + {LENGTH} * y2 + r1] : TYPE
    t1 = load %in1[n1 * {LENGTH} * (y1 // {GROUP} + {HEADS // GROUP} * y0) + {LENGTH} * r0 + r1] : TYPE
    t2 = load %in2[n1 * {COLUMNS} * (y1 // {GROUP} + {HEADS // GROUP} * y0) + {COLUMNS} * r0 + x0] : TYPE
    t3 = parameter 0 : f32
    t4 = const 0.25 : f32
    t5 = mul(t3, t4)
    t6 = load %in3[n1 * y2 + r0] : f32
    t7 = add(t5, t6)
    t8 = index [y2]
    t9 = index [r0]
    t10 = le(t9, t8)
    t11 = index [y2 - {WINDOW}]
    t12 = ge(t9, t11)
    t13 = bitwise_and(t10, t12)"""
PLACES = {
    "rows": f"n0 * {HEADS} * y0 + n0 * y1 + y2",
    "query": f"n0 * {HEADS * LENGTH} * y0 + n0 * {LENGTH} * y1 + {LENGTH} * y2 + r1",
    "key": f"n1 * {LENGTH} * (y1 // {GROUP} + {HEADS // GROUP} * y0) + {LENGTH} * r0 + r1",
    "value": f"n1 * {COLUMNS} * (y1 // {GROUP} + {HEADS // GROUP} * y0) + {COLUMNS} * r0 + x0",
    "output": f"n0 * {HEADS * COLUMNS} * y0 + n0 * {COLUMNS} * y1 + {COLUMNS} * y2 + x0",
}
RANGES = f"""
  size n0 in [1, inf]
  size n1 in [1, inf]
  range y0: `{BATCH}` parallel
  range y1: `{HEADS}` parallel
  range y2: `n0` parallel
  range x0: `{COLUMNS}` parallel
  range r0: `n1` reduction
  range r1: `{LENGTH}` reduction
  arg in0: TYPE in span `{BATCH * HEADS * LENGTH} * n0`
  arg in1: TYPE in span `{BATCH * HEADS // GROUP * LENGTH} * n1`
  arg in2: TYPE in span `{BATCH * HEADS // GROUP * COLUMNS} * n1`
  arg in3: f32 in span `n0 * n1`"""
OUTPUT = f"`{BATCH * HEADS * COLUMNS} * n0`"
ROWS = f"`{BATCH * HEADS} * n0`"

FORWARD = f"""kernel @windows fast {{{RANGES}
  arg out0: TYPE out span {OUTPUT}
  arg out1: f32 out span {ROWS}
  attention f32 (y0, y1, y2, x0) over (r0, r1) {{{WEIGHTS}
    query t0, key t1, value t2
    score t7
    mask t13
    logarithms binary
  }}
  body {{
    t0 = parameter 0 : f32
    t1 = cast(t0) : TYPE
    t2 = parameter 1 : f32
    store %out0[{PLACES["output"]}] = RESULT
    store %out1[{PLACES["rows"]}] = t2
  }}
}}
"""
GRADIENT = f"""kernel @of_windows fast {{{RANGES}
  arg in4: TYPE in span {OUTPUT}
  arg in5: f32 in span {ROWS}
  arg in6: TYPE in span {OUTPUT}
  arg out0: f32 out span `{BATCH * HEADS * LENGTH} * n0`
  arg out1: f32 out span `{BATCH * HEADS // GROUP * LENGTH} * n1`
  arg out2: f32 out span `{BATCH * HEADS // GROUP * COLUMNS} * n1`
  attention_gradient f32 (y0, y1, y2, x0) over (r0, r1) {{{WEIGHTS}
    t14 = load %in4[{PLACES["output"]}] : TYPE
    t15 = load %in5[{PLACES["rows"]}] : f32
    t16 = load %in6[{PLACES["output"]}] : TYPE
    t17 = parameter 1 : f32
    t18 = mul(t17, t4)
    query t0, key t1, value t2
    score t7
    mask t13
    logarithms binary
    output t14, logsumexp t15, gradient t16
    slope t18
  }}
  body {{
    t0 = parameter 0 : f32
    t1 = parameter 1 : f32
    t2 = parameter 2 : f32
    store %out0[{PLACES["query"]}] = t0
    store %out1[{PLACES["key"]}] = t1
    store %out2[{PLACES["value"]}] = t2
  }}
}}
"""


def write(text: str, dtype: str) -> str:
    text = text.replace("RESULT", "t0" if dtype == "f32" else "t1")
    if dtype == "f32":
        text = text.replace("    t1 = cast(t0) : TYPE\n", "")
    return text.replace("TYPE", dtype)


def draw(rows: int, keys: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = [(HEADS, rows, LENGTH), (HEADS // GROUP, keys, LENGTH), (HEADS // GROUP, keys, COLUMNS)]
    operands = [torch.randn(BATCH, *shape, generator=generator).to(dtype) for shape in shapes]
    return [*operands, torch.randn(rows, keys, generator=generator)]


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Results in the type of the operands, and logarithms to the base 2; rows without keys are zeros."""
    k, v = (x.repeat_interleave(GROUP, 1) for x in (k, v))
    row, key = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    shown = (key <= row) & (key >= row - WINDOW)
    scores = (0.25 * (q @ k.mT) + bias).masked_fill(~shown, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0.0)
    return weights @ v, scores.logsumexp(-1) / math.log(2)


@pytest.mark.parametrize(("dtype", "limit"), [("f32", 2e-6), ("bf16", 4e-3)])
def test_attention_in_blocks_is_near_float64(
    load_kernel: Callable[..., Callable[..., int]],
    threads: Callable[[Callable[[], list[Tensor]]], None],
    dtype: str,
    limit: float,
) -> None:
    forward = load_kernel(parse_kernel(write(FORWARD, dtype)))
    backward = load_kernel(parse_kernel(write(GRADIENT, dtype)))
    kind = torch.float32 if dtype == "f32" else torch.bfloat16
    # with fewer keys than rows the last rows have none
    for rows, keys in ((150, 210), (1, 1), (230, 100)):
        given = draw(rows, keys, kind)
        exact = [x.double().requires_grad_() for x in given]
        wanted, logs = attend(*exact)
        up = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).to(kind)

        def run(
            given: list[Tensor] = given, up: Tensor = up, rows: int = rows, keys: int = keys
        ) -> list[Tensor]:
            result, log = torch.empty_like(up), torch.empty(up.shape[:-1])
            forward(*given, result, log, rows, keys)
            found = [torch.empty(x.shape) for x in given[:3]]
            backward(*given, result, log, up, *found, rows, keys)
            return [result, log, *found]

        result, log, *found = run()
        torch.testing.assert_close(log.double(), logs.detach(), rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(wanted, exact[:3], up.double())
        for one, other in zip((result, *found), (wanted.detach(), *gradients), strict=True):
            assert (one.double() - other).abs().max() <= limit * max(1.0, float(other.abs().max())) * 4
        if rows > 1:
            threads(run)


# Documents, by lists of blocks of 64: what the lists leave out is not looked at.
LISTED = """kernel @documents fast {
  range y0: `2` parallel
  range y1: `192` parallel
  range x0: `16` parallel
  range r0: `192` reduction
  range r1: `16` reduction
  arg in0: f32 in span `2*192*16`
  arg in1: f32 in span `2*192*16`
  arg in2: f32 in span `2*192*16`
  arg in3: i32 in span `192`
  arg in4: i32 in span `3`
  arg in5: i32 in span `9`
  arg in6: i32 in span `3`
  arg in7: i32 in span `9`
  arg out0: f32 out span `2*192*16`
  attention f32 (y0, y1, x0) over (r0, r1) {
    t0 = load %in0[3072 * y0 + 16 * y1 + r1] : f32
    t1 = load %in1[3072 * y0 + 16 * r0 + r1] : f32
    t2 = load %in2[3072 * y0 + 16 * r0 + x0] : f32
    t3 = parameter 0 : f32
    t4 = tanh(t3)
    t5 = load %in3[y1] : i32
    t6 = load %in3[r0] : i32
    t7 = eq(t5, t6)
    t8 = load %in4[y1 // 64] : i32
    t9 = load %in5[r0 // 64 + 3 * (y1 // 64)] : i32
    t10 = load %in6[y1 // 64] : i32
    t11 = load %in7[r0 // 64 + 3 * (y1 // 64)] : i32
    query t0, key t1, value t2
    score t4
    mask t7
    blocks 64 by 64 (keys (t8, t9), full_keys (t10, t11))
  }
  body {
    t0 = parameter 0 : f32
    store %out0[3072 * y0 + 16 * y1 + x0] = t0
  }
}
"""


def test_blocks_that_no_list_names_are_skipped(load_kernel: Callable[..., Callable[..., int]]) -> None:
    document = torch.arange(192, dtype=torch.int32) // 80
    keeps = document[:, None] == document
    tiles = keeps.reshape(3, 64, 3, 64).transpose(1, 2).flatten(2)
    lists: list[Tensor] = []
    for wanted in (tiles.any(-1) & ~tiles.all(-1), tiles.all(-1)):
        lists.append(wanted.sum(-1, dtype=torch.int32))
        lists.append(torch.argsort(wanted.int(), dim=-1, descending=True, stable=True).int().contiguous())
    q, k, v = (torch.randn(2, 192, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    exact = torch.tanh(q.double() @ k.double().mT).masked_fill(~keeps, -math.inf).softmax(-1) @ v.double()
    found = torch.empty_like(q)
    run = load_kernel(parse_kernel(LISTED))
    run(q, k, v, document, *lists, found)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    # the lists are a promise, which is believed
    lists[0][0] = lists[2][0] = 0
    run(q, k, v, document, *lists, found)
    assert (found[:, :64] == 0).all() and torch.equal(found[:, 64:].isnan().any(), torch.tensor(False))


def test_user_mappings_name_the_block_of_keys(machine: Target) -> None:
    kernel = parse_kernel(LISTED)
    codegen = CppCodegen()
    text = codegen.describe(kernel, machine, {})
    assert "loop r0 by 64" in text and "tile y1 by 64 to thread" in text
    given = {"mappings": (("documents", "tile y0 by 1 to thread tile y1 by 64 to thread loop r0 by 32"),)}
    assert "keys_begin + 32" in codegen.emit(kernel, machine, given).text
    wrong = {"mappings": (("documents", "tile y0 by 1 to thread tile y1 by 32 to thread loop r0 by 32"),)}
    with pytest.raises(EmitError, match="units of work have 64 rows"):
        codegen.emit(kernel, machine, wrong)
