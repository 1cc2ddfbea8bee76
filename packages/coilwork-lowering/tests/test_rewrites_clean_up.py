"""What nobody reads goes, unless it does something."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import Argument

from coilwork_lowering.rewrites import clean_up
from coilwork_lowering.rewrites.clean_up import drop_dead_code

aten = torch.ops.aten


def graph_with(*dead: tuple[object, tuple[Argument, ...]]) -> fx.GraphModule:
    """A graph that returns its input's sine, and makes the calls `dead` of it, which nobody reads."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    for target, arguments in dead:
        assert callable(target)
        graph.call_function(target, (x, *arguments))
    graph.output((graph.call_function(aten.sin.default, (x,)),))
    return fx.GraphModule(torch.nn.Module(), graph)


def calls(gm: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def test_chains_without_readers_go() -> None:
    gm = graph_with((aten.exp.default, ()), (aten.add.Tensor, (1,)))
    with gm.graph.inserting_after(next(iter(gm.graph.nodes)).next):
        gm.graph.call_function(aten.neg.default, (next(iter(gm.graph.nodes)).next,))
    assert drop_dead_code(gm) == 3
    assert calls(gm) == ["aten.sin.default"]


def test_what_writes_checks_or_draws_stays() -> None:
    gm = graph_with(
        (aten.add_.Tensor, (1,)),
        (aten._assert_async.msg, ("no",)),
        (aten.bernoulli.default, ()),
        (aten.nonzero.default, ()),
        (aten._local_scalar_dense.default, ()),
        (aten.linalg_inv_ex.default, ()),
    )
    assert drop_dead_code(gm) == 1
    assert "aten.linalg_inv_ex.default" not in calls(gm) and len(calls(gm)) == 6


def test_clean_up_merges_before_and_behind_rewrites() -> None:
    gm = graph_with()
    x, sine = list(gm.graph.nodes)[:2]
    with gm.graph.inserting_before(sine):
        gm.graph.call_function(aten.sin.default, (x,))
    assert clean_up(gm, ()) == ()
    assert calls(gm) == ["aten.sin.default"]
