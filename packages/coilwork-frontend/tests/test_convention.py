"""What stands around a program: the order has reasons, plain calls stay as they are, and what a graph asks
for is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_frontend.calling_convention.convention import (
    CALL_ADAPTERS,
    PROGRAM_ADAPTERS,
    Outside,
    finish_call,
    finish_program,
    open_convention,
)

aten = torch.ops.aten


def run_operators(gm: fx.GraphModule, args: list[Any]) -> Sequence[Any]:
    given = tuple(args)
    args.clear()
    return gm.forward(*given)


def test_the_order_has_reasons() -> None:
    assert PROGRAM_ADAPTERS.violations() == () and CALL_ADAPTERS.violations() == ()


def test_a_plain_call_stays_as_it_is() -> None:
    gm = make_fx(lambda x: (x + 1,), tracing_mode="fake")(torch.ones(3))
    convention = open_convention(gm, "inference")
    assert convention.gm is gm and convention.marked_results is None
    outside = Outside(convention=convention)

    def call(args: list[Any]) -> Sequence[Any]:
        return run_operators(gm, args)

    def direct(*args: Any) -> Sequence[Any]:
        return call([*args])

    assert finish_program(call, outside) is call
    adapted = finish_call(call, direct, outside)
    assert adapted.call is call and adapted.direct is direct


def test_an_input_is_set_after_the_call() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    grown = graph.call_function(aten.cat.default, ([x, y],))
    graph.call_function(aten.set_.source_Tensor, (x, grown))
    graph.output((graph.call_function(aten.mul.Tensor, (grown, 2)),))
    convention = open_convention(fx.GraphModule({}, graph), "inference")
    assert convention.exchanged == (0,) and convention.marked_results == 0
    call = lambda args: run_operators(convention.gm, args)  # noqa: E731
    adapted = finish_call(call, call, Outside(convention=convention))
    value = torch.ones(2)
    (doubled,) = adapted.call([value, torch.zeros(1)])
    assert adapted.direct is None
    assert value.tolist() == [1, 1, 0] and doubled.tolist() == [2, 2, 0]


def test_unaligned_inputs_are_written_through_copies() -> None:
    gm = make_fx(lambda x: aten.copy_.default(x, x + 1), tracing_mode="fake")(torch.ones(8))
    seen: list[int] = []

    def call(args: list[Any]) -> Sequence[Any]:
        seen.append(args[0].data_ptr() % 16)
        args[0].add_(1)
        return ()

    outside = Outside(
        convention=open_convention(gm, "inference"),
        updates=(0,),
        any_unaligned=lambda args, where: any(args[k].data_ptr() % 16 for k in where),
    )
    value = torch.zeros(9)[1:]
    finish_program(call, outside)([value])
    assert seen == [0] and value.tolist() == [1] * 8
