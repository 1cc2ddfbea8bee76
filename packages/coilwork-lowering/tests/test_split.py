"""The split of joint graphs: what is saved and what is computed again, beside torch's own pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from aot_compilers import compiler_of
from torch import Tensor, nn
from torch._functorch import config
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.functional import dropout, gelu, layer_norm
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from coilwork_lowering import decompositions
from coilwork_lowering.joint import split
from coilwork_lowering.joint.split import split_joint
from coilwork_lowering.torch_compat.graphs import copy_graph

aten = torch.ops.aten
Halves = tuple[torch.fx.GraphModule, torch.fx.GraphModule]


class Beside:
    """A backend that splits each joint graph twice, and runs our halves: `ours` and `torchs`."""

    def __init__(self) -> None:
        self.ours: Halves | None = None
        self.torchs: Halves | None = None

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(half: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            return make_boxed_func(half.forward)

        compiled: Callable[..., Any] = aot_module_simplified(
            gm,
            inputs,
            fw_compiler=compiler_of(run),
            bw_compiler=compiler_of(run),
            decompositions=decompositions(),
            partition_fn=self._split,
        )
        return compiled

    def _split(self, joint: torch.fx.GraphModule, inputs: Sequence[Any], **facts: Any) -> Halves:
        copy = torch.fx.GraphModule(joint, copy_graph(joint.graph))
        self.ours = split_joint(joint, inputs, **facts)
        with config.patch(cse=False):
            self.torchs = min_cut_rematerialization_partition(copy, inputs, **facts)
        return self.ours


def describe(half: torch.fx.GraphModule) -> list[str]:
    return [f"{node.op} {node.name} = {node.target} {node.args} {node.kwargs}" for node in half.graph.nodes]


def train(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    given = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    result = function(*given)
    result.sum().backward()
    return [result.detach(), *(x.grad for x in given if x.grad is not None)]


@pytest.fixture
def no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's pass must not be asked."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("torch's partitioner was asked")

    monkeypatch.setattr(split, "partition_by_min_cut", refuse)
    torch._dynamo.reset()


def block(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = gelu(layer_norm(x, x.shape[-1:]) @ w, approximate="tanh") @ v
    return x + torch.softmax(y, -1)


def drops(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return dropout(torch.relu(x @ w), 0.3) @ v


def checkpointed(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    inner = checkpoint(block, x, w, v, use_reentrant=False)
    return checkpoint(block, inner, w, v, use_reentrant=False).sin()


def selective(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    def decide(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = op in (aten.mm.default, aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, decide)
    return checkpoint(block, x, w, v, use_reentrant=False, context_fn=contexts).sin()


def chain(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    for _ in range(55):
        x = (x * 1.01).sin()
    return x @ w @ v


def pieces(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    values, places = x.exp().max(-1, keepdim=True)
    first, second = (x @ w).split(16, -1)
    mean = torch.cat([first.tanh(), second * values], -1).var(-1, keepdim=True)
    return mean * (second.cumsum(-1) + places + x.t()[:, :1].t().expand(8, 16)) @ v[:16]


DRAW = torch.Generator().manual_seed(0)
X, W, V = (torch.randn(*shape, generator=DRAW) for shape in ((8, 16), (16, 32), (32, 16)))


@pytest.mark.parametrize(
    "function", [block, drops, checkpointed, selective, chain, pieces], ids=lambda f: f.__name__
)
def test_halves_are_those_of_torch(function: Callable[..., Tensor], no_help: None) -> None:
    beside = Beside()
    found = train(torch.compile(function, backend=beside), X, W, V)
    assert beside.ours is not None and beside.torchs is not None
    for ours, torchs in zip(beside.ours, beside.torchs, strict=True):
        assert describe(ours) == describe(torchs)
        ours.graph.lint()
    for one, other in zip(found, train(function, X, W, V), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_open_sizes_are_handed_over(no_help: None) -> None:
    beside = Beside()
    compiled = torch.compile(block, backend=beside, dynamic=True)
    for rows in (8, 11):
        x = torch.randn(rows, 16)
        for one, other in zip(train(compiled, x, W, V), train(block, x, W, V), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert beside.ours is not None and beside.torchs is not None
    assert list(map(describe, beside.ours)) == list(map(describe, beside.torchs))
    assert any(isinstance(node.meta["val"], torch.SymInt) for node in beside.ours[1].graph.nodes)


def test_inputs_that_the_forward_overwrites(no_help: None) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    beside = Beside()
    compiled = torch.compile(model, backend=beside)
    compiled(torch.randn(2, 3, 8, 8)).sum().backward()
    assert beside.ours is not None and beside.torchs is not None
    assert list(map(describe, beside.ours)) == list(map(describe, beside.torchs))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d) and norm.num_batches_tracked == 1


class Cell(nn.Module):
    """A recurrence over steps, unrolled."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: `x` and the result are [steps, rows, 16]."""
        state = torch.zeros_like(x[0])
        states = []
        for step in x:
            state = self.cell(step, state)
            states.append(state)
        return torch.stack(states)


@pytest.mark.parametrize("model", [nn.TransformerEncoderLayer(16, 2, 32), Cell()], ids=["encoder", "cell"])
def test_models_save_no_more_bytes(model: nn.Module, no_help: None) -> None:
    beside = Beside()
    torch.compile(model, backend=beside)(torch.randn(6, 2, 16)).sum().backward()
    assert beside.ours is not None and beside.torchs is not None
    ours, torchs = (
        sum(n.meta["val"].nbytes for n in backward.graph.nodes if n.op == "placeholder")
        for _, backward in (beside.ours, beside.torchs)
    )
    assert 0 < ours <= torchs
    assert len(beside.ours[1].graph.nodes) <= len(beside.torchs[1].graph.nodes)


def test_halves_write_no_python_until_they_are_called() -> None:
    beside = Beside()
    torch._dynamo.reset()
    torch.compile(block, backend=beside)(X.clone().requires_grad_(), W, V)
    assert beside.ours is not None
    assert "_code" not in vars(beside.ours[1]) and "mm" in beside.ours[1].code


def test_a_setting_of_torchs_partitioner_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = split.partition_by_min_cut

    def note(*given: Any, **rest: Any) -> Any:
        asked.append("torch")
        return real(*given, **rest)

    monkeypatch.setattr(split, "partition_by_min_cut", note)
    for name, value in (("activation_memory_budget", 0.5), ("aggressive_recomputation", True)):
        torch._dynamo.reset()
        with config.patch({name: value}):
            found = train(torch.compile(block, backend=Beside()), X, W, V)
        for one, other in zip(found, train(block, X, W, V), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert asked == ["torch", "torch"]
