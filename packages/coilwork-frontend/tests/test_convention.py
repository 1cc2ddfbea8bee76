"""The roles around a program: the order has reasons, plain calls have none, and what a graph asks for is
said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_frontend.calling_convention.convention import (
    CALL_ROLES,
    PROGRAM_ROLES,
    Convention,
    Outside,
    describe_call,
    describe_program,
    open_convention,
)
from coilwork_frontend.calling_convention.result_aliasing import SharedMemory, SharedView
from coilwork_frontend.torch_compat.tensors import Creation

aten = torch.ops.aten


def run_nothing(args: list[Any]) -> Sequence[Any]:
    raise AssertionError("nobody calls the operators")


def outside(convention: Convention, **rest: Any) -> Outside:
    return Outside(convention=convention, operators=lambda: run_nothing, **rest)


def traced(function: Any, *inputs: torch.Tensor) -> fx.GraphModule:
    made: fx.GraphModule = make_fx(function, tracing_mode="fake")(*inputs)
    return made


def test_the_order_has_reasons() -> None:
    assert PROGRAM_ROLES.violations() == () and CALL_ROLES.violations() == ()


def test_a_plain_call_has_no_roles() -> None:
    gm = traced(lambda x: (x + 1,), torch.ones(3))
    convention = open_convention(gm, "inference")
    assert convention.gm is gm and convention.marked_results is None
    for describe in (describe_program, describe_call):
        roles = describe(outside(convention))
        assert str(roles.convention) == "takes 1\n" and not roles.functions


def test_an_input_is_set_after_the_call() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    grown = graph.call_function(aten.cat.default, ([x, y],))
    graph.call_function(aten.set_.source_Tensor, (x, grown))
    graph.output((graph.call_function(aten.mul.Tensor, (grown, 2)),))
    convention = open_convention(fx.GraphModule({}, graph), "inference")
    assert convention.exchanged == (0,) and convention.marked_results == 0
    roles = describe_call(outside(convention)).convention
    assert str(roles) == "takes 2 gives 1\nin 0 set to out 1\n"


def test_what_is_no_strided_tensor_is_made_of_parts() -> None:
    def spread(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, aten._sparse_coo_tensor_unsafe.default(places * 2, x + 2, [9])

    gm = traced(spread, torch.ones(3), torch.arange(3)[None])
    roles = describe_call(outside(open_convention(gm, "inference")))
    assert str(roles.convention) == ("takes 2 gives 2\ncall composition takes out 2, out 3 gives out 1\n")
    assert [*roles.functions] == ["composition"]


@dataclass(frozen=True)
class Preparation:
    """The transpose of the second of three inputs, which the main graph takes behind the first."""

    preparation: fx.GraphModule
    sources: Sequence[int] = (1,)
    kept: Sequence[int] = (0,)
    values: Sequence[torch.Tensor] = (torch.empty(2, 3),)


def test_what_frozen_parameters_decide_is_kept_by_the_outermost_row() -> None:
    prepared = Preparation(traced(lambda w: (w.t().contiguous() * 2,), torch.ones(3, 2)))
    main = traced(lambda x, w: (x + 1, torch._neg_view(x @ w)), torch.ones(2), torch.ones(2, 3))
    roles = describe_call(outside(open_convention(main, "inference"), prepared=prepared))
    assert str(roles.convention).splitlines()[-1] == "call frozen before"
    frozen, x, weight = roles.functions["frozen"], torch.ones(2), torch.ones(3, 2)
    given = [x, weight, x]
    first, second = frozen(given), frozen([x, weight, x])
    assert not given and first[0] is x and first[1] is second[1]
    assert first[1].tolist() == [[2, 2, 2]] * 2
    weight.add_(1)
    assert frozen([x, weight, x])[1].tolist() == [[4, 4, 4]] * 2


def test_updates_are_aligned_within_what_resolves_marks() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        aten.copy_.default(x, x + 1)
        return x.sum(), True

    gm = traced(step, torch._neg_view(torch.ones(8)))
    roles = describe_program(outside(open_convention(gm, "inference"), updates=(0,))).convention
    assert str(roles) == "takes 1\nin 0 aligned update\nin 0 resolved update\nout 1 constant True\n"


def test_a_backward_graph_gives_way_to_operators() -> None:
    gm = traced(lambda x: (x + 1, torch._neg_view(x * 2)), torch.ones(3))
    roles = describe_call(outside(open_convention(gm, "backward")))
    assert str(roles.convention) == "takes 1\ncall operators instead\nout 1 marked negated gradient\n"
    assert roles.functions["operators"] is run_nothing


def test_results_that_share_memory_are_objects_of_their_own() -> None:
    gm = traced(lambda x: [x + k for k in range(4)], torch.ones(3))
    parts = Creation("MULTI_OUTPUT_NODE", is_of_parts=True)
    hidden = SharedMemory(
        whole=-1,
        source=0,
        detached=((-2, None),),
        views=(SharedView(0, -1, parts), SharedView(1, -2)),
        repeated=(),
    )
    shown = SharedMemory(whole=2, source=2, detached=(), views=(SharedView(3, 2, parts),), repeated=((0, 2),))
    lone = SharedMemory(whole=-1, source=1, detached=(), views=(SharedView(1, -1, parts),), repeated=())
    convention = open_convention(gm, "inference")
    roles = describe_call(outside(convention, shared=(hidden, shown, lone))).convention
    assert str(roles).splitlines()[1:] == [
        "hidden 0 is out 0",
        "hidden 1 is hidden 0",
        "hidden 1 counted apart",
        "out 0 view of hidden 0 as MULTI_OUTPUT_NODE",
        "out 1 view of hidden 1",
        "out 2 detached",
        "out 3 view of out 2 as MULTI_OUTPUT_NODE",
        "out 0 is out 2",
        "out 1 view of out 1 as MULTI_OUTPUT_NODE",
    ]
