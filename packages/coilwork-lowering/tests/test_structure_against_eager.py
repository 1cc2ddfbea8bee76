"""Views, reductions, joins, indexing, scatters and scans against eager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import loop_evaluator
import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import AssertSize, Extern, Scatter, View
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_lowering import Lowered, LoweringOptions, decompositions, lower

aten = torch.ops.aten
Function = Callable[[Tensor], Tensor]

VIEWS: dict[str, Function] = {
    "view": lambda x: x.view(6, 20),
    "split a dimension": lambda x: x.view(2, 3, 2, 2, 5),
    "merge and split": lambda x: x.view(6, 2, 10),
    "view of transposed": lambda x: x.transpose(0, 1).reshape(3, 40),
    "permute": lambda x: x.permute(2, 0, 3, 1),
    "expand": lambda x: x[:, :1].expand(2, 3, 4, 5),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(-2),
    "slice with step": lambda x: x[:, 1:, ::2, -4:-1],
    "select": lambda x: x.select(2, -1),
    "diagonal": lambda x: x.diagonal(1, 2, 3),
    "unfold": lambda x: x.unfold(3, 2, 2),
    "flip": lambda x: x.flip(0, 3),
    "as_strided": lambda x: (x * 2).as_strided((4, 3), (2, 5), 3),
    "as_strided of a slice": lambda x: aten.as_strided(x[1], (2, 3), (7, 2)),
    "bits": lambda x: x.view(torch.int32),
    "nested": lambda x: x.view(6, 20).t()[::2].unsqueeze(0).expand(3, 10, 6).reshape(30, 6),
}


PADDINGS: Final = (
    ((3, 8), (2, 3)),
    ((2, 3, 8), (7, 0)),
    ((2, 3, 5, 8), (2, 3, 0, 4)),
    ((3, 5, 8), (-1, 3, 1, -2)),
    ((2, 3, 4, 5, 6), (1, 2, 0, 3, 3, 1)),
    ((0, 3, 5, 8), (1, 1, 1, 1)),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(("shape", "padding"), PADDINGS)
@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_padding_by_elements(
    kind: str, shape: tuple[int, ...], padding: tuple[int, ...], dtype: torch.dtype
) -> None:
    operator = getattr(aten, f"{kind}_pad{len(padding) // 2}d").default
    x = torch.randn(shape).mul(9).to(dtype)
    assert_as_eager(lambda x: operator(x, padding), x)


@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_padding_by_elements_of_unknown_size(kind: str) -> None:
    pad = functools.partial(getattr(aten, f"{kind}_pad2d").default, padding=(2, 3, 4, 1))
    assert externs(trace_and_lower(pad, (torch.randn(2, 3, 5, 8),), mode="symbolic").graph) == []


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_reflected_truth_values_are_left_to_aten(dims: int) -> None:
    """Eager refuses them, in words of its own."""
    operator = getattr(aten, f"reflection_pad{dims}d").default
    with FakeTensorMode():
        x = torch.ones([2] + [3] * dims, dtype=torch.bool)
        made = make_fx(lambda x: operator(x, (1, 1) * dims), decomposition_table=decompositions())(x)
    assert externs(lower(made, name="graph", options=LoweringOptions()).graph) == [str(operator)]


@pytest.mark.parametrize("kind", ["reflection", "replication"])
def test_padding_by_elements_keeps_the_order_of_channels(kind: str) -> None:
    operator = getattr(aten, f"{kind}_pad2d").default
    x = torch.randn(2, 3, 5, 8).to(memory_format=torch.channels_last)
    made = make_fx(
        lambda x: operator(x, (2, 3, 4, 1)), tracing_mode="fake", decomposition_table=decompositions()
    )(x)
    assert_as_eager(made, x)
    assert made(x).stride() == operator(x, (2, 3, 4, 1)).stride()


@pytest.mark.parametrize("name", VIEWS)
def test_views_as_outputs_and_operands(name: str) -> None:
    x = torch.randn(2, 3, 4, 5)
    assert_as_eager(VIEWS[name], x)
    if name != "bits":
        assert_as_eager(lambda a: aten.add(aten.exp(VIEWS[name](a)), 1), x)


def test_affine_views_reach_products_without_copies() -> None:
    lowered = assert_as_eager(lambda a, b: torch.mm(a.t(), b[:, 2:6]), torch.randn(4, 3), torch.randn(4, 8))
    assert [type(n).__name__ for n in lowered.graph.nodes] == ["View", "View", "Contraction"]


def test_multiple_view_results() -> None:
    assert_as_eager(lambda x: [t + 1 for t in x.split(2, 1)], torch.randn(3, 5))
    assert_as_eager(lambda x: [t * 2 for t in x.unbind(1)], torch.randn(3, 4))
    assert_as_eager(lambda x: [t * 2 for t in x.chunk(3, -1)], torch.randn(2, 7))


REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(),
    "sum dim": lambda x: x.sum((0, 2)),
    "sum keepdim": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean((-1,)),
    "mean all": lambda x: x.mean(),
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax((1, 2), keepdim=True),
    "amin": lambda x: x.amin(0),
    "argmax": lambda x: x.argmax(1),
    "argmin all": lambda x: x.argmin(),
    "argmax keepdim": lambda x: x.argmax(2, keepdim=True),
    "any": lambda x: (x > 1).any(1),
    "all": lambda x: (x > -1).all(),
    "var": lambda x: x.var((0, 1)),
    "std": lambda x: x.std(2, correction=0),
    "logsumexp": lambda x: x.logsumexp(1),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("kind", ["plain", "transposed", "bfloat16", "special", "single"])
def test_reductions_of_any_layout_are_those_of_eager(name: str, kind: str) -> None:
    x = torch.randn(3, 4, 5)
    if kind == "transposed":
        x = torch.randn(5, 4, 3).transpose(0, 2)
    if kind == "bfloat16":
        x = x.bfloat16()
    if kind == "special":
        x[0, 1, 2], x[1, 2, 3], x[2, 0, 0] = float("nan"), float("inf"), float("-inf")
    if kind == "single":
        x = torch.randn(1, 1, 1)
    tolerance = 2e-2 if kind == "bfloat16" else 1e-5
    assert_as_eager(REDUCTIONS[name], x, tolerance=tolerance)


@pytest.mark.parametrize("name", ["sum", "sum dim", "mean", "prod", "any", "all", "var"])
def test_reductions_of_nothing(name: str) -> None:
    assert_as_eager(REDUCTIONS[name], torch.randn(3, 0, 5))
    assert_as_eager(REDUCTIONS[name], torch.randn(3, 4, 0))


@pytest.mark.parametrize("correction", [-2, -0.5, 0, 1, 3])
def test_spread_of_few_elements(correction: float) -> None:
    for count in range(4):
        x = torch.arange(float(2 * count)).view(2, count)
        assert_as_eager(lambda a: torch.std_mean(a, 1, correction=correction), x)
        assert_as_eager(lambda a: torch.var(a, correction=correction), x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_reductions_of_integers_and_bools_are_those_of_eager(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (3, 40)).to(dtype)
    assert_as_eager(lambda a: (a.sum(), a.sum(1), a.prod(1), a.amax(1), a.any(0), a.all()), x)
    assert_as_eager(lambda a: (a.argmax(1), *a.max(0)), x if dtype is not torch.bool else x.int())


def test_positions_of_extremes_take_the_first() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [float("nan"), 5.0, float("nan")]])
    assert_as_eager(lambda a: (*a.max(1), *a.min(1, keepdim=True), a.argmax(), a.argmin(0)), x)


def test_variances_and_deviations_are_those_of_eager() -> None:
    x = torch.randn(4, 6, 5)
    assert_as_eager(
        lambda a: (*torch.var_mean(a, 1), *torch.std_mean(a, (0, 2), correction=0, keepdim=True)), x
    )
    assert_as_eager(lambda a: torch.var(a, 0), torch.randn(1, 4))
    assert_as_eager(lambda a: a.sum(), torch.randn(()))


@pytest.mark.parametrize("order", [0, 1, 2, 3, 2.5, float("inf"), float("-inf")])
def test_vector_norms_are_those_of_eager(order: float) -> None:
    x = torch.randn(3, 4, 5)
    assert_as_eager(
        lambda a: (aten.linalg_vector_norm(a, order), aten.linalg_vector_norm(a, order, [1], True)), x
    )
    assert_as_eager(lambda a: aten.linalg_vector_norm(a, order, [0, 2]), x.bfloat16(), tolerance=2e-2)


def test_the_mean_of_one_number_is_that_number() -> None:
    x = torch.tensor([[float("inf"), 2.0, float("-inf"), float("nan")]])
    assert_as_eager(lambda a: (*torch.var_mean(a, 0), *torch.std_mean(a, 0, correction=0)), x)


@pytest.mark.parametrize("order", [0, 1, 2, 3, 2.5, -1, float("inf"), float("-inf")])
def test_norms_of_single_elements(order: float) -> None:
    x = torch.tensor([7e-40, -1e30, 0.0, float("inf"), float("nan"), -3.0]).view(6, 1, 1)
    assert_as_eager(lambda a: aten.linalg_vector_norm(a, order, [1]), x, tolerance=0)
    assert_as_eager(lambda a: aten.linalg_vector_norm(a, order), x[0, 0, 0], tolerance=0)


def test_copies_of_views() -> None:
    assert_as_eager(
        lambda a: (
            aten.view_copy(a, (12,)),
            aten.permute_copy(a, (1, 0)),
            aten.slice_copy(a, 1, 1, 3),
            *aten.unbind_copy(a),
            aten.expand_copy(a, (2, 3, 4)),
        ),
        torch.randn(3, 4),
    )


JOINS: dict[str, Function] = {
    "cat": lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    "cat mixed types": lambda x: torch.cat([x, x.double()], 0),
    "stack": lambda x: torch.stack([x, x + 1], -1),
    "pad": lambda x: aten.constant_pad_nd(x, [1, 2, 0, 3], 1.5),
    "negative pad": lambda x: aten.constant_pad_nd(x, [-1, 2, 1, -2], -1.0),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "roll": lambda x: x.roll((1, -2), (0, 1)),
    "roll flat": lambda x: x.roll(3),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "slice_scatter": lambda x: aten.slice_scatter(x, x[:, :2] * 2, 1, 1, 4, 2),
    "select_scatter": lambda x: aten.select_scatter(x, x[0] * 2, 0, -1),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x < 0, float("-inf")),
}


@pytest.mark.parametrize("name", JOINS)
def test_joined_and_cut_tensors_are_those_of_eager(name: str) -> None:
    assert_as_eager(JOINS[name], torch.randn(4, 5))
    if not name.startswith("select"):
        assert_as_eager(JOINS[name], torch.randn(5, 4).t().contiguous().mul(2))


def test_padding_of_integers() -> None:
    assert_as_eager(lambda x: torch.nn.functional.pad(x, (0, 1), value=-100), torch.tensor([[1, 2]]))


def test_created_tensors_are_those_of_eager() -> None:
    x = torch.randn(2, 3)
    assert_as_eager(
        lambda a: (
            torch.zeros_like(a),
            torch.full((2,), 3.5),
            aten.full_like(a, 7, dtype=torch.int64),
            torch.arange(2, 11, 3),
            torch.arange(0.0, 1.0, 0.25),
            torch.arange(5, dtype=torch.float32),
            torch.eye(3, 2),
            aten.new_ones(a, [4]),
            aten.scalar_tensor(2.0),
            torch.ops.prims.iota(4, start=1, step=2, dtype=torch.int64, device="cpu", requires_grad=False),
        ),
        x,
    )


def test_reads_at_positions() -> None:
    w, i = torch.randn(7, 4), torch.randint(0, 7, (2, 3))
    assert_as_eager(lambda a, k: aten.embedding(a, k), w, i)
    assert_as_eager(lambda a, k: a.index_select(0, k), w, i[0])
    assert_as_eager(lambda a, k: a.gather(1, k), w, torch.randint(0, 4, (5, 6)))
    assert_as_eager(lambda a, k: a[k], w, i - 7)
    assert_as_eager(lambda a, k: a[:, k], torch.randn(3, 7, 2), i)
    x = torch.randn(3, 7, 5, 2)
    j = torch.randint(0, 5, (3,))
    assert_as_eager(lambda a, k, m: a[:, k, m], x, i, j)
    assert_as_eager(lambda a, k, m: a[k[:, :1], :, m], x, i % 3, j)


OUT_OF_RANGE: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = MappingProxyType(
    {
        "embedding": aten.embedding,
        "index": lambda a, k: a[k],
        "index_put": lambda a, k: a.index_put((k,), a[:2]),
        "index_select": lambda a, k: a.index_select(0, k),
        "index_add": lambda a, k: a.index_add(0, k, a[:2]),
        "gather": lambda a, k: a.gather(0, k[:, None]),
        "scatter": lambda a, k: a.scatter(0, k[:, None], 1.0),
        "scatter_add": lambda a, k: a.scatter_add(0, k[:, None], a[:2]),
    }
)


@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_positions_out_of_range_raise_what_eager_raises(what: str) -> None:
    function, values, bad = OUT_OF_RANGE[what], torch.randn(7, 1), torch.tensor([0, 9])
    with pytest.raises((IndexError, RuntimeError)) as refused:
        function(values, bad)
    lowered = trace_and_lower(function, (values, bad))
    with pytest.raises(refused.type, match="index out of range in aten"):
        loop_evaluator.run(lowered.graph, lowered.constants, [values, bad])


def test_parts_that_may_be_empty_are_joined_within_their_bounds() -> None:
    """The interpreter refuses a load before the first element of a part."""

    def joined(x: torch.Tensor) -> torch.Tensor:
        part = x.unflatten(-1, (3, -1))
        return torch.cat([part, part * 2, part], 1)

    lowered = trace_and_lower(joined, (torch.arange(6),), mode="symbolic")
    for count in (3, 6, 9):
        (found,) = interpret_graph(lowered.graph, [torch.arange(count)])
        assert isinstance(found, torch.Tensor) and torch.equal(found, joined(torch.arange(count)))


def scatters(lowered: Lowered) -> int:
    return sum(isinstance(node, Scatter) for node in lowered.graph.nodes)


def test_one_element_per_row_of_a_constant_is_no_scatter() -> None:
    x, k = torch.zeros(4, 6), torch.randint(0, 6, (4, 1))
    src = torch.randn(4, 3)
    for found in (
        assert_as_eager(lambda a, k: torch.zeros_like(a).scatter(1, k, -1.0), x, k),
        assert_as_eager(lambda a, k: torch.full((4, 6), 7).scatter(-1, k, 3), x, k),
        assert_as_eager(lambda a, k, s: torch.ones_like(a).scatter(1, k, s), x, k, src),
        assert_as_eager(
            lambda a, k: torch.zeros_like(a).scatter(0, k.view(1, 4)[:, :], 2.0), x[:, :4], k % 4
        ),
        assert_as_eager(lambda a, k: torch.zeros_like(a[0]).scatter(0, k[0], 2.0), x, k),
    ):
        assert scatters(found) == 0
    two = torch.tensor([[0, 1]] * 4)
    for found in (
        assert_as_eager(lambda a, k: (a + 1).scatter(1, k, -1.0), x, k),
        assert_as_eager(lambda a, k: torch.zeros_like(a).scatter(1, k, -1.0), x, two),
        assert_as_eager(lambda a, k: torch.zeros_like(a).scatter(1, k, -1.0), x, k[:3]),
        assert_as_eager(lambda a, k: torch.zeros_like(a).scatter_(1, k, -1.0), x, k),
    ):
        assert scatters(found) == 1


def test_an_index_out_of_range_of_a_constant_is_found() -> None:
    lowered = trace_and_lower(
        lambda k: torch.zeros(4, 6).scatter(1, k, 1.0), (torch.zeros(4, 1, dtype=torch.int64),)
    )
    with pytest.raises(RuntimeError, match="scatter"):
        loop_evaluator.run(lowered.graph, lowered.constants, [torch.full((4, 1), 6)])


def test_scatters_are_those_of_eager() -> None:
    x, i = torch.randn(4, 6), torch.randint(0, 4, (3, 6))
    unique = torch.stack([torch.randperm(4)[:3] for _ in range(6)], 1)
    src = torch.randn(3, 6)
    assert_as_eager(lambda a, k, s: a.scatter(0, k, s), x, unique, src)
    assert_as_eager(lambda a, k: a.scatter(0, k, 1.5), x, i)
    assert_as_eager(lambda a, k, s: a.scatter_add(0, k, s), x, i, src)
    assert_as_eager(lambda a, k, s: a.scatter_reduce(0, k, s, "amax"), x, i, src)
    assert_as_eager(
        lambda a, k, s: a.index_add(1, k, s, alpha=2), x, torch.tensor([0, 0, 5]), torch.randn(4, 3)
    )
    assert_as_eager(
        lambda a, k, s: a.index_put((k,), s, accumulate=True), x, torch.tensor([1, 1, -1]), torch.randn(3, 6)
    )
    assert_as_eager(
        lambda a, k, s: aten.index_put(a, [None, k], s), x, torch.tensor([1, 3]), torch.randn(4, 2)
    )
    assert_as_eager(lambda a, k, s: aten.index_put(a, [k, k], s), x, torch.tensor([1, 3]), torch.tensor(5.0))


def test_running_reductions_are_those_of_eager() -> None:
    x = torch.randn(3, 6)
    assert_as_eager(lambda a: (a.cumsum(1), a.cumprod(0), a.logcumsumexp(1), *a.cummax(1), *a.cummin(0)), x)
    assert_as_eager(lambda a: a.cumsum(0), torch.tensor([True, False, True]))
    assert_as_eager(lambda a: a.cumsum(1), x.bfloat16(), tolerance=2e-2)


def test_an_extern_call_keeps_eagers_strides() -> None:
    lowered = assert_as_eager(
        lambda x, w: torch.conv2d(x * 2, w) + 1,
        torch.randint(9, (2, 3, 6, 6)).to(memory_format=torch.channels_last),
        torch.randint(9, (4, 3, 3, 3)),
        extern=True,
    )
    assert externs(lowered.graph) == ["aten.convolution.default"]
    assert [n.fresh for n in lowered.graph.nodes if isinstance(n, Extern)] == [True]


EXTERNS: dict[str, Function] = {
    "mode": lambda x: aten.mode(x, 1)[0],
    "first of 64 bits": lambda x: x.double().topk(2)[1],
    "complex": lambda x: torch.view_as_real(torch.complex(x, x) * 2j),
    "half complex": lambda x: torch.view_as_real(x.to(torch.complex32).t()),
    "linalg": lambda x: torch.linalg.inv(x @ x.t() + 10 * torch.eye(4)),
    "unsorted split": lambda x: aten.cat([x] * 12, 0),
}


@pytest.mark.parametrize("name", EXTERNS)
def test_everything_else_is_called(name: str) -> None:
    lowered = assert_as_eager(EXTERNS[name], torch.randn(4, 6), extern=True)
    assert externs(lowered.graph)


def test_views_are_made_once() -> None:
    lowered = trace_and_lower(lambda x: (torch.mm(x.t(), x), torch.mm(x.t(), x + 1)), (torch.randn(3, 4),))
    assert sum(isinstance(n, View) for n in lowered.graph.nodes) == 1


@pytest.mark.parametrize("offset", [0, 1, -2, 3])
def test_a_diagonal_is_replaced(offset: int) -> None:
    x = torch.randn(3, 2, 5)
    for dims in ((0, 2), (2, 0), (1, -1)):
        update = torch.randn_like(x.diagonal(offset, *dims))

        def replaced(a: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = aten.diagonal_scatter(a, s, offset, *dims)  # noqa: B023  called in this round
            return result

        assert_as_eager(replaced, x, update)


def test_operands_without_dimensions() -> None:
    number, zero = torch.tensor(2.5), torch.tensor(0)
    x = torch.randn(4)
    assert_as_eager(lambda a, i: (aten.gather(a, 0, i), aten.index_select(a, 0, i)), number, zero)
    assert_as_eager(lambda a, i: (aten.gather(a, 0, i), aten.index_select(a, -1, i)), number, zero[None])
    assert_as_eager(lambda a, i: (aten.gather(a, 0, i + 2), aten.index_select(a, 0, i + 3)), x, zero)
    assert_as_eager(lambda a: (a.cumsum(0), a.cumprod(-1), a.logcumsumexp(0)), number)
    assert_as_eager(lambda a: (a.cumsum(0), a.cumprod(1)), torch.ones(0, 3))
    assert_as_eager(lambda a: a.cumsum(0), torch.tensor(True))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
def test_gathers_and_scatters_at_no_positions_are_those_of_eager(shape: tuple[int, ...]) -> None:
    x, none = torch.randn(5), torch.empty(shape, dtype=torch.int64)
    source = torch.empty(shape)
    assert_as_eager(lambda a, i: aten.gather(a, 0, i), x, none)
    assert_as_eager(lambda a, i, s: (aten.scatter(a, 0, i, s), aten.scatter_add(a, 0, i, s)), x, none, source)
    assert_as_eager(lambda a, i, s: aten.scatter_(a * 2, 0, i, s) + 1, x, none, source)
    assert_as_eager(lambda a, i: aten.scatter(a, 0, i, 2.0), x, none)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 1)])
def test_index_add_of_another_shape_is_left_to_aten(shape: tuple[int, ...]) -> None:
    inputs = (torch.zeros(3, 2), torch.tensor([0, 2]), torch.ones(shape))
    lowered = trace_and_lower(lambda a, i, s: aten.index_add(a, 0, i, s), inputs)
    assert externs(lowered.graph) == ["aten.index_add.default"]


def test_index_add_checks_sizes_that_are_unknown() -> None:
    inputs = (torch.zeros(3, 7), torch.tensor([0, 2]), torch.ones(2, 5))
    lowered = trace_and_lower(lambda a, i, s: aten.index_add(a, 0, i, s), inputs, mode="symbolic")
    asserted = [node for node in lowered.graph.nodes if isinstance(node, AssertSize)]
    assert [node.relation for node in asserted] == ["eq"]
    assert externs(lowered.graph) == []
