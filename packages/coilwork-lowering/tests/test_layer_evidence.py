"""Copies of loops are right whichever way loops repeat themselves, or there are none.

Layers of random stacks differ in what they read beside their own weights, and what is read of them. Each
stack is cut into equal layers in several ways: at another place, with fewer or longer ones. Every cut has to
give the loops that all layers give.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from coilwork_ir.loops import Graph
from coilwork_ir.loops.text import format_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.repetition import Entry, Repetition, compare_copies, find_repetition, list_mentions
from coilwork_lowering import repeated_layers
from coilwork_lowering.options import LoweringOptions
from coilwork_lowering.pipeline import LoweringContext, lower_captured
from coilwork_lowering.repeated_layers import lengthen_lowered, shorten_captured

CONTEXT = LoweringContext(name="stack", options=LoweringOptions(repeat=False))
Find = Callable[[Sequence[Entry], Mapping[str, Any], int], Repetition | None]


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack of layers: operations of a layer, and what is peculiar to the stack."""

    body: tuple[str, ...]
    layers: int = 7
    residual: bool = True
    shares: bool = False
    skips: int = 0
    end: str = "plain"
    returns: str = ""
    start: str = ""

    def run(self, x: Tensor, mask: Tensor, shared: Tensor, *weights: Tensor) -> list[Tensor]:
        """Shapes: `x` and `mask` are [2, 4, 8], `shared` is [8, 8], weights alternate [8, 8] and [8]."""
        hidden, results = [x], []
        places = mask
        if self.start == "mask":
            mask = (mask > 0).to(x.dtype) * -1.0
        for layer in range(self.layers):
            weight, bias = weights[2 * layer : 2 * layer + 2]
            if self.shares:
                weight, bias = shared, shared[0]
            if self.start == "mask of each":
                mask = torch.where(places > 0, 0.0, -1.0)
            y = x
            for operation in self.body:
                y = OPERATIONS[operation](y, weight, bias, mask)
            if self.skips and layer >= self.skips:
                y = y + hidden[layer + 1 - self.skips]
            if self.end == "views through layers":
                shared = shared.t()
            x = x + y if self.residual else y
            hidden.append(x)
            results += {"": [], "kept": [x], "of weights": [bias * 2, y.transpose(0, 1)]}[self.returns]
        ends = {
            "last four": lambda: torch.cat(hidden[-4:], -1),
            "early": lambda: x * hidden[1],
            "last weight": lambda: x @ weights[2 * self.layers - 2] + weights[1],
            "views through layers": lambda: x @ shared,
        }
        x = ends[self.end]() if self.end in ends else x
        return [x.exp().sum(-1), *reversed(results)]

    def capture(self) -> fx.GraphModule:
        """The graph of calls."""
        shapes = [(2, 4, 8), (2, 4, 8), (8, 8), *[(8, 8), (8,)] * self.layers]
        gm = make_fx(self.run, tracing_mode="fake")(*[torch.randn(*shape) for shape in shapes])
        gm.graph.eliminate_dead_code()
        return gm


OPERATIONS: Mapping[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "product": lambda y, weight, bias, mask: F.linear(y, weight, bias),
    "norm": lambda y, weight, bias, mask: F.layer_norm(y, (8,), bias),
    "gelu": lambda y, weight, bias, mask: F.gelu(y),
    "scores": lambda y, weight, bias, mask: torch.softmax(y + mask, -1),
    "halves": lambda y, weight, bias, mask: torch.cat([y[..., 4:] * 2, y[..., :4].sin()], -1),
    "flip": lambda y, weight, bias, mask: y.flip(1).cumsum(1),
}


PECULIAR: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "no residual sum": {"residual": False},
    "weights of all": {"shares": True},
    "a layer two before is read": {"skips": 2, "layers": 10},
    "the last four are read": {"end": "last four"},
    "an early one is read": {"end": "early"},
    "a weight is read behind": {"end": "last weight"},
    "a view goes through layers": {"end": "views through layers"},
    "values are kept": {"returns": "kept"},
    "values of weights are kept": {"returns": "of weights"},
    "a mask": {"start": "mask"},
    "a mask for each": {"start": "mask of each"},
}


def draw(name: str) -> Stack:
    """The stack with what is peculiar, of other operations than those of other names."""
    rng = random.Random(name)
    body = ("product", "scores", *rng.choices(tuple(OPERATIONS), k=rng.randint(1, 2)))
    return Stack(body=body, **{"layers": rng.randint(7, 8), **PECULIAR[name]})


# ---- repetitions ----


def cut(left: int, right: int, at: int, times: int) -> Find:
    """Find the repetition without as many copies at both ends, begun `at` a part of a copy, in copies as many
    times as long.
    """

    def find(entries: Sequence[Entry], facts: Mapping[str, Any], least: int) -> Repetition | None:
        found = find_repetition(entries, facts, least)
        if found is None:
            return None
        begin = at * found.length // 4
        copies = (found.copies - left - right - (begin > 0)) // times
        if copies < least:
            return found
        start = found.start + left * found.length + begin
        mentions = list_mentions(entries)
        other = compare_copies(entries, facts, mentions, start, times * found.length, copies)
        return other if other.last - other.first >= least else found

    return find


CUTS = tuple(
    cut(left, right, at, times)
    for left, right, at, times in (
        (0, 0, 0, 1),
        (0, 1, 0, 1),
        (1, 2, 0, 1),
        (0, 0, 2, 1),
        (1, 1, 3, 1),
        (0, 0, 0, 2),
    )
)


def format_renamed(graph: Graph) -> str:
    """The text with buffers numbered as they are met, without origins."""
    names: dict[str, str] = {}
    text = re.sub(
        r"%[A-Za-z_][\w.]*", lambda met: names.setdefault(met[0], f"%{len(names)}"), format_graph(graph)
    )
    return re.sub(r" loc\(.*", "", text)


# no repetition, or loops of the first layer that do not tell what is of one layer
REFUSED = frozenset({"an early one is read", "a view goes through layers", "weights of all"})


@pytest.mark.parametrize("name", PECULIAR)
def test_every_cut_of_a_random_stack_gives_its_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_layers, "_LEAST", 1)
    gm = draw(name).capture()
    shorter = shorten_captured(gm)
    assert shorter is not None or name in REFUSED
    if shorter is None:
        return
    lowered = lower_captured(shorter.gm, CONTEXT)[2]
    whole = format_renamed(lower_captured(gm, CONTEXT)[2].graph)
    for find in CUTS:
        monkeypatch.setattr(repeated_layers, "find_repetition", find)
        longer = lengthen_lowered(lowered, shorter)
        assert longer is not None or name in REFUSED
        if longer is not None:
            verify_graph(longer.graph)
            assert format_renamed(longer.graph) == whole
