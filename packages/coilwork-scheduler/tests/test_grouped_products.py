"""Products of groups of unequal size: the library's call is chosen where it can be, and loops compute what it
can't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import pytest
import torch
from declared import ScheduleFields, schedule
from torch import Tensor

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.conformance import check_contractions, format_failures
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.kernels import Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern, Graph
from coilwork_ir.loops.matrix_products import GROUPED_PRODUCT, make_grouped_product
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.target import TARGETS
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.contractions.registry import REGISTRY

DEVICES = ("sm_90", "x86-64-avx512")


def scheduled(graph: Graph, target: str, **options: Unpack[ScheduleFields]) -> Schedule:
    made = schedule(graph, TARGETS[target], ScheduleOptions(**options))
    verify_schedule(made)
    return made


def buffer(name: str, *shape: int, dtype: DType = DType.BF16, device: str = "cpu") -> Buffer:
    sizes = tuple(map(as_expr, shape))
    return Buffer(name=name, dtype=dtype, shape=sizes, strides=make_contiguous_strides(sizes), device=device)


def graph_of(output: Buffer, *operands: Buffer, scaled: bool = False, ends: Buffer | None = None) -> Graph:
    empty = parse_graph("graph @g {\n  return ()\n}")
    first, second, *others = operands
    scales = (others[0], others[1]) if scaled else None
    node = make_grouped_product(output, first, second, ends, scales=scales, approximate=scaled)
    inputs = (*operands, *(() if ends is None else (ends,)))
    return replace(empty, inputs=inputs, nodes=(node,), outputs=(Ref(output.name),))


def calls(made: Schedule) -> list[Extern]:
    return [step for step in made.steps if isinstance(step, Extern)]


ENDS = buffer("ends", 3, dtype=DType.I32)


@pytest.mark.parametrize("target", DEVICES)
def test_a_library_call_computes_groups(target: str) -> None:
    graph = graph_of(buffer("y", 7, 8), buffer("x", 7, 16), buffer("w", 3, 16, 8), ends=ENDS)
    made = scheduled(graph, target)
    (call,) = calls(made)
    assert (
        call.target == "aten._grouped_mm.default" and call.implements == GROUPED_PRODUCT and not made.kernels
    )
    inputs = [torch.randn(7, 16).bfloat16(), torch.randn(3, 16, 8).bfloat16(), torch.tensor([2, 2, 7]).int()]
    (found,) = interpret_schedule(made, inputs)
    torch.testing.assert_close(found, torch._grouped_mm(inputs[0], inputs[1], offs=inputs[2]))


def test_a_call_of_scaled_groups_has_every_argument() -> None:
    eights = DType.F8E4M3
    operands = (
        buffer("x", 32, 64, dtype=eights),
        buffer("w", 3, 64, 48, dtype=eights),
        buffer("a", 32, dtype=DType.F32),
        buffer("b", 3, 48, dtype=DType.F32),
    )
    made = scheduled(graph_of(buffer("y", 32, 48), *operands, scaled=True, ends=ENDS), "sm_90")
    (call,) = calls(made)
    assert call.target == "aten._scaled_grouped_mm.default"
    names = [argument.name if isinstance(argument, Ref) else argument for argument in call.args]
    assert names == ["x", "w", "a", "b", "ends", None, None, DType.BF16, True]


@pytest.mark.parametrize(
    "graph",
    [
        graph_of(buffer("y", 7, 8, dtype=DType.F32), buffer("x", 7, 16), buffer("w", 3, 16, 8), ends=ENDS),
        # rows of ten bytes: the library refuses them
        graph_of(buffer("y", 7, 5), buffer("x", 7, 16), buffer("w", 3, 16, 5), ends=ENDS),
    ],
    ids=["two types", "odd rows"],
)
def test_what_no_library_multiplies_becomes_loops(graph: Graph) -> None:
    made = scheduled(graph, "sm_90")
    assert calls(made) == [] and made.kernels
    (decision,) = [one for one in made.decisions if one.rule == "contraction"]
    assert decision.accepted and decision.reason == "no library multiplies what has this form"
    assert len(REGISTRY.grouped) == 1


@pytest.mark.parametrize("target", DEVICES)
def test_the_conformance_kit_passes(target: str) -> None:
    def compute(graph: Graph, inputs: Sequence[Tensor]) -> Sequence[object]:
        return interpret_schedule(scheduled(graph, target), inputs)

    results = check_contractions(compute)
    assert not format_failures(results) and {one.status for one in results} == {"passed"}


@pytest.mark.parametrize("target", DEVICES)
def test_loops_compute_groups_of_unknown_sizes(target: str) -> None:
    """More tokens than a group's last end says, and a group in front that is empty."""
    text = """graph @open {
      symbol s0 in [1, inf]
      symbol s1 in [1, inf]
      input %x: f32[s0, 4]
      input %w: f32[s1, 4, 5]
      input %ends: i32[s1]
      %y: f32[s0, 5] = contract f32 [i0: s0, i1: 5 | r0: 4] groups [g0: s1] along i0 end %ends {
        t0 = load %x[i0, r0] : f32
        t1 = exp(t0)
        t2 = load %w[g0, r0, i1] : f32
        t3 = parameter 0 : f32
        multiply t1, t2
        yield t3
      }
      return (%y)
    }"""
    made = scheduled(parse_graph(text), target)
    x, w, ends = torch.randn(9, 4), torch.randn(3, 4, 5), torch.tensor([0, 4, 7], dtype=torch.int32)
    (found,) = interpret_schedule(made, [x, w, ends])
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found[:7], torch.cat([x[:4].exp() @ w[1], x[4:7].exp() @ w[2]]))
