"""Passes of the user's own: where they run, what they may not do, and what they are to the cache."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from coilwork.compile_options import CompileOptions
from coilwork.errors import PassError, UncachedPassWarning
from coilwork_frontend.user_passes import find_uuid, name_of, run_passes
from coilwork_lowering.rewrites import complete_values

Compile = Callable[..., Callable[..., Any]]
aten = torch.ops.aten


class SineToCosine:
    """Replaces every sine by a cosine, and counts the graphs that it sees."""

    def __init__(self, uuid: str = "1") -> None:
        self.uuid = uuid
        self.graphs = 0

    def __call__(self, gm: GraphModule) -> None:
        self.graphs += 1
        for node in gm.graph.nodes:
            if node.target is aten.sin.default:
                node.target = aten.cos.default


class Doubled:
    """Makes new nodes, without metadata, and returns another module."""

    uuid = "1"

    def __call__(self, gm: GraphModule) -> GraphModule:
        graph = torch.fx.Graph()
        results: Any = graph.graph_copy(gm.graph, {})
        first, *rest = results if isinstance(results, list | tuple) else (results,)
        graph.output((graph.call_function(aten.mul.Tensor, (first, 2)), *rest))
        return GraphModule(gm, graph)


def traced(function: Callable[..., Any], *inputs: Any) -> GraphModule:
    return torch.fx.experimental.proxy_tensor.make_fx(function, tracing_mode="fake")(*inputs)


def test_behind_the_partition_each_graph_is_seen(strictly: Compile) -> None:
    change = SineToCosine()
    x = torch.randn(5, requires_grad=True)
    found = strictly(lambda x: x.sin() * 3, passes=[change])(x)
    torch.testing.assert_close(found, x.cos() * 3)
    found.sum().backward()
    assert change.graphs == 2


def test_before_the_partition_the_joint_graph_is_seen(strictly: Compile) -> None:
    change = SineToCosine()
    x = torch.randn(5, requires_grad=True)
    found = strictly(lambda x: x.sin() * 3, joint_passes=[change])(x)
    found.sum().backward()
    assert change.graphs == 1
    torch.testing.assert_close(found, x.cos() * 3)
    # the backward of a sine is a cosine, which the pass leaves alone
    torch.testing.assert_close(x.grad, 3 * x.detach().cos())


def test_inference_sees_both_kinds(strictly: Compile) -> None:
    first, second = SineToCosine(), SineToCosine()
    x = torch.randn(5)
    found = strictly(torch.sin, joint_passes=[first], passes=[second])(x)
    torch.testing.assert_close(found, x.cos())
    assert (first.graphs, second.graphs) == (1, 1)


def test_a_pass_may_return_another_graph_with_new_nodes(strictly: Compile) -> None:
    x = torch.randn(5)
    torch.testing.assert_close(strictly(torch.exp, passes=[Doubled()])(x), 2 * x.exp())


def fails(gm: GraphModule) -> None:
    raise ValueError("no luck")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (fails, "pass fails failed on the inference graph(.|\n)*ValueError: no luck"),
        (lambda gm: 3, "returned a int for the inference graph"),
        (
            lambda gm: traced(lambda x, y: x + y, torch.ones(2), torch.ones(2)),
            "1 inputs and 1 outputs became 2",
        ),
    ],
)
def test_wrong_passes_are_named(wrong: Callable[..., Any], message: str) -> None:
    gm = traced(torch.sin, torch.ones(2))
    with pytest.raises(PassError, match=message):
        run_passes(gm, [wrong], where="inference", complete_values=complete_values)


def test_a_failing_pass_stops_the_compilation(leniently: Compile) -> None:
    with pytest.raises(Exception, match="pass fails failed on the inference graph"):
        leniently(torch.sin, passes=[fails], cache=False)(torch.ones(2))


def test_uuids_are_attributes_or_methods() -> None:
    class Method:
        def uuid(self) -> bytes:
            return b"7"

        def __call__(self, gm: GraphModule) -> None: ...

    assert find_uuid(SineToCosine("x")) == "x"
    assert find_uuid(Method()) == "b'7'"
    assert find_uuid(fails) is None and find_uuid(SineToCosine("")) is None
    assert name_of(fails) == "fails" and name_of(Method()).endswith("Method")


def test_uuids_are_in_the_key() -> None:
    keys = {CompileOptions(passes=(SineToCosine(version),)).key_text() for version in ("1", "2", "1")}
    assert len(keys) == 2
    assert CompileOptions(passes=(SineToCosine(),)).unkeyed_names == ()
    assert CompileOptions(passes=(fails,), joint_passes=(SineToCosine(),)).unkeyed_names == ("fails",)


def reports(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/report.json"))]


def test_with_uuid_graphs_are_cached_and_without_they_are_not(leniently: Compile, tmp_path: Path) -> None:
    def run(change: Callable[[GraphModule], None], name: str) -> bool:
        torch._dynamo.reset()
        leniently(torch.sin, passes=[change], trace=str(tmp_path / name), strict=True)(torch.ones(7))
        (report,) = reports(tmp_path / name)
        return bool(report["cache_hit"])

    with warnings.catch_warnings():
        warnings.simplefilter("error", UncachedPassWarning)
        assert [run(SineToCosine("a"), "1"), run(SineToCosine("a"), "2")] == [False, True]
        assert not run(SineToCosine("b"), "3")
    for name in ("4", "5"):
        with pytest.warns(UncachedPassWarning, match="not cached: .*lambda.* has no uuid"):
            assert not run(lambda gm: None, name)
