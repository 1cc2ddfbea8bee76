"""How calls of captured graphs are read, and which of them may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from coilwork_lowering.rewrites import CapturedVocabulary

VOCABULARY = CapturedVocabulary()


def last_call(function: Callable[..., Any]) -> fx.Node:
    graph = fx.symbolic_trace(function).graph
    return [node for node in graph.nodes if node.op in ("call_function", "call_method")][-1]


READ: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "@": (lambda x, y: x @ y, "matmul", {}),
    "bmm": (lambda x, y: torch.bmm(x, mat2=y), "matmul", {}),
    "method": (lambda x, y: x.matmul(y), "matmul", {}),
    "softmax": (lambda x, y: F.softmax(x, -1), "softmax", {"dim": -1, "dtype": None}),
    "softmax in words": (
        lambda x, y: torch.softmax(input=x, dim=1, dtype=torch.float32),
        "softmax",
        {"dim": 1, "dtype": torch.float32},
    ),
    "dropout": (
        lambda x, y: F.dropout(x, 0.5, False),
        "dropout",
        {"p": 0.5, "training": False, "inplace": False},
    ),
    "float": (lambda x, y: x.float(), "to", {"dtype": torch.float32}),
    "to": (lambda x, y: x.to(torch.float16), "to", {"dtype": torch.float16}),
    "sum": (lambda x, y: torch.add(x, y, alpha=2), "add", {"alpha": 2}),
    "quotient": (lambda x, y: x / 8, "div", {"other": 8, "rounding_mode": None}),
}


@pytest.mark.parametrize("case", READ)
def test_calls_of_any_spelling_are_read_alike(case: str) -> None:
    function, op, wanted = READ[case]
    node = last_call(function)
    read = VOCABULARY.read(node)
    assert read is not None and read.op == op == VOCABULARY.op(node)
    assert wanted.items() <= read.arguments.items()
    assert isinstance(read.arguments["self"], fx.Node)
    assert VOCABULARY.key(node) in VOCABULARY.keys(op)


@pytest.mark.parametrize(
    "function",
    [lambda x, y: x.sin(), lambda x, y: x.to(torch.float16, copy=True)],
)
def test_what_is_spelled_otherwise_is_not_read(function: Callable[..., Any]) -> None:
    assert VOCABULARY.read(last_call(function)) is None


WRITES: dict[str, Callable[..., Any]] = {
    "method": lambda x, y: x.add_(y),
    "function": lambda x, y: torch.relu_(x),
    "operator": lambda x, y: torch.ops.aten.add_.Tensor(x, y),
    "in place": lambda x, y: F.relu(x, inplace=True),
    "in place by position": lambda x, y: F.dropout(x, 0.5, True, True),
    "out": lambda x, y: torch.add(x, y, out=x),
    "statistics": lambda x, y: F.batch_norm(x, y, y, training=True),
    "renormed": lambda x, y: F.embedding(x, y, max_norm=1.0),
}
READS: dict[str, Callable[..., Any]] = {
    "method": lambda x, y: x.add(y),
    "function": lambda x, y: torch.relu(x),
    "operator": lambda x, y: torch.ops.aten.add.Tensor(x, y),
    "not in place": lambda x, y: F.relu(x, inplace=False),
    "inverse": lambda x, y: ~x,
    "item": lambda x, y: x[0],
    "statistics": lambda x, y: F.batch_norm(x, y, y, training=False),
    "embedding": lambda x, y: F.embedding(x, y),
}


def traced_call(function: Callable[..., Any]) -> fx.Node:
    """Some of these functions would run through Python while they are traced: their calls are written down
    instead.
    """
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    tracer = fx.proxy.GraphAppendingTracer(graph)
    with graph.inserting_after(y):
        function(fx.Proxy(x, tracer), fx.Proxy(y, tracer))
    return [node for node in graph.nodes if node.op in ("call_function", "call_method")][-1]


@pytest.mark.parametrize("case", WRITES)
def test_calls_that_write_are_told(case: str) -> None:
    assert VOCABULARY.writes(traced_call(WRITES[case]))


@pytest.mark.parametrize("case", READS)
def test_does_not_write(case: str) -> None:
    assert not VOCABULARY.writes(traced_call(READS[case]))


def unknown(x: Tensor) -> Tensor:
    return x


def test_what_is_not_known_may_write() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for target in (unknown, torch._C._set_grad_enabled, torch.nn.functional.instance_norm):
        assert VOCABULARY.writes(graph.call_function(target, (x,)))
    with pytest.raises(KeyError):
        VOCABULARY.keys("sinh")
