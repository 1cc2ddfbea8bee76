"""Small models through `torch.compile`, AOTAutograd, lowering and the evaluator: forward, gradients,
mutation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from module_formats import in_format
from torch import Tensor, nn
from torch.nn import functional as F

from coilwork_ir.buffers import Ref
from coilwork_ir.loops import Extern, Graph, Pointwise
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering.graph_boundary import is_only_read


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def train_both(model: nn.Module, loss: Callable[[nn.Module], Tensor], *, tolerance: float = 1e-4) -> Recorder:
    """One step in eager and compiled: loss, gradients and buffers agree."""
    other = copy.deepcopy(model)
    expected = loss(model)
    expected.backward()
    recorder = Recorder()
    compiled: Any = torch.compile(other, backend=recorder)
    found = loss(compiled)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for (name, a), b in zip(other.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(
            a.grad, b.grad, rtol=tolerance, atol=tolerance, msg=partial("{}: {}".format, name)
        )
    for c, d in zip(other.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(c, d, rtol=tolerance, atol=tolerance)
    return recorder


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2)
        self.group = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.conv1(x))), 2)
        h = F.silu(self.group(self.conv2(h)))
        result: Tensor = self.head(F.adaptive_avg_pool2d(h, 1).flatten(1))
        return result


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_and_batch_statistics(layout: torch.memory_format) -> None:
    x = torch.randn(4, 3, 12, 12).to(memory_format=layout)
    y = torch.randint(0, 5, (4,))
    recorder = train_both(in_format(ConvNet(), layout), lambda m: F.cross_entropy(m(x), y))
    forward = recorder.lowered[0].graph
    overwrites = [n for n in forward.nodes if isinstance(n, Pointwise) and n.into is not None]
    assert len(overwrites) == 3


class Decoder(nn.Module):
    """RMS norm, rotary positions, grouped heads, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.q, self.kv = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.weight = nn.Parameter(torch.ones(32))

    def norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

    def rotate(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[-2])[:, None] * torch.arange(4)[None] * 0.1
        angle = torch.cat([positions, positions], -1)
        half = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return x * angle.cos() + half * angle.sin()

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids)
        n, length, _ = h.shape
        z = self.norm(h)
        q = self.q(z).view(n, length, 4, 8).transpose(1, 2)
        k, v = self.kv(z).view(n, length, 2, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        k, v = (t.repeat_interleave(2, 1) for t in (k, v))
        att = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        h = h + att.transpose(1, 2).reshape(n, length, 32)
        z = self.norm(h)
        h = h + self.down(F.silu(self.gate(z)) * self.up(z))
        return h @ self.embed.weight.t()


def test_a_decoder_trains_in_two_graphs() -> None:
    ids = torch.randint(0, 50, (2, 10))
    recorder = train_both(Decoder(), lambda m: F.cross_entropy(m(ids).flatten(0, 1), ids.flatten()))
    assert len(recorder.lowered) == 2


def test_one_graph_serves_all_marked_sizes() -> None:
    model = Decoder().eval()
    recorder = Recorder()
    compiled = torch.compile(model, backend=recorder)
    with torch.no_grad():
        for batch, length in ((3, 9), (5, 13), (2, 31)):
            ids = torch.randint(0, 50, (batch, length))
            torch._dynamo.mark_dynamic(ids, 0)
            torch._dynamo.mark_dynamic(ids, 1)
            torch.testing.assert_close(compiled(ids), model(ids), rtol=1e-4, atol=1e-4)
    assert len(recorder.lowered) == 1
    assert len(recorder.lowered[0].symbols) == 2


def test_a_decoder_of_open_length_trains_in_two_graphs() -> None:
    model, ids = Decoder(), torch.randint(0, 50, (3, 7))
    torch._dynamo.mark_dynamic(ids, 1)
    recorder = train_both(model, lambda m: F.cross_entropy(m(ids).flatten(0, 1), ids.flatten()))
    assert len(recorder.lowered) == 2


def test_a_compiled_step_of_adamw_is_eagers() -> None:
    first = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5))]
    second = [nn.Parameter(p.detach().clone()) for p in first]
    recorder = Recorder()
    for parameters, compiled in ((first, False), (second, True)):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
        step = torch.compile(optimizer.step, backend=recorder) if compiled else optimizer.step
        for _ in range(3):
            for p in parameters:
                p.grad = torch.randn_like(p)
            step()
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b)
    externs = {n.target for made in recorder.lowered for n in made.graph.nodes if isinstance(n, Extern)}
    assert externs == set()


def run_compiled(function: Callable[..., Any], *inputs: Any) -> tuple[Any, Graph]:
    recorder = Recorder()
    with torch.no_grad():
        found = torch.compile(function, backend=recorder)(*inputs)
    return found, recorder.lowered[-1].graph


def test_input_mutation_takes_over_the_memory() -> None:
    def update(x: Tensor, y: Tensor) -> Tensor:
        before = x.t() * 2
        x.mul_(2).add_(y)
        return before + x.t()

    x, y = torch.randn(3, 4), torch.randn(4)
    other = x.clone()
    found, graph = run_compiled(update, x, y)
    torch.testing.assert_close(found, update(other, y))
    torch.testing.assert_close(x, other)
    assert [n.into for n in graph.nodes if isinstance(n, Pointwise) and n.into] == ["arg0_1"]


def test_mutation_through_a_view_of_an_input() -> None:
    def update(x: Tensor) -> Tensor:
        x[:, 1:3] = 7.0
        return x.sum()

    x = torch.randn(3, 4)
    other = x.clone()
    found, _ = run_compiled(update, x)
    torch.testing.assert_close(found, update(other))
    torch.testing.assert_close(x, other)


def test_numbers_from_tensors() -> None:
    def function(x: Tensor) -> Tensor:
        return x * x.sum().item() + x.shape[0]

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        x = torch.randn(4)
        found, _ = run_compiled(function, x)
        torch.testing.assert_close(found, function(x))


def test_sizes_from_tensors() -> None:
    def function(x: Tensor, n: Tensor) -> Tensor:
        size: Any = n.item()
        torch._check(size >= 2)
        return torch.zeros(size, 3) + x[0] + size

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        x, n = torch.randn(4, 3), torch.tensor(5)
        found, graph = run_compiled(function, x, n)
        torch.testing.assert_close(found, function(x, n))
        assert [n.target for n in graph.nodes if isinstance(n, Extern)] == [
            "aten._local_scalar_dense.default"
        ]


def test_sizes_of_parts_of_what_has_a_size_from_data_are_asserted() -> None:
    def function(x: Tensor) -> Tensor:
        # torch 2.11 has a symbol for the size of the part
        return x[x > 0][-1:]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        x = torch.tensor([1.0, -1.0, 2.0, 3.0])
        found, graph = run_compiled(function, x)
    torch.testing.assert_close(found, function(x))
    verify_graph(graph)


def test_a_view_of_a_size_from_data_shares_memory() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        found = x[x > 0]
        return found, found.unflatten(0, (3, -1))

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        (found, view), _ = run_compiled(function, torch.ones(6))
    assert view.shape == (3, 2) and view.stride() == (2, 1)
    assert view.data_ptr() == found.data_ptr()


@pytest.mark.parametrize("across", [False, True])
def test_a_view_of_a_size_from_data_that_is_written_through_shares_memory(across: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        found = x[x > 0] + 1
        view = found.unflatten(0, (3, -1))
        view = view.t() if across else view
        view.mul_(2)
        return found, view

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        # of the last, the second size is 0 or 1
        for x in (torch.arange(-2.0, 7.0), torch.full((6,), -1.0), torch.ones(3)):
            torch._dynamo.reset()
            (found, view), _ = run_compiled(function, x)
            torch.testing.assert_close((found, view), function(x))
            assert view.data_ptr() == found.data_ptr()


@pytest.mark.parametrize("weights", [False, True])
def test_a_result_that_is_left_out_is_none(weights: bool) -> None:
    def function(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        attend = torch._native_multi_head_attention
        return attend(x, x, x, 8, 2, w, b, w[:8], b[:8], need_weights=weights)

    operands = torch.randn(2, 5, 8), torch.randn(24, 8), torch.randn(24)
    (found, shares), _ = run_compiled(function, *operands)
    expected, theirs = function(*operands)
    torch.testing.assert_close(found, expected)
    assert shares is None if not weights else torch.allclose(shares, theirs)


def test_data_dependent_shapes() -> None:
    def function(x: Tensor) -> Tensor:
        return x.nonzero() * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        x = torch.tensor([0.0, 1.0, 2.0, 0.0])
        found, graph = run_compiled(function, x)
        torch.testing.assert_close(found, function(x))
        (call,) = [n for n in graph.nodes if isinstance(n, Extern)]
        assert len(call.binds) == 1


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("part", [slice(0, 1), slice(1, None), slice(-3, -1), slice(None, None, 2)])
def test_parts_of_data_dependent_shapes(part: slice, count: int) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        chosen = x[x > 0]
        return chosen[part] + 1, chosen[part].flip(0).sort()[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        x = torch.arange(5.0) - (4.0 - count)
        found, _ = run_compiled(function, x)
        torch.testing.assert_close(found, function(x))


POSITIONS = torch.tensor([4, 1, 4, 0])


@pytest.mark.parametrize(
    ("positions", "weights"),
    [
        (POSITIONS.to(torch.int16), None),
        (POSITIONS.to(torch.uint8), None),
        (POSITIONS, torch.tensor([1, 2, 3, 4])),
        (POSITIONS.to(torch.int32), torch.tensor([1.5, 2.0, 3.0, 4.0])),
        (POSITIONS, torch.tensor([1.5, 2.0, 3.0, 4.0]).half()),
    ],
)
def test_counts_and_their_types(positions: Tensor, weights: Tensor | None) -> None:
    def function(positions: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        counts = torch.bincount(positions, weights, minlength=3)
        return counts, counts / 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        found, _ = run_compiled(function, positions, weights)
        torch.testing.assert_close(found, function(positions, weights))


def test_constants_travel_beside_the_graph() -> None:
    table = torch.tensor([1.0, 2.0, 4.0])

    def function(x: Tensor) -> Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0]) + table

    x = torch.randn(3)
    found, _ = run_compiled(function, x)
    torch.testing.assert_close(found, function(x))


def test_numbers_written_as_tensors_are_constants_of_the_code() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(x > torch.tensor(0.5), x, torch.tensor(float("-inf"))) * torch.tensor(
            3, dtype=torch.int64
        )

    x = torch.randn(7)
    found, graph = run_compiled(function, x)
    torch.testing.assert_close(found, function(x))
    assert graph.constants == ()


def test_tensors_that_are_written_or_viewed_are_not_only_read() -> None:
    graph = torch.fx.Graph()
    x, written, viewed = (graph.placeholder(name) for name in ("x", "written", "viewed"))
    graph.call_function(torch.ops.aten.add_.Tensor, (written, 1.0))
    view = graph.call_function(torch.ops.aten.view.default, (viewed, [1]))
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (x, view)),))
    assert is_only_read(x)
    assert not is_only_read(written)
    assert not is_only_read(viewed)


def test_random_calls_are_marked() -> None:
    _, graph = run_compiled(lambda x: F.dropout(x, 0.5) + torch.rand(4), torch.randn(4))
    calls = [n for n in graph.nodes if isinstance(n, Extern)]
    assert calls and all(n.random for n in calls)


def test_a_returned_input_is_itself() -> None:
    found, graph = run_compiled(lambda x: (x.view(2, 2), x + 1), torch.randn(4))
    assert found[0].shape == (2, 2)
    assert all(isinstance(o, Ref) for o in graph.outputs)


def test_branches_and_loops() -> None:
    def function(x: Tensor) -> Tensor:
        y: Tensor = torch.cond(x.sum() > 0, lambda a: a.sin() + 1, lambda a: a.t().cos().t(), (x,))
        _, z = torch.while_loop(lambda k, a: k < 3, lambda k, a: (k + 1, a * 2), (torch.tensor(0), y))
        return z.t()

    for sign in (1, -1):
        x = sign * torch.rand(3, 4)
        found, graph = run_compiled(function, x)
        torch.testing.assert_close(found, function(x))
        assert {"Cond", "Loop"} <= {type(n).__name__ for n in graph.nodes}
