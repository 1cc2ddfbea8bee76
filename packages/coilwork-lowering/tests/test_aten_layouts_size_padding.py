"""Padded sizes of products: what gets them, what does not, and that values and strides stay eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from product_graphs import ON_CPU, decided, in_eager, product_operands
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_int
from coilwork_ir.loops import Pointwise
from coilwork_lowering import LayoutOptions, PaddingDecision, pad_products
from coilwork_lowering.aten_layouts.products import find_products

BF16 = torch.bfloat16
ROWS, WIDTH, CLASSES, PADDED = 2048, 128, 5001, 5008


def drawn(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def logits() -> tuple[Tensor, Tensor]:
    return drawn(ROWS, WIDTH), drawn(CLASSES, WIDTH, seed=1)


def scored(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight.t()).view(8, ROWS // 8, CLASSES)[:, :-1].float().amax(-1)


def run(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, Recorder]:
    torch._dynamo.reset()
    recorder = Recorder(layout=ON_CPU)
    with torch.no_grad():
        return torch.compile(function, backend=recorder)(*inputs), recorder


def shapes(made: torch.fx.GraphModule, device: str = "cpu") -> list[list[Sequence[int]]]:
    """Shapes of the matrices of every product, the result last."""
    return [[tuple(t.meta["val"].shape) for t in p.tensors] for p in find_products(made, (device,))]


def test_columns_of_a_result_that_stays_inside() -> None:
    gm = make_fx(scored, tracing_mode="fake")(*logits())
    made, decision = pad_products(gm, ON_CPU)
    assert shapes(made) == [[(ROWS, WIDTH), (WIDTH, PADDED), (ROWS, PADDED)]]
    assert shapes(gm) == [[(ROWS, WIDTH), (WIDTH, CLASSES), (ROWS, CLASSES)]]
    assert decision.padded == ("constant_pad_nd_default", "mm")
    assert (decision.products, decision.aligned) == (1, 1)
    assert decision.padding_bytes == ROWS * (PADDED - CLASSES) * 2 + PADDED * WIDTH * 2
    assert decision.reasons[0].startswith("mm with padded sizes: sizes of no whole vectors lose ")
    graph, _ = decided(scored, *logits())
    assert product_operands(graph) == [(WIDTH, WIDTH, PADDED)]


def test_the_rewritten_graph_says_what_it_computes() -> None:
    x, w = logits()
    made, _ = pad_products(make_fx(scored, tracing_mode="fake")(x, w), ON_CPU)
    made.recompile()
    assert torch.equal(made(x, w), scored(x, w))
    kept = Kept(made)
    kept.run(x, w)
    for node, value in kept.found:
        assert node.meta["val"].shape == value.shape, node
        assert node.meta["val"].stride() == value.stride(), node


class Kept(torch.fx.Interpreter):
    """Keeps every tensor."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        super().__init__(gm)
        self.found: list[tuple[torch.fx.Node, Tensor]] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op == "call_function":
            self.found.append((n, value))
        return value


INNER, OUTER = 2003, 512
BATCH = (drawn(4, 256, 2003), drawn(4, 2003, 256, seed=1))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(scored, logits(), id="columns"),
        pytest.param(
            lambda x, w: (x.relu() @ w).sin(), (drawn(OUTER, INNER) / 32, drawn(INNER, OUTER)), id="inner"
        ),
        pytest.param(
            lambda x, w: (w.t() @ x.relu().t()).sin(),
            (drawn(OUTER, INNER) / 32, drawn(INNER, OUTER)),
            id="turned",
        ),
        pytest.param(
            lambda x, w: (x.relu() @ w.t()).amax(-1), (drawn(OUTER, INNER), drawn(INNER, INNER)), id="both"
        ),
        pytest.param(lambda x, w: (x.relu() @ w.sin()).amax(-1), BATCH, id="batches"),
        pytest.param(
            lambda b, x, w: torch.addmm(b, x, w.t()).amax(-1),
            (drawn(INNER), drawn(2048, 512), drawn(INNER, 512)),
            id="bias",
        ),
        pytest.param(
            lambda b, x, w: torch.addmm(b, x, w.t(), beta=2, alpha=3).amax(-1),
            (drawn(2048, 1), drawn(2048, 512), drawn(INNER, 512)),
            id="bias of rows",
        ),
        pytest.param(
            lambda b, x, w: torch.addmm(b, x, w.t(), beta=2).amax(-1),
            (torch.tensor(0.5, dtype=BF16), drawn(2048, 512), drawn(INNER, 512)),
            id="bias of one number",
        ),
        pytest.param(
            lambda b, x, w: torch.baddbmm(b, x, w).amax(-1),
            (drawn(1, 1, 2003), drawn(4, 512, 256), drawn(4, 256, 2003)),
            id="bias of batches",
        ),
    ],
)
def test_products_with_padded_sizes_are_those_of_eager(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> None:
    found, recorder = run(function, *inputs)
    (decision,) = recorder.decisions
    assert decision.aligned == 1, decision.reasons
    assert "with padded sizes" in decision.reasons[0]
    expected = in_eager(function, *inputs)
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert found.stride() == expected.stride()


def test_numbers_that_are_not_finite_stay_where_they_are() -> None:
    x, w = drawn(OUTER, INNER), drawn(INNER, INNER, seed=1)
    x[3, 5], x[7, 2000], x[9, INNER - 1] = math.inf, math.nan, -math.inf
    w[11, 4], w[INNER - 1, INNER - 1] = math.inf, math.nan

    def odd(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = (x * 2) @ w
        return y.amax(-1), y[:, :-1].float() * 2

    found, recorder = run(odd, x, w)
    assert recorder.decisions[0].aligned == 1
    for got, expected in zip(found, in_eager(odd, x, w), strict=True):
        assert not torch.isfinite(expected).all()
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.5, equal_nan=True)


def test_a_product_of_a_wider_result_reads_no_padding() -> None:
    x, w = drawn(4 * OUTER, OUTER), drawn(INNER, OUTER, seed=1)
    x[0, 0] = math.inf

    def chained(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w.t()) @ w).amax(-1)

    found, recorder = run(chained, x, w)
    assert recorder.decisions[0].aligned == 2
    # padding of the first result holds inf * 0; the second product must not see it
    torch.testing.assert_close(found, in_eager(chained, x, w), rtol=0.02, atol=0.5, equal_nan=True)
    assert torch.isfinite(found[1:]).all()


def test_generated_operands_are_padded_as_they_are_made() -> None:
    x, w = drawn(4 * ROWS, INNER), drawn(INNER, 4 * OUTER)
    graph, decision = decided(lambda x, w: ((x.relu() @ w).amax(-1), x.relu().sum(0)), x, w)
    assert len(decision.padded) == 2, decision
    outputs = [n.output for n in graph.nodes if isinstance(n, Pointwise)]
    stored = [output for output in outputs if "pad" in output.name]
    assert {tuple(as_int(s) for s in b.shape) for b in stored} == {(4 * ROWS, 2008), (2008, 4 * OUTER)}


def test_sums_add_the_zeros_of_what_is_padded() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x.relu()
        return (y @ w).amax(-1), y.sum(0), y.sum(0, True).view(-1), y.sum(1), y.sum(0, True), y.float().sum(0)

    x, w = drawn(OUTER, INNER), drawn(INNER, INNER)
    made, decision = pad_products(make_fx(function, tracing_mode="fake")(x, w), ON_CPU)
    sums = made.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
    read = [tuple(node.args[0].meta["val"].shape) for node in sums]
    # one that is returned as it is keeps its strides; a conversion is of what was asked for
    assert read == [(OUTER, 2008)] * 3 + [(OUTER, INNER)] * 2
    assert [tuple(node.meta["val"].shape) for node in sums[:3]] == [(2008,), (1, 2008), (OUTER,)]
    assert {node.name for node in sums[:2]} <= set(decision.padded)
    with torch.no_grad():
        for got, wanted in zip(made(x, w), function(x, w), strict=True):
            assert got.shape == wanted.shape and got.stride() == wanted.stride()
            torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.5)


def test_one_operand_in_two_places() -> None:
    def gram(x: Tensor) -> Tensor:
        y = x.relu()
        return y @ y.t()

    x = drawn(4 * OUTER, INNER)
    graph, decision = decided(gram, x)
    assert decision.padded == ("constant_pad_nd_default",)
    assert product_operands(graph) == [(2008, 2008, 4 * OUTER)]
    found, _ = run(gram, x)
    torch.testing.assert_close(found, in_eager(gram, x), rtol=0.02, atol=0.02)
    # columns of the result and the inner size are odd, so that the operands differ
    found, recorder = run(lambda x: gram(x[1:]).amax(-1), x)
    assert recorder.decisions[0].aligned == 1
    torch.testing.assert_close(found, in_eager(gram, x[1:]).amax(-1), rtol=0.02, atol=0.02)


def test_an_operand_that_somebody_reads_flat_is_copied() -> None:
    def flat(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x.relu()
        return (y @ w).amax(-1), y.view(-1).amax(0)

    x, w = drawn(OUTER, INNER), drawn(INNER, 4 * OUTER)
    found, recorder = run(flat, x, w)
    (decision,) = recorder.decisions
    assert decision.aligned == 1
    assert decision.padding_bytes == 2 * 2008 * (OUTER + 4 * OUTER)
    for got, expected in zip(found, in_eager(flat, x, w), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)


def test_checkpointed_regions_are_left_to_their_author() -> None:
    gm = make_fx(scored, tracing_mode="fake")(*logits())
    for node in gm.graph.nodes:
        node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    made, decision = pad_products(gm, ON_CPU)
    assert made is gm and decision.products == 1


def test_what_the_caller_gets_is_dense() -> None:
    def returned(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w.t()).view(2, -1, INNER)

    x, w = drawn(4096, 512), drawn(INNER, 512)
    found, recorder = run(returned, x, w)
    assert recorder.decisions[0].aligned == 1
    assert found.stride() == returned(x, w).stride()
    torch.testing.assert_close(found, in_eager(returned, x, w), rtol=0.02, atol=0.02)


def test_a_product_that_is_much_slower_as_captured_gets_more_room() -> None:
    """Copies of both operands, and of the result when these are gone, are two thirds of what is there."""
    with torch.device("meta"):
        odd = torch.empty(4095, 4097, dtype=BF16), torch.empty(4097, 4093, dtype=BF16)
        even = torch.empty(4096, 4098, dtype=BF16), torch.empty(4098, 4094, dtype=BF16)
    _, decision = decided_on_meta(torch.mm, *odd)
    assert len(decision.padded) == 3 and decision.aligned == 1
    _, decision = decided_on_meta(torch.mm, *even)
    assert decision.padded == () and "would be large beside what is in memory" in decision.reasons[0]


def test_what_the_caller_gets_is_not_held_twice() -> None:
    with torch.device("meta"):
        x, w = torch.empty(8192, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16)
    _, decision = decided_on_meta(lambda x, w: x @ w.t(), x, w)
    assert decision.padded == () and decision.by_rows == ("mm",)
    assert "returned to the caller, and a copy of 823410688 bytes would be large" in decision.reasons[0]


def decided_on_meta(
    function: Callable[..., Any], *inputs: Tensor, by_rows: bool = True
) -> tuple[torch.fx.GraphModule, PaddingDecision]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return pad_products(gm, LayoutOptions(layout="captured", devices=("meta",), by_rows=by_rows))


@pytest.mark.parametrize(
    ("inputs", "columns"),
    [
        pytest.param(((4095, 4093), (4093, 4097)), [4104], id="copied out of padded rows"),
        pytest.param(((8192, 768), (768, 50257)), [50257], id="no room for a copy"),
    ],
)
def test_kernels_that_store_odd_rows(inputs: tuple[tuple[int, ...], ...], columns: list[int]) -> None:
    """They are slower than a library, and need no copy of what the caller gets."""
    with torch.device("meta"):
        given = [torch.empty(shape, dtype=BF16) for shape in inputs]
    made, decision = decided_on_meta(torch.mm, *given, by_rows=False)
    assert decision.aligned == 1
    (product,) = find_products(made, ("meta",))
    left, right, result = (tensor.meta["val"] for tensor in product.tensors)
    assert left.stride(0) % 8 == right.stride(0) % 8 == 0
    assert [result.shape[1]] == columns


def test_the_last_layer_of_a_language_model_is_worth_it() -> None:
    with torch.device("meta"):
        x, w = torch.empty(8192, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16)
    made, decision = decided_on_meta(lambda x, w: (x @ w.t()).amax(-1), x, w)
    assert decision.aligned == 1
    # measured: 6674 us against 880
    assert 5000 < decision.saved_us < 6000
    made, decision = decided_on_meta(lambda g, w: g.relu() @ w, x.new_empty(8192, 50257), w)
    assert shapes(made, "meta") == [[(8192, 50264), (50264, 768), (8192, 768)]]
    # measured: 4793 us
    assert 3500 < decision.saved_us < 6000


@pytest.mark.parametrize(
    ("function", "shapes_given"),
    [
        pytest.param(lambda x, w: (x @ w.t()).amax(-1), ((8192, 768), (50264, 768)), id="aligned"),
        pytest.param(lambda x, w: (x.sin() @ w.sin()).amax(-1), ((11, 11), (11, 11)), id="small"),
        pytest.param(lambda x, w: (x @ w.t()).amax(-1), ((1, 4096), (50257, 4096)), id="a vector"),
        pytest.param(lambda x, w: (x @ w.t()).amax(-1), ((16, 4096), (50257, 4096)), id="few rows"),
    ],
)
def test_what_gains_nothing_stays(function: Callable[..., Any], shapes_given: Any) -> None:
    with torch.device("meta"):
        given = [torch.empty(shape, dtype=BF16) for shape in shapes_given]
    gm, decision = decided_on_meta(function, *given)
    assert decision.padded == ()
    assert not any("pad" in node.name for node in gm.graph.nodes)


@pytest.mark.parametrize(
    ("function", "obstacle"),
    [
        (lambda y: y.relu_().amax(-1), "written to"),
        (lambda y: y.sort(-1)[0].amax(-1), "read by sort, which depends on strides"),
        (lambda y: y.view(-1).amax(0), "a view needs dense rows"),
    ],
)
def test_readers_that_need_dense_rows_get_them(function: Callable[[Tensor], Tensor], obstacle: str) -> None:
    with torch.device("meta"):
        x, w = torch.empty(8192, 768, dtype=BF16), torch.empty(50257, 768, dtype=BF16)
    _, decision = decided_on_meta(lambda x, w: function(x @ w.t()), x, w)
    assert decision.padded == ()
    assert decision.by_rows == ("mm",)
    assert f"; {obstacle}, and a copy of 823410688 bytes would be large" in decision.reasons[0]


def test_symbolic_sizes_stay() -> None:
    def inner(x: Tensor, w: Tensor) -> Tensor:
        return (x.relu() @ w).amax(-1)

    x, w = drawn(2048, 2003), drawn(2003, 512)
    _, decision = decided(inner, x, w, mode="symbolic")
    assert decision.padded == ()
    # a symbolic number of rows does not stand in the way
    torch._dynamo.reset()
    recorder = Recorder(layout=ON_CPU)
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        found = torch.compile(inner, backend=recorder)(x, w)
        again = torch.compile(inner, backend=recorder)(x[:100], w)
    assert [d.aligned for d in recorder.decisions] == [1]
    torch.testing.assert_close(found, in_eager(inner, x, w), rtol=0.02, atol=0.1)
    torch.testing.assert_close(again, in_eager(inner, x[:100], w), rtol=0.02, atol=0.1)


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
    # saved are the wide logits, but no slice of them; the weight is padded anew
    saved = [b for b in backward.inputs if isinstance(b, Buffer) and len(b.shape) == 2]
    sizes = [tuple(as_int(s) for s in b.shape) for b in saved]
    assert (ROWS, PADDED) in sizes and (CLASSES, WIDTH) in sizes
    assert (ROWS, CLASSES) not in sizes and (PADDED, WIDTH) not in sizes
    for got, expected in zip(found, gradients(loss), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.02, atol=1e-4)
    assert [t.stride() for t in found] == [(), (WIDTH, 1), (WIDTH, 1)]


def test_a_vocabulary_is_not_copied_for_a_short_batch() -> None:
    """Its padded weight would be larger than all else that is in memory."""

    def scores(bias: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.addmm(bias, x, w.t())

    def padded(rows: int) -> bool:
        with torch.device("meta"):
            bias, x, w = (torch.empty(*shape, dtype=BF16) for shape in ((30522,), (rows, 768), (30522, 768)))
        return bool(decided_on_meta(lambda *args: scores(*args).amax(-1), bias, x, w)[1].padded)

    assert padded(8192) and not padded(512)
