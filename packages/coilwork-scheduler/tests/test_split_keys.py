"""Attention of a few rows: its keys in pieces, joined by their logarithms, as exact as in one go."""

from __future__ import annotations

from math import log

import pytest
import torch
from torch import Tensor

from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import TARGETS, Capabilities, Targets
from coilwork_scheduler import schedule


def write_graph(*, rows: int, keys: int, group: int, form: str) -> Graph:
    """Rows at the end of the keys, of which those behind `%last` do not count: in batch 1 none does."""
    graph = parse_graph(f"""graph @decode {{
  input %q: f32[2, 4, {rows}, 16] @cuda:0
  input %k: f32[2, {4 // group}, {keys}, 16] @cuda:0
  input %v: f32[2, {4 // group}, {keys}, 16] @cuda:0
  input %slope: f32[4] @cuda:0
  input %last: i64[2] @cuda:0
  (%o: f32[2, 4, {rows}, 16] @cuda:0, %s: f32[2, 4, {rows}] @cuda:0) = attention f32 \
[i0: 2, i1: 4, i2: {rows}, i3: 16 | r0: {keys}, r1: 16] {{
    t0 = load %q[i0, i1, i2, r1] : f32
    t1 = load %k[i0, i1 // {group}, r0, r1] : f32
    t2 = load %v[i0, i1 // {group}, r0, i3] : f32
    t3 = parameter 0 : f32
    t4 = load %slope[i1] : f32
    t5 = index [r0 - i2]
    t6 = cast(t5) : f32
    t7 = mul(t4, t6)
    t8 = add(t3, t7)
    t9 = index [r0]
    t10 = load %last[i0] : i64
    t11 = le(t9, t10)
    t12 = index [i2 + {keys - rows}]
    t13 = ge(t12, t9)
    t14 = bitwise_and(t11, t13)
    query t0, key t1, value t2
    score t8
    mask t14
    {form}
    logsumexp at [i0, i1, i2]
  }}
  return (%o, %s)
}}
""")
    verify_graph(graph)
    return graph


@pytest.mark.parametrize(
    ("rows", "keys", "group", "form", "pieces"),
    [
        (1, 1024, 4, "logarithms binary", 8),
        (3, 768, 2, "", 6),
        (16, 1280, 1, "logarithms binary", 10),
        (17, 1024, 1, "", 1),
        (1, 160, 1, "", 1),
    ],
)
def test_keys_are_split_among_programs(rows: int, keys: int, group: int, form: str, pieces: int) -> None:
    graph = write_graph(rows=rows, keys=keys, group=group, form=form)
    cores = Capabilities(cores=frozenset({"attention"}))
    made = schedule(graph, Targets(main=TARGETS["sm_90"], declared=(("sm_90", cores),)))
    verify_schedule(made)
    (kernel,) = [one for one in made.kernels if isinstance(one.core, AttentionCore)]
    extents = [int(str(r.extent)) for r in kernel.ranges]
    assert (pieces in extents) or pieces == 1
    assert (rows * group in extents and keys // pieces in extents) or pieces == 1
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(b.shape, generator=generator) for b in inputs_of(graph)[:3])
    given = [q, k, v, torch.rand(4, generator=generator) / 64, torch.tensor([keys - 5, -1])]
    wanted, found = interpret_graph(graph, given), interpret_schedule(made, given)
    for one, other in zip(found, wanted, strict=True):
        assert isinstance(one, Tensor) and isinstance(other, Tensor)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    result, logs = found
    assert isinstance(result, Tensor) and isinstance(logs, Tensor)
    assert bool((result[1] == 0).all()) and bool((logs[1] == (-float("inf") if form else 0)).all())
    scores = (q @ k.repeat_interleave(group, 1).mT) + given[3][:, None, None] * (
        torch.arange(keys) - torch.arange(rows)[:, None]
    )
    hidden = torch.arange(keys) > torch.minimum(torch.arange(rows)[:, None] + keys - rows, given[4][0])
    exact = scores[0].masked_fill(hidden, -float("inf")).logsumexp(-1)
    torch.testing.assert_close(logs[0], exact / log(2) if form else exact, rtol=1e-5, atol=1e-5)


def inputs_of(graph: Graph) -> list[torch.Tensor]:
    """Inputs without memory, for their shapes."""
    return [
        torch.empty([int(str(n)) for n in one.shape], device="meta")
        for one in graph.inputs
        if hasattr(one, "shape")
    ]
