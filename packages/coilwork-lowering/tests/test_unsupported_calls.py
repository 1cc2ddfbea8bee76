"""What has no place in a program is found in the graph alone, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import CallMethodKey
from torch.fx.node import Target
from torch.utils._pytree import KeyPath, SequenceKey

from coilwork_lowering.unsupported_calls import list_uncallable

aten = torch.ops.aten
NARROW = [
    getattr(torch, f"{sign}int{bits}")
    for sign in ("u", "")
    for bits in range(1, 8)
    if hasattr(torch, f"{sign}int{bits}")
]


def listed(value: object, target: Target = aten.sin.default, result: object = None) -> dict[str, str]:
    """The findings in a graph that calls `target` with `value`, by node."""
    graph = fx.Graph()
    given = graph.placeholder("given")
    given.meta["val"] = value
    call = graph.create_node("call_function", target, (given,), name="call")
    call.meta["val"] = result
    graph.output((call,))
    found = list_uncallable(fx.GraphModule(torch.nn.Module(), graph))
    return {origin.node: reason for origin, reason in found.items()}


def test_tensors_and_numbers_have_a_place() -> None:
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn):
            assert not listed(torch.empty(4, 2, dtype=dtype), result=torch.empty(4))
    assert not listed(3, result=[4, 2.5, None])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_integers_of_less_than_a_byte(dtype: torch.dtype) -> None:
    with FakeTensorMode():
        value = torch.empty(4, dtype=dtype)
    assert listed(value) == {
        "given": f"a tensor of type {dtype}",
        "call": f"it takes a tensor of type {dtype}",
    }
    assert listed(3, result=(3, value)) == {"call": f"a tensor of type {dtype}"}


def test_tensors_without_strided_memory() -> None:
    meta, sparse = torch.empty(3, device="meta"), torch.eye(3).to_sparse()
    assert listed(meta)["call"] == "it takes a tensor on meta, without memory"
    assert listed(sparse)["call"] == "it takes a tensor of layout torch.sparse_coo"


def test_objects_that_the_code_names() -> None:
    """Such as a placement of a DTensor: an argument of an operator, or a result."""

    class Placement:
        def __repr__(self) -> str:
            return "placement"

    def named(argument: Any, result: Any) -> dict[str, str]:
        graph = fx.Graph()
        call = graph.create_node("call_function", aten.sin.default, (argument, [1, 2.5, None]), name="call")
        graph.output((call, result, torch.float32))
        found = list_uncallable(fx.GraphModule(torch.nn.Module(), graph))
        return {origin.node: reason for origin, reason in found.items()}

    assert not named(torch.device("cpu"), "text")
    assert named([3, Placement()], 3) == {"call": "it takes an object of class Placement"}
    assert named(3, Placement()) == {"output": "the graph returns an object of class Placement"}


def test_objects_that_are_no_tensors_are_listed() -> None:
    class Queue:
        script_class_name = "a.Queue"

    assert listed(object())["given"] == "an object of class object"
    assert listed(Queue()) == {
        "given": "an object of class a.Queue",
        "call": "it takes an object of class a.Queue",
    }


@pytest.mark.parametrize("effect", [False, True], ids=["alone", "with effects"])
def test_a_region_that_prints(effect: bool) -> None:
    inner = fx.Graph()
    say = torch.ops.higher_order.print
    if effect:
        arguments: tuple[Any, ...] = (None, say, "text")
        said = inner.call_function(torch.ops.higher_order.with_effects, arguments)
    else:
        said = inner.call_function(say, ("text",))
    inner.output((said,))
    root = torch.nn.Module()
    root.region = fx.GraphModule(torch.nn.Module(), inner)
    graph = fx.Graph()
    held = graph.get_attr("region")
    graph.output((graph.create_node("call_function", torch.ops.higher_order.cond, (held,), name="call"),))
    found = list_uncallable(fx.GraphModule(root, graph))
    assert {origin.node: reason for origin, reason in found.items()} == {
        "call": "in a region of cond, print is driven by Python"
    }


def test_a_region_that_finds_sizes() -> None:
    """Sizes of results, unlike numbers among them, are needed before the regions run."""
    graph = fx.Graph()
    root = torch.nn.Module()
    root.region = fx.GraphModule(torch.nn.Module(), fx.Graph())
    held = graph.get_attr("region")
    number: KeyPath = (SequenceKey(0),)
    size: KeyPath = (SequenceKey(0), CallMethodKey("size"), SequenceKey(0))
    calls: list[fx.Node] = []
    for name, path in (("counts", number), ("selects", size)):
        call = graph.create_node("call_function", torch.ops.higher_order.cond, (held,), name=name)
        call.meta["unbacked_bindings"] = {"u0": path}
        calls.append(call)
    graph.output(calls[-1])
    found = list_uncallable(fx.GraphModule(root, graph))
    assert {origin.node: reason for origin, reason in found.items()} == {
        "selects": "the sizes of what cond returns are known once a region has run"
    }
