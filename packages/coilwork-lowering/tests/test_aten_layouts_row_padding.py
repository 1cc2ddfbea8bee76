"""Padded rows of products: what gets them, what does not, and that values stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lowering_backend import Recorder
from product_graphs import ON_CPU, decided, product_operands
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import LayoutOptions, LoweringOptions, lower, pad_products
from coilwork_lowering.aten_layouts.products import find_products, is_unaligned

aten = torch.ops.aten
# in f32, whose kernels take any size: 16 bytes are four numbers
ROWS, WIDTH, CLASSES, PADDED = 1024, 256, 5001, 5004
BF16 = torch.bfloat16


def logits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return x, torch.randn(CLASSES, WIDTH, generator=generator)


def scored(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight.t()).view(8, ROWS // 8, CLASSES)[:, :-1].amax(-1)


def test_a_result_that_stays_inside_is_padded() -> None:
    graph, decision = decided(scored, *logits())
    assert decision.padded == ("mm",)
    assert (decision.products, decision.aligned) == (1, 1)
    assert decision.padding_bytes == ROWS * (PADDED - CLASSES) * 4
    assert decision.saved_us > 5
    assert decision.reasons[0].startswith("mm with padded rows: unaligned kernels lose ")
    assert product_operands(graph) == [(WIDTH, WIDTH, PADDED)]


def test_values_of_inference_stay() -> None:
    torch._dynamo.reset()
    recorder = Recorder(layout=ON_CPU)
    with torch.no_grad():
        found = torch.compile(scored, backend=recorder)(*logits())
    assert recorder.decisions[0].padded == ("mm",)
    assert torch.allclose(found, scored(*logits()), rtol=1e-5, atol=1e-4)


def test_what_the_caller_gets_stays_dense() -> None:
    graph, decision = decided(lambda x, w: (x @ w.t()).view(2, -1, CLASSES), *logits())
    assert decision.padded == ()
    assert decision.reasons == ("mm as captured: mm: returned to the caller",)
    assert product_operands(graph) == [(WIDTH, WIDTH, CLASSES)]


def test_inputs_of_products_are_not_padded() -> None:
    x, w = torch.randn(ROWS, CLASSES), torch.randn(CLASSES, WIDTH)
    _, decision = decided(lambda x, w: (x @ w).relu(), x, w)
    assert decision.reasons == ("mm as captured: x_1: an input",)


def test_generated_operands_are_padded() -> None:
    x, w = torch.randn(ROWS, CLASSES), torch.randn(CLASSES, 2 * WIDTH)
    graph, decision = decided(lambda x, w: (x.relu() @ w).sin(), x, w)
    assert decision.padded == ("relu",)
    assert product_operands(graph) == [(PADDED, 2 * WIDTH, 2 * WIDTH)]
    # the same matrix, transposed by a view
    graph, decision = decided(lambda x, w: (w.t() @ x.relu().t()).sin(), x, w)
    assert decision.padded == ("relu",)


def test_batches_and_biases() -> None:
    x, w = torch.randn(16, 256, 128), torch.randn(16, 128, 1501)
    _, decision = decided(lambda x, w: (x @ w.sin()).amax(-1), x, w)
    assert set(decision.padded) == {"bmm", "sin"}
    x, w = torch.randn(ROWS, 1024), torch.randn(CLASSES, 1024)
    bias = torch.randn(CLASSES)
    _, decision = decided(lambda b, x, w: torch.addmm(b, x, w.t()).amax(-1), bias, x, w)
    assert decision.padded == ("addmm",)
    # over a short inner dimension, copying the bias into the result costs as much as alignment saves
    _, decision = decided(lambda b, x, w: torch.addmm(b, x, w.t()).amax(-1), bias, x[:, :64], w[:, :64])
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
    x, w = torch.randn(ROWS, CLASSES), torch.randn(CLASSES - 1, 2 * WIDTH)
    _, decision = decided(lambda x, w: (x.relu()[:, 1:] @ w).sin(), x, w)
    assert decision.reasons == ("mm as captured: relu: a view starts or steps between vectors",)


def test_small_products_and_other_types_are_left_alone() -> None:
    _, decision = decided(lambda x, w: (x.sin() @ w.sin()).amax(-1), *(torch.randn(11, 11) for _ in range(2)))
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
    x, w = torch.randn(ROWS, CLASSES), torch.randn(CLASSES, 2 * WIDTH)
    gm = make_fx(lambda x, w: (x.relu() @ w).sin(), tracing_mode="fake")(x, w)
    made, _ = pad_products(gm, ON_CPU)
    lowered = lower(made, name="graph", options=LoweringOptions(fallback=("aten.relu",)))
    assert product_operands(lowered.graph)[-1] == (CLASSES, 2 * WIDTH, 2 * WIDTH)


def test_alignment_of_tensors() -> None:
    dense = torch.empty(6, 5, dtype=BF16)
    assert is_unaligned(dense, 16) and is_unaligned(dense.t(), 16)
    padded = torch.empty(6, 8, dtype=BF16)
    assert not is_unaligned(padded[:, :5], 16) and not is_unaligned(padded[:, :5].t(), 16)
    assert is_unaligned(padded[:, 1:6], 16)
    assert not is_unaligned(padded[:, ::2], 16)
    assert not is_unaligned(torch.empty(1, 5, dtype=BF16), 16)
    assert not is_unaligned(torch.empty(6, 4), 16) and is_unaligned(torch.empty(6, 4, dtype=BF16), 16)


def test_products_are_counted() -> None:
    gm = make_fx(lambda a, b: a @ b, tracing_mode="fake")(torch.empty(3, 4, 5), torch.empty(3, 5, 6))
    (product,) = find_products(gm, ("cpu",))
    assert product.flops == 2 * 3 * 4 * 5 * 6


def test_rows_of_16_bits_are_padded_where_sizes_do_not_decide() -> None:
    x, y = torch.randn(ROWS, CLASSES, dtype=BF16), torch.randn(ROWS, 2 * WIDTH, dtype=BF16)
    # the odd size counts rows of the result, and is consecutive in the operand alone
    graph, decision = decided(lambda x, y: x.relu().t() @ y, x, y)
    assert decision.padded == ("relu",)
    assert product_operands(graph) == [(5008, 2 * WIDTH, 2 * WIDTH)]
