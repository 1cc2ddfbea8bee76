"""Padded rows of products: what gets them, what does not, and that values stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import as_int
from coilwork_ir.loops import Extern, Graph
from coilwork_lowering import LayoutOptions, LoweringOptions, PaddingDecision, lower, pad_products
from coilwork_lowering.layout.products import find_products, is_unaligned

aten = torch.ops.aten
ON_CPU = LayoutOptions(layout="captured", devices=("cpu",))
ROWS, WIDTH, CLASSES, PADDED = 1024, 64, 5001, 5008
BF16 = torch.bfloat16


def decided(function: Callable[..., Any], *inputs: Any, mode: str = "fake") -> tuple[Graph, PaddingDecision]:
    gm = make_fx(function, tracing_mode=mode)(*inputs)
    captured = {n: n.meta["val"] for n in gm.graph.nodes if n.op == "call_function"}
    made, decision = pad_products(gm, ON_CPU)
    assert (made is gm) == (decision.padded == ())
    assert all(n.meta["val"] is value for n, value in captured.items())
    return lower(made, name="graph").graph, decision


def product_operands(graph: Graph) -> list[tuple[int | None, ...]]:
    """Leading strides of every matrix of every product, results last."""
    buffers: dict[str, Buffer] = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    found = []
    for node in graph.nodes:
        outputs = getattr(node, "outputs", None) or (getattr(node, "output", None),)
        buffers.update((b.name, b) for b in outputs if isinstance(b, Buffer))
        if isinstance(node, Extern) and node.family == "contraction":
            used = [buffers[a.name] for a in node.args if isinstance(a, Ref)]
            used += [b for b in node.outputs if isinstance(b, Buffer)]
            found.append(tuple(as_int(max(b.strides, key=lambda s: as_int(s) or 0)) for b in used))
    return found


def logits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=generator).to(BF16)
    return x, torch.randn(CLASSES, WIDTH, generator=generator).to(BF16)


def scored(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight.t()).view(8, ROWS // 8, CLASSES)[:, :-1].float().amax(-1)


def test_a_result_that_stays_inside_is_padded() -> None:
    graph, decision = decided(scored, *logits())
    assert decision.padded == ("mm",)
    assert (decision.products, decision.aligned) == (1, 1)
    assert decision.padding_bytes == ROWS * (PADDED - CLASSES) * 2
    assert decision.saved_us > 5
    assert decision.reasons[0].startswith("mm with padded rows: unaligned kernels lose ")
    assert product_operands(graph) == [(WIDTH, WIDTH, PADDED)]


def test_values_of_inference_stay() -> None:
    torch._dynamo.reset()
    recorder = Recorder(layout=ON_CPU)
    with torch.no_grad():
        found = torch.compile(scored, backend=recorder)(*logits())
    assert recorder.decisions[0].padded == ("mm",)
    assert torch.equal(found, scored(*logits()))


def test_what_the_caller_gets_stays_dense() -> None:
    graph, decision = decided(lambda x, w: (x @ w.t()).view(2, -1, CLASSES), *logits())
    assert decision.padded == ()
    assert decision.reasons == ("mm as captured: mm: returned to the caller",)
    assert product_operands(graph) == [(WIDTH, WIDTH, CLASSES)]


def test_inputs_stay() -> None:
    x, w = torch.randn(ROWS, CLASSES, dtype=BF16), torch.randn(CLASSES, WIDTH, dtype=BF16)
    _, decision = decided(lambda x, w: (x @ w).relu(), x, w)
    assert decision.reasons == ("mm as captured: x_1: an input",)


def test_generated_operands_are_padded() -> None:
    x, w = torch.randn(ROWS, CLASSES, dtype=BF16), torch.randn(CLASSES, 2 * WIDTH, dtype=BF16)
    graph, decision = decided(lambda x, w: (x.relu() @ w).sin(), x, w)
    assert decision.padded == ("relu",)
    assert product_operands(graph) == [(PADDED, 2 * WIDTH, 2 * WIDTH)]
    # the same matrix, transposed by a view
    graph, decision = decided(lambda x, w: (w.t() @ x.relu().t()).sin(), x, w)
    assert decision.padded == ("relu",)


def test_batches_and_biases() -> None:
    x, w = torch.randn(16, 256, 64, dtype=BF16), torch.randn(16, 64, 1501, dtype=BF16)
    _, decision = decided(lambda x, w: (x @ w.sin()).amax(-1), x, w)
    assert set(decision.padded) == {"bmm", "sin"}
    x, w = torch.randn(ROWS, 1024, dtype=BF16), torch.randn(CLASSES, 1024, dtype=BF16)
    bias = torch.randn(CLASSES, dtype=BF16)
    _, decision = decided(lambda b, x, w: torch.addmm(b, x, w.t()).amax(-1), bias, x, w)
    assert decision.padded == ("addmm",)
    # over a short inner dimension, copying the bias into the result costs as much as alignment saves
    _, decision = decided(lambda b, x, w: torch.addmm(b, x, w.t()).amax(-1), bias, *logits())
    assert decision.padded == ()


@pytest.mark.parametrize(
    ("function", "obstacle"),
    [
        (lambda y: y.view(-1).amax(0), "a view needs dense rows"),
        (
            lambda y: aten.as_strided(y, (3, 3), (CLASSES, 1)).amax(-1),
            "read by as_strided, which depends on strides",
        ),
        (lambda y: y.relu_().amax(-1), "written to"),
        (lambda y: y.sort(-1)[0].amax(-1), "read by sort, which depends on strides"),
    ],
)
def test_readers_that_need_dense_rows(function: Callable[[Tensor], Tensor], obstacle: str) -> None:
    _, decision = decided(lambda x, w: function(x @ w.t()), *logits())
    assert decision.padded == ()
    assert decision.reasons == (f"mm as captured: mm: {obstacle}",)


def test_a_view_that_starts_between_vectors_is_not_helped() -> None:
    x, w = torch.randn(ROWS, CLASSES, dtype=BF16), torch.randn(CLASSES - 1, 2 * WIDTH, dtype=BF16)
    _, decision = decided(lambda x, w: (x.relu()[:, 1:] @ w).sin(), x, w)
    assert decision.reasons == ("mm as captured: relu: a view starts or steps between vectors",)


def test_small_products_and_other_types_are_left_alone() -> None:
    _, decision = decided(
        lambda x, w: (x.sin() @ w.sin()).amax(-1), *(torch.randn(11, 11, dtype=BF16) for _ in range(2))
    )
    assert decision.products == 1 and decision.padded == ()
    assert "unaligned kernels lose 0.0 us" in decision.reasons[0]
    _, decision = decided(lambda x, w: (x @ w).amax(-1), *(torch.randn(511, 511).double() for _ in range(2)))
    assert decision.products == 0


def test_only_where_asked() -> None:
    gm = make_fx(scored, tracing_mode="fake")(*logits())
    for options in (LayoutOptions(), LayoutOptions(devices=("cpu",), pad_products=False)):
        made, decision = pad_products(gm, options)
        assert made is gm and decision.padded == ()


def test_an_operator_left_to_allocate_is_taken_as_dense() -> None:
    x, w = torch.randn(ROWS, CLASSES, dtype=BF16), torch.randn(CLASSES, 2 * WIDTH, dtype=BF16)
    gm = make_fx(lambda x, w: (x.relu() @ w).sin(), tracing_mode="fake")(x, w)
    made, _ = pad_products(gm, ON_CPU)
    lowered = lower(made, name="graph", options=LoweringOptions(fallback=("aten.relu",)))
    assert product_operands(lowered.graph)[-1] == (CLASSES, 2 * WIDTH, 2 * WIDTH)


def test_alignment_of_tensors() -> None:
    dense = torch.empty(6, 5, dtype=BF16)
    assert is_unaligned(dense) and is_unaligned(dense.t())
    padded = torch.empty(6, 8, dtype=BF16)
    assert not is_unaligned(padded[:, :5]) and not is_unaligned(padded[:, :5].t())
    assert is_unaligned(padded[:, 1:6])
    assert not is_unaligned(padded[:, ::2])
    assert not is_unaligned(torch.empty(1, 5, dtype=BF16))
    assert not is_unaligned(torch.empty(6, 4)) and is_unaligned(torch.empty(6, 4, dtype=BF16))


def test_products_are_counted() -> None:
    gm = make_fx(lambda a, b: a @ b, tracing_mode="fake")(torch.empty(3, 4, 5), torch.empty(3, 5, 6))
    (product,) = find_products(gm, ("cpu",))
    assert product.flops == 2 * 3 * 4 * 5 * 6


def test_training_pads_logits_and_their_gradient() -> None:
    x, w = logits()
    labels = torch.arange(ROWS) % CLASSES

    def loss(x: Tensor, w: Tensor) -> Tensor:
        return nn.functional.cross_entropy((x * 0.1) @ w.t(), labels)

    def gradients(function: Callable[..., Tensor]) -> list[Tensor]:
        given = [t.clone().requires_grad_() for t in (x, w)]
        value = function(*given)
        value.backward()
        return [value.detach(), *(t.grad for t in given if t.grad is not None)]

    torch._dynamo.reset()
    recorder = Recorder(layout=ON_CPU)
    found = gradients(torch.compile(loss, backend=recorder))
    forward, backward = (lowered.graph for lowered in recorder.lowered)
    assert product_operands(forward) == [(WIDTH, WIDTH, PADDED)]
    assert len(product_operands(backward)) == 2
    assert all(CLASSES not in strides and PADDED in strides for strides in product_operands(backward))
    # saved for the backward as it is
    assert any(
        isinstance(b, Buffer) and as_int(b.strides[0]) == PADDED
        for b in backward.inputs
        if isinstance(b, Buffer) and b.strides
    )
    for got, expected in zip(found, gradients(loss), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.02, atol=1e-4)
    assert [t.stride() for t in found] == [(), (WIDTH, 1), (WIDTH, 1)]
