"""Conversions to 16 bits: the rounding is kept where the program goes on with the result in a wider type."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aot_compilers import tensors_of
from lowering_against_eager import externs
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import Pointwise
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.scalar import Op, iterate_postorder
from coilwork_lowering import decompositions, lower
from coilwork_lowering.building.values import get_dtype

Function = Callable[[Tensor], Tensor]


def keeps_a_rounding(function: Function, x: Tensor, *, decomposed: bool) -> bool:
    """Whether a value of 16 bits is seen as bits on its way, which `fast` numerics do not leave out."""
    table = decompositions() if decomposed else {}
    # by which nodes tell the operator that they were decomposed from
    with torch.fx.traceback.preserve_node_meta():
        gm = make_fx(function, tracing_mode="fake", decomposition_table=table)(x)
    graph = lower(gm, name="graph").graph
    assert externs(graph) == []
    bodies = [node.body for node in graph.nodes if isinstance(node, Pointwise)]
    return any(isinstance(node, Op) and node.op == "bitcast" for node in iterate_postorder(bodies))


WIDER: dict[str, Function] = {
    "and back": lambda x: x.bfloat16().float(),
    "beside its origin": lambda x: x.half() - x,
    "a view of it": lambda x: x.bfloat16().t()[1:].float(),
    "a sum": lambda x: x.half().sum(dtype=torch.float32),
}
NARROW: dict[str, Function] = {
    "returned": lambda x: x.bfloat16(),
    "computed with": lambda x: x.bfloat16() * 2,
    "compared": lambda x: x.half() > 0,
    "an operator's own": lambda x: torch.softmax(x, -1, dtype=torch.float32).half() * 2,
    "to integers": lambda x: x.half().int(),
}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", WIDER)
def test_a_wider_type_behind_it(name: str, dtype: torch.dtype, decomposed: bool) -> None:
    assert keeps_a_rounding(WIDER[name], torch.ones(3, 4, dtype=dtype), decomposed=decomposed)


@pytest.mark.parametrize("name", NARROW)
def test_no_wider_type_behind_it(name: str) -> None:
    assert not keeps_a_rounding(NARROW[name], torch.ones(3, 4), decomposed=True)


def test_conversions_of_other_operators_are_not_asked_for() -> None:
    def scaled(x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, (4,)).float()

    assert not keeps_a_rounding(scaled, torch.ones(3, 4, dtype=torch.bfloat16), decomposed=True)


SMALL = (
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
)


@pytest.mark.parametrize("small", SMALL, ids=str)
def test_8_bits_and_back(small: torch.dtype) -> None:
    """Whatever the numerics, which go on without roundings to 16 bits alone."""
    gm = make_fx(lambda x: x.to(small).to(x.dtype) * 2, tracing_mode="fake")(torch.ones(3, 4))
    bodies = [node.body for node in lower(gm, name="graph").graph.nodes if isinstance(node, Pointwise)]
    types = [node.dtype for node in iterate_postorder(bodies) if isinstance(node, Op) and node.op == "cast"]
    assert types.count(get_dtype(small)) == 1


def test_before_torch_2_13_what_is_too_large_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coilwork_lowering.scalar_math.E4M3_SATURATES", False)
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([448.0, 464.0, 464.1, 500.0, -500.0, inf, -inf, nan, 0.3, -0.3, -464.0, -0.0])
    codes = [0x7E, 0x7E, 0x7F, 0x7F, 0xFF, 0x7F, 0xFF, 0x7F, 0x2A, 0xAA, 0xFE, 0x80]

    def once(x: Tensor) -> Tensor:
        return x.to(torch.float8_e4m3fn).view(torch.uint8)

    def twice(x: Tensor) -> Tensor:
        return once(x.to(torch.float8_e4m3fn).float())

    for function in (once, twice):
        gm = make_fx(function, tracing_mode="fake")(x)
        (found,) = tensors_of(interpret_graph(lower(gm, name="graph").graph, [x], {}))
        assert found.tolist() == codes
