"""Reads at positions that are known when compiling are maps of coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerator_graphs import as_eager_on_an_accelerator
from aot_compilers import TracingMode
from hypothesis import given
from hypothesis import strategies as st
from lowering_against_eager import assert_as_eager, trace_and_lower
from torch import Tensor, arange
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import interpolate

from coilwork_ir.index import evaluate, symbol
from coilwork_ir.loops import Graph, Pointwise
from coilwork_ir.scalar import Load, iterate_postorder
from coilwork_lowering.facts import static_tensors
from coilwork_lowering.facts.static_tensors import _fit_fractions, find_static_fractions, fit_position_map


def scaled(size: int, length: int, centre: float = 0.0) -> Tensor:
    """Nearest upsampling as torch writes it out."""
    return ((arange(length, dtype=torch.float32) + centre) * (size / length)).to(torch.int64)


def cubic(size: int, length: int, scale: float, tap: int) -> Tensor:
    """What a cubic interpolation reads, as torch writes it out."""
    source = (arange(length, dtype=torch.float32) + 0.5) * scale - 0.5
    return (source.floor().to(torch.int64) + tap).clamp(0, size - 1)


def gathers(graph: Graph) -> bool:
    """True if the last node reads at positions that it loads."""
    last = graph.nodes[-1]
    assert isinstance(last, Pointwise)
    return any(isinstance(node, Load) and node.indirect for node in iterate_postorder((last.body,)))


KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "doubled": lambda x: x[:, :, scaled(6, 12)[:, None], scaled(7, 14)],
    "scaled": lambda x: x[:, :, scaled(6, 10)[:, None], scaled(7, 5)],
    "centred": lambda x: x[:, :, scaled(6, 10, 0.5)[:, None], scaled(7, 5, 0.5)],
    "reversed": lambda x: x[:, :, arange(6).flip(0)],
    "rolled": lambda x: x[:, :, (arange(6) + 2) % 6],
    "from the end": lambda x: x[..., -arange(1, 8)],
    "one of them": lambda x: x[:, arange(3)],
    "one position": lambda x: x[:, arange(1) + 2],
    "apart": lambda x: x[arange(2), :, arange(2)],
    "diagonal": lambda x: x[:, :, arange(6), arange(6) + 1],
    "left neighbours": lambda x: x[:, :, ((arange(12) + 0.5) * 0.5 - 0.5).clamp(min=0).to(torch.int64)],
    "right neighbours": lambda x: x[
        :, :, (((arange(12) + 0.5) * 0.5 - 0.5).clamp(min=0).to(torch.int64) + 1).clamp(max=5)
    ],
    "with aligned corners": lambda x: x[:, :, (arange(11) * (5 / 10)).to(torch.int64)],
    "cubic, to the left": lambda x: x[:, :, cubic(6, 12, 0.5, -1)],
    "cubic, to the right": lambda x: x[:, :, cubic(6, 12, 0.5, 2)],
    "cubic, with aligned corners": lambda x: x[
        :, :, (torch.floor(arange(11) * (5 / 10)).long() + 2).clamp(0, 5)
    ],
    "cubic, smaller": lambda x: x[:, :, cubic(6, 4, 1.5, 2)],
    "cubic, of a scale that is not that of the sizes": lambda x: x[..., cubic(7, 16, 1 / 2.3, -1)],
    "stopped at the borders": lambda x: x[:, :, (arange(10) - 2).clamp(0, 5)],
    "by index_select": lambda x: x[:, :, arange(3) * 2],
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_positions_need_no_index(name: str) -> None:
    lowered = assert_as_eager(KNOWN[name], torch.randn(2, 3, 6, 7))
    assert not gathers(lowered.graph)


def test_positions_without_a_form_are_loaded() -> None:
    def scattered(x: Tensor) -> Tensor:
        return x[(arange(5) * arange(5)) % 7]

    lowered = assert_as_eager(scattered, torch.randn(7, 2))
    assert gathers(lowered.graph)


def test_positions_of_data_are_loaded_and_checked() -> None:
    def function(x: Tensor, at: Tensor) -> Tensor:
        return x[at + arange(3)]

    lowered = assert_as_eager(function, torch.randn(7, 2), torch.tensor([1, 2, 3]))
    assert gathers(lowered.graph)
    assert any(node.checks for node in lowered.graph.nodes if isinstance(node, Pointwise))


def test_positions_outside_are_still_an_error() -> None:
    lowered = trace_and_lower(lambda x: torch.ops.aten._unsafe_index(x, [arange(9)]), (torch.randn(7),))
    assert gathers(lowered.graph)
    assert any(node.checks for node in lowered.graph.nodes if isinstance(node, Pointwise))


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("scale", [2, 4, 3, 1.5, 2.3, 0.5, 0.77])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolations_load_no_positions(mode: TracingMode, scale: float, corners: bool) -> None:
    def function(x: Tensor) -> Tensor:
        # as AOTAutograd does, which asks torch's decompositions first
        with enable_python_dispatcher():
            return interpolate(x, scale_factor=scale, mode=mode, align_corners=corners)

    lowered = assert_as_eager(function, torch.randn(2, 3, 9, 14, requires_grad=True))
    assert not any(
        isinstance(value, Load) and value.indirect
        for node in lowered.graph.nodes
        if isinstance(node, Pointwise)
        for value in iterate_postorder((node.body,))
    )


@given(
    st.integers(1, 60),
    st.integers(1, 40),
    st.integers(-3, 3),
    st.integers(-60, 60),
    st.integers(1, 5),
    st.booleans(),
)
def test_a_map_gives_every_position(
    size: int, count: int, factor: int, offset: int, divisor: int, wraps: bool
) -> None:
    values = torch.div(arange(count) * factor + offset, divisor, rounding_mode="floor")
    if wraps:
        values = values.remainder(size)
    found = fit_position_map(values, size)
    if found is None:
        return
    at = symbol("i", lo=0, hi=count - 1)
    expression = found(at)
    expected = torch.where(values < 0, values + size, values).tolist()
    assert [evaluate(expression, {"i": k}) for k in range(count)] == expected


def fraction(result: int, scale: float, device: torch.device) -> Tensor:
    """What torch weighs the right neighbour by in a linear interpolation, before it is bounded."""
    source = (arange(result, dtype=torch.float32, device=device) + 0.5) * (1 / scale) - 0.5
    source = source.clamp(min=0.0)
    return source - source.to(torch.int64).to(torch.float32)


def reads(graph: Graph, name: str) -> bool:
    """True if the node of that name reads other nodes' results."""
    (node,) = (one for one in graph.nodes if isinstance(one, Pointwise) and one.output.name == name)
    return any(isinstance(value, Load) for value in iterate_postorder((node.body,)))


@pytest.mark.parametrize(
    ("scale", "known"),
    [(2, True), (4, True), (16, True), (0.5, True), (0.25, True), (3, False), (1.5, False), (64, False)],
)
@pytest.mark.parametrize("size", [1, 2, 7, 32])
def test_weights_of_upsampling_are_integers_on_accelerators(size: int, scale: float, known: bool) -> None:
    result = max(1, int(size * scale))

    def weights(x: Tensor) -> Tensor:
        return x * fraction(result, scale, x.device).clamp(0.0, 1.0)[:, None]

    x = torch.randn(result, 3)
    graph = as_eager_on_an_accelerator(weights, x)
    if result > 1:
        assert reads(graph, "clamp_1") is not known
        assert reads(assert_as_eager(weights, x).graph, "clamp_1")


def test_weights_of_other_floats_stay() -> None:
    def numbers(x: Tensor) -> Tensor:
        return arange(8, dtype=torch.float32, device=x.device)

    functions: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x * (numbers(x) % 3 * 0.25 + 0.125).clamp(0.0, 1.0),
        lambda x: x + (numbers(x) * 0.37).sin().clamp(0.0, 1.0),
        lambda x: x * (numbers(x) / 4).clamp(0.0, 1.0),
        lambda x: x * (numbers(x).view(2, 4) / 8).clamp(0.0, 1.0).view(8),
    )
    for function in functions:
        as_eager_on_an_accelerator(function, torch.randn(8))


def test_open_sizes_are_not_asked_about() -> None:
    gm = make_fx(lambda x: x[x > 0].clamp(0.0, 1.0), tracing_mode="symbolic")(torch.randn(5))
    (clamp,) = (node for node in gm.graph.nodes if "clamp" in node.name)
    environment = clamp.meta["val"].fake_mode.shape_env
    before = len(environment.guards)
    assert find_static_fractions(clamp) is None
    assert len(environment.guards) == before


@given(st.integers(-7, 7), st.integers(-40, 40), st.sampled_from([2, 4, 8, 16, 32, 64]), st.integers(2, 40))
def test_fractions_give_every_weight(factor: int, offset: int, period: int, count: int) -> None:
    given_ones = (arange(count) * factor + offset).clamp(min=0).remainder(period)
    values = given_ones.to(torch.float32) / period
    found = _fit_fractions(values, 0)
    if found is None:
        return
    assert torch.equal(found.numerators(arange(count)).to(torch.float32) / found.denominator, values)
    coordinate = symbol("i", extent=count)
    expression = found.numerator(coordinate)
    for k in range(count):
        assert evaluate(expression, {"i": k}) / found.denominator == values[k]


def test_an_index_that_is_read_twice_at_each_step_is_evaluated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits = 0

    def counting(node: Any, depth: int, done: Any) -> Any:
        nonlocal visits
        visits += 1
        assert visits < 500, "evaluated again and again"
        return evaluate_node(node, depth, done)

    evaluate_node = static_tensors._evaluate
    monkeypatch.setattr(static_tensors, "_evaluate", counting)

    def function(x: Tensor) -> Tensor:
        index = arange(16)
        for _ in range(10):
            index = (index + index.flip(0) + 1) % 16
        return x[index]

    assert_as_eager(function, torch.randn(16, 2))
    assert visits > 0
