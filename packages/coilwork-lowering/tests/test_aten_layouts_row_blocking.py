"""Products by blocks of rows: what is cut so, what is not, and that values and strides stay eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_compilers import TracingMode
from lowering_backend import Recorder
from product_graphs import ON_CPU, in_eager
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_int
from coilwork_ir.loops import Contraction, Graph, Scatter, View
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import Load
from coilwork_lowering import LayoutOptions, PaddingDecision, lower, pad_products
from coilwork_lowering.aten_layouts import size_padding
from coilwork_lowering.aten_layouts.products import find_products

BF16 = torch.bfloat16
ON_META = LayoutOptions(layout="captured", devices=("meta",))
# sizes at which a few blocks are worth their launches, on a machine with little room
ROWS, INNER, COLUMNS, ROOM = 1100, 1024, 5001, 5_000_000


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_padding, "_ROOM", ROOM)
    monkeypatch.setattr(size_padding, "_SMALL", ROOM)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / 8).to(BF16)


def empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def decided(
    function: Callable[..., Any], *inputs: Any, options: LayoutOptions = ON_META, mode: TracingMode = "fake"
) -> tuple[torch.fx.GraphModule, PaddingDecision]:
    return pad_products(make_fx(function, tracing_mode=mode)(*inputs), options)


def logits(x: Tensor, w: Tensor) -> Tensor:
    return x @ w.t()


def sizes(made: torch.fx.GraphModule, device: str) -> list[tuple[int, ...]]:
    """Rows, inner size and columns of every product."""
    tensors = [[t.meta["val"].shape for t in p.tensors] for p in find_products(made, (device,))]
    return [(*left, right[1]) for left, right, _ in tensors]


def test_the_logits_of_a_language_model() -> None:
    made, decision = decided(logits, empty(8192, 768), empty(50257, 768))
    assert (decision.by_rows, decision.padded, decision.aligned) == (("mm",), (), 1)
    assert sizes(made, "meta") == [*[(512, 768, 50256)] * 16, (8192, 768, 1)]
    assert decision.reasons[0].startswith("mm by 16 blocks of 512 rows: sizes of no whole vectors lose 57")
    assert 4500 < decision.saved_us < 5500
    (result,) = made.graph.output_node().all_input_nodes
    assert result.meta["val"].stride() == (50257, 1)


def test_what_a_bias_is_added_to() -> None:
    function = lambda b, x, w: torch.addmm(b, x, w.t())  # noqa: E731
    made, decision = decided(function, empty(30522), empty(4096, 768), empty(30522, 768))
    assert sizes(made, "meta") == [*[(1024, 768, 30520)] * 4, (4096, 768, 2)]
    assert 500 < decision.saved_us < 800


@pytest.mark.parametrize(
    ("rows", "blocks"),
    [(512, [512]), (1024, [512, 512]), (1100, [384, 384, 332]), (32768, [*[1664] * 19, 1152])],
)
def test_blocks_are_few_and_fit_in_the_room(rows: int, blocks: list[int]) -> None:
    made, _ = decided(logits, empty(rows, 768), empty(50257, 768))
    found = [size[0] for size in sizes(made, "meta")]
    assert found == [*blocks, rows]
    held = 2 * (rows * 768 + 50257 * 768 + rows * 50257)
    assert max(blocks) * 50256 * 2 <= max(64_000_000, 0.05 * held)


def untransposed(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


@pytest.mark.parametrize(
    ("function", "shapes", "why"),
    [
        (torch.bmm, ((8, 4096, 768), (8, 768, 30522)), "batches of products"),
        (logits, ((8192, 770), (50257, 770)), "the inner size is no whole vectors"),
        (untransposed, ((8192, 768), (768, 50257)), "an operand has unaligned rows"),
        (lambda x, w: x[:, ::2] @ w.t(), ((8192, 1536), (50257, 768)), "an operand is copied"),
        (logits, ((1024, 768), (300001, 768)), "a block has no room"),
        (logits, ((8192, 8), (50257, 8)), "sizes of no whole vectors lose 0.0 us"),
    ],
    ids=["batches", "inner", "row-major weight", "steps", "no room", "bound by memory"],
)
def test_products_that_gain_nothing_stay_as_captured(
    function: Callable[..., Any], shapes: Any, why: str
) -> None:
    made, decision = decided(function, *(empty(*shape) for shape in shapes))
    assert decision.by_rows == ()
    assert decision.reasons[0].startswith(("mm as captured: ", "bmm as captured: "))
    assert f"; by rows: {why}" in decision.reasons[0]
    assert len(sizes(made, "meta") if len(shapes[0]) == 2 else [1]) == 1


def test_where_kernels_store_such_rows_nothing_is_cut() -> None:
    options = LayoutOptions(layout="captured", devices=("meta",), by_rows=False)
    made, decision = decided(logits, empty(8192, 768), empty(50257, 768), options=options)
    assert decision.by_rows == () and sizes(made, "meta") == [(8192, 768, 50257)]


def test_joint_graphs_and_strict_numerics_stay() -> None:
    gm = make_fx(logits, tracing_mode="fake")(empty(8192, 768), empty(50257, 768))
    made, decision = pad_products(gm, ON_META, joint=True)
    assert made is gm and decision.by_rows == ()
    assert decision.reasons[0].endswith("a copy of 823410688 bytes would be large beside what is in memory")
    off = LayoutOptions(layout="captured", devices=("meta",), pad_products=False)
    made, decision = pad_products(gm, off)
    assert made is gm and decision.by_rows == ()


X, W, V = drawn(ROWS, INNER), drawn(COLUMNS, INNER, seed=1), drawn(COLUMNS, seed=2)


def addmm(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(b, x, w.t())


@pytest.mark.usefixtures("little_room")
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        pytest.param(logits, (X, W), id="returned"),
        pytest.param(lambda x, w: logits(x, w).view(2, -1, COLUMNS), (X, W), id="viewed"),
        pytest.param(lambda x, w: (logits(x, w).view(-1)[3:], x + 1), (X, W), id="flat"),
        pytest.param(
            lambda x, w: (lambda y: (y, y.float().amax(-1)))(logits(x, w)), (X, W), id="read as well"
        ),
        pytest.param(lambda x, w: (x[:-4] * 2).t().contiguous().t() @ w.t(), (X, W), id="column-major"),
        pytest.param(addmm, (V, X, W), id="bias"),
        pytest.param(
            lambda b, x, w: torch.addmm(b, x, w.t(), beta=2, alpha=3),
            (drawn(ROWS, 1), X, W),
            id="bias of rows",
        ),
        pytest.param(addmm, (drawn(1, COLUMNS), X, W), id="bias of columns"),
        pytest.param(addmm, (drawn(ROWS, COLUMNS), X, W), id="bias of elements"),
    ],
)
def test_products_by_rows_are_those_of_eager(
    function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    torch._dynamo.reset()
    recorder = Recorder(layout=ON_CPU)
    with torch.no_grad():
        found = torch.compile(function, backend=recorder)(*inputs)
    (decision,) = recorder.decisions
    assert len(decision.by_rows) == 1, decision.reasons
    expected = in_eager(function, *inputs)
    pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else ((found, expected),)
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)
        assert got.stride() == wanted.stride()
    verify_graph(recorder.lowered[0].graph)


def fills(graph: Graph) -> list[Scatter]:
    return [node for node in graph.nodes if isinstance(node, Scatter)]


@pytest.mark.usefixtures("little_room")
def test_blocks_are_stored_as_soon_as_they_are_computed() -> None:
    made, _ = decided(logits, X, W, options=ON_CPU)
    graph = lower(made, name="graph").graph
    verify_graph(graph)
    steps = [type(node) for node in graph.nodes if isinstance(node, Contraction | Scatter)]
    assert steps == [Contraction, Scatter] * 4
    first, *others = fills(graph)
    assert first.into is None
    assert [node.into for node in others] == [node.output.name for node in fills(graph)[:-1]]
    extents = [tuple(as_int(r.extent) for r in node.ranges if r.extent is not None) for node in fills(graph)]
    assert extents == [(384, 5000), (384, 5000), (332, 5000), (1100, 1)]
    # the weight is read in place
    weight = graph.inputs[1]
    sources = {node.output.name: node.source for node in graph.nodes if isinstance(node, View)}
    products = [node for node in graph.nodes if isinstance(node, Contraction)]
    read_from = [sources[one.right.buffer] for one in products if isinstance(one.right, Load)]
    assert isinstance(weight, Buffer) and read_from == [weight.name] * 4
    assert len(graph.nodes) == 4 * 2 + 3 + 2
    (found,) = interpret_graph(graph, (X, W))
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, in_eager(logits, X, W), rtol=0.02, atol=0.02)
    assert found.stride() == (COLUMNS, 1)


@pytest.mark.usefixtures("little_room")
def test_a_symbolic_number_of_rows_stays() -> None:
    torch._dynamo.reset()
    recorder = Recorder(layout=ON_CPU)
    x = X.clone()
    torch._dynamo.mark_dynamic(x, 0)
    with torch.no_grad():
        found = torch.compile(logits, backend=recorder)(x, W)
    (decision,) = recorder.decisions
    assert decision.by_rows == ()
    assert decision.reasons[0].endswith("; by rows: sizes are symbolic")
    torch.testing.assert_close(found, in_eager(logits, X, W), rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("little_room")
def test_the_rewritten_graph_says_what_it_computes() -> None:
    made, _ = decided(addmm, V, X, W, options=ON_CPU)
    made.recompile()
    torch.testing.assert_close(made(V, X, W), in_eager(addmm, V, X, W), rtol=0.02, atol=0.02)
    found: list[tuple[torch.fx.Node, Tensor]] = []

    class Kept(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            if n.op == "call_function":
                found.append((n, value))
            return value

    Kept(made).run(V, X, W)
    for node, value in found:
        meta = node.meta["val"]
        assert (meta.shape, meta.stride(), meta.dtype) == (value.shape, value.stride(), value.dtype), node


@pytest.mark.usefixtures("little_room")
def test_what_is_written_to_afterwards() -> None:
    def written(x: Tensor, w: Tensor) -> Tensor:
        return logits(x, w).relu_()

    made, decision = decided(written, X, W, options=ON_CPU)
    assert decision.by_rows == ("mm",)
    graph = lower(made, name="graph").graph
    verify_graph(graph)
    (found,) = interpret_graph(graph, (X, W))
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, in_eager(written, X, W), rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("little_room")
def test_a_product_of_what_was_cut() -> None:
    def chained(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = logits(x, w)
        return y, y @ w

    made, decision = decided(chained, X, W, options=ON_CPU)
    assert decision.by_rows == ("mm",)
    assert len(decision.reasons) == 2
    graph = lower(made, name="graph").graph
    found = interpret_graph(graph, (X, W))
    for got, wanted in zip(found, in_eager(chained, X, W), strict=True):
        assert isinstance(got, Tensor)
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.1)
