"""What the wrapper `fx` makes: graphs that do what the native executor does, to the bit, and that run by
themselves in every way in which FX graphs do.
"""

from __future__ import annotations

import copy
import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import coilwork
from coilwork.errors import OptionError
from coilwork_wrapper import FxEmitter
from integration_tests.interpreting import answers_of


def train() -> list[Tensor]:
    layers = nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)
    model, x = nn.Sequential(*layers), torch.randn(8, 16, requires_grad=True)
    result = coilwork.compile(model)(x)
    result.square().sum().backward()
    return [result.detach(), *(p.grad for p in (*model.parameters(), x) if p.grad is not None)]


def several_sizes() -> list[Tensor]:
    compiled = coilwork.compile(lambda x: (torch.softmax(x, -1) @ x.T).cumsum(0))
    found = []
    for rows in (5, 9):
        x = torch.randn(rows, 7)
        torch._dynamo.mark_dynamic(x, 0)
        found.append(compiled(x))
    return found


def update(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2).add_(y[:, None])
    y[1:].copy_(x[:-1, 0].exp())
    return F.dropout(x, 0.5, True).sum(-1)


def updates() -> list[Tensor]:
    x, y = torch.randn(6, 3), torch.randn(6)
    return [coilwork.compile(update)(x, y), x, y]


def select(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    ordered, order = x.sort(-1)
    return ordered, order, x.nonzero().sum(1), x[rows], x.half().t() + 1, torch.zeros_like(x)[rows] + x.sum()


def selections() -> list[Tensor]:
    return list(coilwork.compile(select)(torch.randn(5, 11), torch.randint(0, 5, (4,))))


def branch(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    y = torch.cond(x.sum() > 0, lambda x: x.sin() * x.shape[0], lambda x: x.cos() + 1, (x,))
    counted: Any = torch.while_loop(lambda k, z: k > 0, lambda k, z: (k - 1, z * 2 + 1), (n, y))
    return counted[1], y


def branches() -> list[Tensor]:
    compiled = coilwork.compile(branch)
    return [found for sign in (1, -1) for found in compiled(torch.full((4, 3), float(sign)), torch.tensor(3))]


PROGRAMS: tuple[Callable[[], list[Tensor]], ...] = (train, several_sizes, updates, selections, branches)


@dataclass(kw_only=True)
class Recorded:
    """A graph and the inputs of its first call."""

    graph: torch.fx.GraphModule
    inputs: list[Any] = field(default_factory=list)

    def call(self, *inputs: Any) -> Sequence[Any]:
        if not self.inputs:
            self.inputs = copies(inputs)
        return self.graph(*inputs)


def make_recorder() -> tuple[type[FxEmitter], list[Recorded]]:
    """An emitter that overrides its one method, and what it has seen."""
    seen: list[Recorded] = []

    class Recorder(FxEmitter):
        def compile_graph(self, graph: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
            seen.append(Recorded(graph=graph))
            return seen[-1].call

    return Recorder, seen


def run(program: Callable[[], list[Tensor]], **options: Any) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    settings = {"strict": True, **options}
    with coilwork.options(**settings), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return program()


def copies(values: Sequence[Any]) -> list[Any]:
    return [value.detach().clone() if isinstance(value, Tensor) else value for value in values]


def check_equal(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Equal to the bit, strides included."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
            assert one.stride() == other.stride()
        else:
            assert one == other


def retrace(recorded: Recorded) -> Callable[..., Any]:
    return make_fx(recorded.graph, tracing_mode="symbolic")(*copies(recorded.inputs))


def drop_dead_code(recorded: Recorded) -> Callable[..., Any]:
    graph = copy.deepcopy(recorded.graph)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


WAYS: tuple[Callable[[Recorded], Callable[..., Any]], ...] = (
    lambda recorded: torch.fx.Interpreter(recorded.graph).run,
    lambda recorded: torch.fx.Transformer(recorded.graph).transform(),
    drop_dead_code,
    retrace,
)
"""Makers of functions that do what a graph does."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_graphs_compute_what_the_native_executor_does(program: Callable[[], list[Tensor]]) -> None:
    wanted = run(program, wrapper="native")
    emitter, seen = make_recorder()
    check_equal(run(program, fx_emitter=emitter), wanted)
    assert len(seen) == (2 if program is train else 1)
    for recorded in seen:
        targets = {node.target for node in recorded.graph.graph.nodes if node.op == "call_function"}
        assert all(is_known(target) for target in targets), targets
        assert "empty_strided" in recorded.graph.print_readable(print_output=False)
        inputs = copies(recorded.inputs)
        torch.manual_seed(1)
        results = recorded.graph(*inputs)
        # what depends on data is traced in real tensors alone, and branches are not traced
        ways = WAYS if program not in (selections, branches) else WAYS[:3]
        for make in ways:
            again = copies(recorded.inputs)
            call = make(recorded)
            torch.manual_seed(1)
            check_equal((*call(*again), *again), (*results, *inputs))


def is_known(target: Any) -> bool:
    """True for operators of torch's, launches, and arithmetic; our own functions check and branch."""
    if isinstance(target, torch._ops.OpOverload):
        return True
    module, name = target.__module__, target.__name__
    ours = ("check_", "ensure_", "run_branch", "run_loop")
    return target in (torch.empty_strided, torch.as_strided, torch.sym_min, torch.sym_max) or (
        module == operator.getitem.__module__ or (module.startswith("coilwork") and name.startswith(ours))
    )


def test_an_emitter_goes_with_the_wrapper_fx_alone() -> None:
    emitter, _ = make_recorder()
    assert coilwork.backend.resolve(mode=None, options={"fx_emitter": emitter}).wrapper == "fx"
    with pytest.raises(OptionError, match=r"wrapper='native' cannot go with fx_emitter="):
        coilwork.compile(abs, wrapper="native", fx_emitter=emitter)
    with pytest.raises(OptionError, match=r"subclass of coilwork_wrapper\.FxEmitter"):
        coilwork.compile(abs, fx_emitter=abs)


def test_a_stored_graph_is_emitted_again_without_being_compiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    emitter, seen = make_recorder()
    settings: dict[str, Any] = {"fx_emitter": emitter, "cache": True, "cache_dir": str(tmp_path)}
    wanted = run(train, **settings)
    with caplog.at_level(logging.INFO, logger="coilwork"):
        check_equal(run(train, **settings), wanted)
    assert sum("from the cache, fx" in message for message in caplog.messages) == 2
    codes = [recorded.graph.code for recorded in seen]
    assert len(codes) == 4 and sorted(codes[:2]) == sorted(codes[2:])


@pytest.mark.interpreter
def test_triton_kernels_are_launched_by_torchs_operator(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of("integration_tests.fx_triton_graphs", tmp_path)
    assert found and set(found.values()) == {""}
