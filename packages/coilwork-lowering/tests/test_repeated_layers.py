"""Equal layers are lowered once: the loops are the text that they would be if every layer were lowered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from coilwork_ir.loops.text import format_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import repeated_layers
from coilwork_lowering.options import LoweringOptions
from coilwork_lowering.pipeline import LoweringContext, lower_captured
from coilwork_lowering.repeated_layers import KEPT, lengthen_lowered, shorten_captured

LAYERS = 8
Layer = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def few_layers_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_layers, "_LEAST", 1)


def one(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A layer with a view, a product, a norm and a residual sum."""
    y = F.layer_norm(x, (8,), bias)
    return x + torch.mm(F.gelu(y).view(-1, 8), weight.t()).view(2, 4, 8)


def capture(layer: Callable[[int], Layer], *, saved: bool = False) -> fx.GraphModule:
    """The ATen graph of layers; with `saved`, it returns values of each, those of the last one first."""

    def run(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        kept = []
        for number in range(LAYERS):
            weight, bias = weights[2 * number : 2 * number + 2]
            kept.append((x, weight))
            x = layer(number)(x, weight, bias)
        results = [x.sum(-1)]
        if saved:
            results += [part for y, weight in reversed(kept) for part in (y - 1, weight)]
        return tuple(results)

    shapes = [(8, 8), (8,)] * LAYERS
    return make_fx(run, tracing_mode="fake")(torch.randn(2, 4, 8), *[torch.randn(*shape) for shape in shapes])


def lower_both(gm: fx.GraphModule) -> tuple[str, str]:
    texts = []
    for repeat in (True, False):
        context = LoweringContext(name="layers", options=LoweringOptions(repeat=repeat), rewrites=())
        _, _, lowered = lower_captured(gm, context)
        verify_graph(lowered.graph)
        texts.append(format_graph(lowered.graph))
    return texts[0], texts[1]


@pytest.mark.parametrize("saved", [False, True])
def test_repeated_loops_are_those_of_all_layers(saved: bool) -> None:
    gm = capture(lambda number: one, saved=saved)
    shorter = shorten_captured(gm)
    assert shorter is not None
    assert shorter.omitted_count == shorter.repetition.last - shorter.repetition.first - KEPT > 0
    context = LoweringContext(name="layers", options=LoweringOptions(repeat=False), rewrites=())
    assert lengthen_lowered(lower_captured(shorter.gm, context)[2], shorter) is not None
    repeated, whole = lower_both(gm)
    assert repeated == whole


def scaled(number: int) -> Layer:
    """A layer that begins with what it makes of its own bias; the last one has one more view."""

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        scale = bias * 2.0
        y = x.view(4, 16).view(-1, 8) if number == LAYERS - 1 else x.view(-1, 8)
        return x + (torch.mm(F.gelu(y), weight.t()) * scale).view(2, 4, 8)

    return run


def test_calls_of_no_layer_stay_what_they_are_behind_the_copies() -> None:
    gm = capture(scaled)
    shorter = shorten_captured(gm)
    assert shorter is not None
    last = next(
        node
        for node in reversed(gm.graph.nodes)
        if node.target is torch.ops.aten.mul.Tensor and 2.0 in node.args
    )
    assert shorter.owners[last.name] == -1
    context = LoweringContext(name="layers", options=LoweringOptions(repeat=False), rewrites=())
    assert lengthen_lowered(lower_captured(shorter.gm, context)[2], shorter) is not None
    repeated, whole = lower_both(gm)
    assert repeated == whole


@pytest.mark.parametrize(
    "layer",
    [
        lambda number: lambda x, weight, bias: one(x, weight, bias) * (number + 1.0),
        lambda number: lambda x, weight, bias: one(x, weight, bias) * (3.0 if number % 3 else 2.0),
    ],
    ids=["all differ", "one differs"],
)
def test_layers_that_differ_are_lowered_themselves(layer: Callable[[int], Layer]) -> None:
    gm = capture(layer)
    assert shorten_captured(gm) is None
    repeated, whole = lower_both(gm)
    assert repeated == whole


def test_loops_that_do_not_follow_the_calls_are_not_copied() -> None:
    gm = capture(lambda number: one)
    shorter = shorten_captured(gm)
    assert shorter is not None
    context = LoweringContext(name="layers", options=LoweringOptions(repeat=False), rewrites=())
    lowered = lower_captured(shorter.gm, context)[2]
    names = {f"arg{2 * number + 1}_1": f"arg{2 * (number + 1) + 1}_1" for number in (3,)}
    found = [entry for entry in lowered.graph.inputs if getattr(entry, "name", "") not in names]
    changed = replace(lowered, graph=replace(lowered.graph, inputs=tuple(found)))
    assert lengthen_lowered(changed, shorter) is None


def test_dropout_of_layers_stays_apart() -> None:
    drop = nn.Dropout(0.5)
    repeated, whole = lower_both(capture(lambda number: lambda x, w, b: drop(one(x, w, b))))
    assert repeated == whole
