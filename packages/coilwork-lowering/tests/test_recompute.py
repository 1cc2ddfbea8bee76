"""What the backward computes again instead of reading it, and what identities would spoil."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from aot_compilers import compiler_of
from torch import Tensor, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_lowering import decompositions, partition
from coilwork_lowering.joint.recompute import recompute_from_memory, recompute_from_sizes
from coilwork_lowering.rewrites.clean_up import drop_identities

aten = torch.ops.aten
WIDTH, CLASSES, ROWS = 16, 4000, 512


class Halves:
    """A backend that runs the partitioned graphs as they are, and keeps them."""

    def __init__(self) -> None:
        self.forward: torch.fx.GraphModule | None = None
        self.joint: torch.fx.GraphModule | None = None
        self.num_fwd_outputs = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def keep(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
            self.forward = graph
            return make_boxed_func(graph.forward)

        def split(joint: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any) -> Any:
            self.num_fwd_outputs = kw["num_fwd_outputs"]
            halves = partition(joint, joint_inputs, **kw)
            self.joint = joint
            return halves

        return aot_module_simplified(
            gm,
            inputs,
            fw_compiler=compiler_of(keep),
            bw_compiler=compiler_of(lambda graph, _inputs: make_boxed_func(graph.forward)),
            decompositions=decompositions(),
            partition_fn=split,
        )

    def saved(self) -> list[torch.fx.Node]:
        assert self.forward is not None
        (returned,) = self.forward.graph.output_node().args
        assert isinstance(returned, tuple | list)
        kept = [n for n in returned[self.num_fwd_outputs :] if isinstance(n, torch.fx.Node)]
        return [n for n in kept if n.op != "placeholder"]


def loss_of_logits(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(x @ weight, labels)


def operands(dtype: torch.dtype, classes: int = CLASSES) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(WIDTH, classes, generator=generator).to(dtype).requires_grad_()
    return x, weight, torch.randint(classes, (ROWS,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_saved_and_no_log_softmax_of_them(dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    halves, given = Halves(), operands(dtype)
    torch.compile(loss_of_logits, backend=halves)(*given).backward()
    large = [n for n in halves.saved() if n.meta["val"].numel() >= ROWS * CLASSES]
    assert [n.target for n in large] == [aten.mm.default]
    gradients = [g.grad for g in given[:2]]
    again = operands(dtype)
    loss_of_logits(*again).backward()
    for found, expected in zip(gradients, (g.grad for g in again[:2]), strict=True):
        assert found is not None and expected is not None
        # a softmax in 16 bits, less its label, rounds before it cancels
        torch.testing.assert_close(found, expected, rtol=1e-4 if dtype is torch.float32 else 0.02, atol=2e-4)


def test_a_small_softmax_is_left_to_the_minimum_cut() -> None:
    torch._dynamo.reset()
    halves = Halves()
    torch.compile(loss_of_logits, backend=halves)(*operands(torch.float32, classes=10)).backward()
    assert halves.joint is not None
    assert not any("recompute" in n.meta for n in halves.joint.graph.nodes)


def test_what_a_product_of_the_backward_reads_is_saved() -> None:
    def attention(x: Tensor, weight: Tensor, other: Tensor) -> Tensor:
        return ((x @ weight).softmax(-1) @ other).sum()

    torch._dynamo.reset()
    halves = Halves()
    x, weight, _ = operands(torch.float32)
    other = torch.randn(CLASSES, 3, requires_grad=True)
    torch.compile(attention, backend=halves)(x, weight, other).backward()
    assert halves.joint is not None
    assert not any("recompute" in n.meta for n in halves.joint.graph.nodes)


def test_the_users_choice_stands() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(4000, 4000)
    y = graph.call_function(aten.sin.default, (x,))
    y.meta.update(val=torch.empty(4000, 4000), recompute=CheckpointPolicy.MUST_SAVE)
    graph.output((y,))
    gm = torch.fx.GraphModule(nn.Module(), graph)
    assert recompute_from_memory(gm, num_fwd_outputs=1) == ()
    assert y.meta["recompute"] is CheckpointPolicy.MUST_SAVE


def test_a_detached_tanh_is_computed_again() -> None:
    def gelu(x: Tensor, weight: Tensor) -> Tensor:
        h = x @ weight
        return (0.5 * h * (1.0 + torch.tanh(0.8 * (h + 0.04 * torch.pow(h, 3.0))))).sum()

    torch._dynamo.reset()
    halves = Halves()
    x, weight, _ = operands(torch.float32)
    torch.compile(gelu, backend=halves)(x, weight).backward()
    assert [n.target for n in halves.saved() if n.meta["val"].numel() >= ROWS * CLASSES] == [aten.mm.default]


def masked(x: Tensor, table: Tensor) -> Tensor:
    """Attention of each position to those before it, over embeddings of positions."""
    positions = torch.arange(x.shape[0], device=x.device)
    h = x + nn.functional.embedding(positions[None], table)[0]
    scores = torch.where(positions[:, None] >= positions, h @ h.T, -torch.inf)
    return (scores.softmax(-1) @ h).sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_sizes_alone_decide_is_not_saved(dynamic: bool) -> None:
    torch._dynamo.reset()
    halves = Halves()
    x, table = torch.randn(12, 8, requires_grad=True), torch.randn(32, 8, requires_grad=True)
    torch.compile(masked, backend=halves, dynamic=dynamic)(x, table).backward()
    assert not [n for n in halves.saved() if not n.meta["val"].dtype.is_floating_point]
    gradients = [x.grad, table.grad]
    x.grad = table.grad = None
    masked(x, table).backward()
    for found, expected in zip(gradients, (x.grad, table.grad), strict=True):
        torch.testing.assert_close(found, expected)


def test_what_costs_more_than_its_memory_is_left_to_the_minimum_cut() -> None:
    def rotated(x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[0], dtype=torch.float32)
        return (x * angles.cos()).sum()

    torch._dynamo.reset()
    halves = Halves()
    torch.compile(rotated, backend=halves)(torch.randn(16, requires_grad=True)).backward()
    assert halves.joint is not None
    marked = {n.target for n in halves.joint.graph.nodes if "recompute" in n.meta}
    assert aten.cos.default not in marked


def sizes_graph(*, copied_to: str, chosen: bool) -> torch.fx.GraphModule:
    """A joint graph whose backward reads positions that its forward copies from the CPU."""
    graph = torch.fx.Graph()
    x, tangent = (graph.placeholder(name) for name in ("x", "tangents_1"))
    positions = graph.call_function(aten.arange.default, (4,))
    copied = graph.call_function(aten._to_copy.default, (positions,), {"device": torch.device(copied_to)})
    forward = graph.call_function(aten.mul.Tensor, (x, copied))
    gradient = graph.call_function(aten.mul.Tensor, (tangent, copied))
    graph.output((forward, gradient))
    with FakeTensorMode(allow_non_fake_inputs=True):
        for node in (x, tangent, forward, gradient):
            node.meta["val"] = torch.empty(4, device=copied_to)
        positions.meta["val"] = torch.arange(4)
        copied.meta["val"] = torch.empty(4, dtype=torch.int64, device=copied_to)
    if chosen:
        positions.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return torch.fx.GraphModule(nn.Module(), graph)


def test_what_is_copied_to_another_device_is_copied_once() -> None:
    here = recompute_from_sizes(sizes_graph(copied_to="cpu", chosen=False), num_fwd_outputs=1)
    assert [node.target for node in here] == [aten._to_copy.default]
    assert recompute_from_sizes(sizes_graph(copied_to="meta", chosen=False), num_fwd_outputs=1) == ()


def test_the_users_choice_of_sizes_stands() -> None:
    assert recompute_from_sizes(sizes_graph(copied_to="cpu", chosen=True), num_fwd_outputs=1) == ()


def test_identities_go_but_for_what_is_returned() -> None:
    def detached(x: Tensor) -> tuple[Tensor, Tensor]:
        inner = aten.detach(aten.detach(x.sin()))
        return inner.cos(), aten.detach(inner)

    gm = make_fx(detached)(torch.ones(3))
    expected = gm(torch.ones(3))
    assert drop_identities(gm.graph) == 2
    assert [n.target for n in gm.graph.nodes if n.op == "call_function"] == [
        aten.sin.default,
        aten.cos.default,
        aten.detach.default,
    ]
    torch.testing.assert_close(gm(torch.ones(3)), expected)


def test_a_residual_sum_of_saved_terms_is_computed_again() -> None:
    """Both terms are saved for products and for a scale, so the wide sum, or the norm of it, need not be."""

    def block(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        stream = nn.functional.gelu(x).bfloat16()
        branch = stream @ weight
        total = stream + scale * branch
        return nn.functional.layer_norm(total.view(2, 1024, 1024), (1024,)).sin().sum()

    torch._dynamo.reset()
    halves = Halves()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 1024, generator=generator, requires_grad=True)
    weight = (torch.randn(1024, 1024, generator=generator) / 32).bfloat16().requires_grad_()
    scale = torch.randn(1024, generator=generator, requires_grad=True)
    torch.compile(block, backend=halves)(x, weight, scale).backward()
    large = [n.meta["val"].dtype for n in halves.saved() if n.meta["val"].numel() >= 2048 * 1024]
    assert large == [torch.bfloat16, torch.bfloat16]
    found = [one.grad for one in (x, weight, scale)]
    for one in (x, weight, scale):
        one.grad = None
    block(x, weight, scale).backward()
    for gradient, expected in zip(found, (x.grad, weight.grad, scale.grad), strict=True):
        assert gradient is not None and expected is not None
        assert float((gradient - expected).norm()) < 0.02 * float(expected.norm())
