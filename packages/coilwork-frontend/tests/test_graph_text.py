"""Equal keys mean equal code: what must change the key does, and what must not does not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_frontend.graph_text import UnkeyableGraphError, digest_tensor, make_graph_text


def key(
    function: Callable[..., Any], *inputs: torch.Tensor, mode: Literal["real", "fake", "symbolic"] = "fake"
) -> str:
    return make_graph_text(make_fx(function, tracing_mode=mode)(*inputs), inputs)


def scale(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2.0


def test_names_of_nodes_do_not_count() -> None:
    x = torch.ones(2, 3)
    graph = make_fx(scale, tracing_mode="fake")(x)
    before = make_graph_text(graph, [x])
    for number, node in enumerate(graph.graph.nodes):
        node.name = f"other_{number}"
    assert make_graph_text(graph, [x]) == before
    assert key(scale, x) == before


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(2, 3, dtype=torch.float64),
        torch.ones(3, 2),
        torch.ones(3, 2).t(),
        torch.ones(2, 3, 1),
        torch.ones(2, 3, device="meta"),
        torch.ones(7)[1:].view(2, 3),
    ],
    ids=["dtype", "shape", "strides", "rank", "device", "offset"],
)
def test_inputs_of_another_layout_have_another_key(other: torch.Tensor) -> None:
    assert key(scale, torch.ones(2, 3)) != key(scale, other)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: torch.sin(x) * 3.0,
        lambda x: torch.sin(x) * 2,
        lambda x: torch.cos(x) * 2.0,
        lambda x: 2.0 * torch.sin(x) + x,
        lambda x: (torch.sin(x) * 2.0, x),
    ],
    ids=["number", "type of number", "operator", "more", "outputs"],
)
def test_other_operations_have_another_key(other: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert key(scale, torch.ones(2, 3)) != key(other, torch.ones(2, 3))


def with_constant(values: list[float], name: str = "table") -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, device="meta")
    constant = graph.get_attr(name)
    graph.output(graph.call_function(torch.ops.aten.mul.Tensor, (x, constant)))
    root = torch.nn.Module()
    root.register_buffer(name, torch.tensor(values))
    return torch.fx.GraphModule(root, graph)


def test_contents_and_names_of_constants_count() -> None:
    plain = make_graph_text(with_constant([1.0, 2.0, 3.0]), [])
    assert plain == make_graph_text(with_constant([1.0, 2.0, 3.0]), [])
    assert plain != make_graph_text(with_constant([1.0, 2.0, 4.0]), [])
    assert plain != make_graph_text(with_constant([1.0, 2.0, 3.0], "other"), [])


def test_digest_is_of_the_elements_in_order() -> None:
    x = torch.arange(6).reshape(2, 3)
    assert digest_tensor(x) == digest_tensor(x.t().contiguous().t())
    assert digest_tensor(x) != digest_tensor(x.t())
    assert digest_tensor(torch.empty(0)) == digest_tensor(torch.empty(0, 3))
    z = torch.tensor([1 + 2j])
    assert digest_tensor(z.conj()) == digest_tensor(torch.tensor([1 - 2j])) != digest_tensor(z)


def test_a_sparse_constant_has_no_key() -> None:
    with pytest.raises(UnkeyableGraphError, match="sparse"):
        digest_tensor(torch.eye(3).to_sparse())


def test_bounds_of_sizes_count() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    inputs = torch.ones(5, 7)
    open_bounds, closed = (make_fx(softmax, tracing_mode="symbolic")(inputs) for _ in range(2))
    assert make_graph_text(open_bounds, []) == make_graph_text(closed, [])
    (x,) = (node for node in closed.graph.nodes if node.op == "placeholder")
    size = x.meta["val"].shape[0]
    torch._check(size <= 64)
    assert make_graph_text(open_bounds, []) != make_graph_text(closed, [])


def test_what_is_guarded_of_sizes_counts() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    inputs = torch.ones(5, 7)
    one, other, third = (make_fx(double, tracing_mode="symbolic")(inputs) for _ in range(3))
    for gm, divisor, divides in ((one, 5, True), (other, 4, False), (third, 5, True)):
        (x,) = (node for node in gm.graph.nodes if node.op == "placeholder")
        remainder = x.meta["val"].shape[0] % divisor
        assert remainder == 0 if divides else remainder != 0
    assert make_graph_text(one, []) == make_graph_text(third, []) != make_graph_text(other, [])


def test_how_large_open_sizes_likely_are_counts_to_a_power_of_two() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    one, other, third = (
        make_graph_text(make_fx(double, tracing_mode="symbolic")(torch.ones(n, 7)), [])
        for n in (520, 680, 1100)
    )
    assert one == other != third


def test_what_branches_compute_is_in_the_key() -> None:
    def branches(x: torch.Tensor, factor: float) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y * factor, lambda y: y.cos(), (x,))
        return result

    x = torch.ones(3)
    keys = [key(partial(branches, factor=factor), x) for factor in (2.0, 2.0, 3.0)]
    assert keys[0] == keys[1] != keys[2]
