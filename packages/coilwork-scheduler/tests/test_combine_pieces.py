"""Reductions in pieces give what they gave whole: every kind, type and odd value, by the reference
interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from known_values import tensors_of

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, evaluate, get_extent, symbol
from coilwork_ir.loops import Graph, Reduce
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.ops import REDUCE_OPS, ReduceKind
from coilwork_ir.scalar import Scalar, const, load, op
from coilwork_scheduler.splitting.combine_pieces import reduce_in_pieces
from coilwork_scheduler.splitting.pieces import cut_axes

TORCH = {
    DType.F64: torch.float64,
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I64: torch.int64,
    DType.I32: torch.int32,
    DType.I8: torch.int8,
    DType.U8: torch.uint8,
    DType.BOOL: torch.bool,
}
FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
INTEGERS = (DType.I64, DType.I32, DType.I8, DType.U8)
TYPES = {
    "any": (DType.BOOL,),
    "all": (DType.BOOL,),
    "welford": FLOATS,
    "online_softmax": FLOATS,
    "sum": FLOATS + INTEGERS,
    "prod": FLOATS + INTEGERS,
    "xor_sum": INTEGERS,
}
CASES = [(kind, dtype) for kind in REDUCE_OPS for dtype in TYPES.get(kind, tuple(TORCH))]
ODD = [math.nan, math.inf, -math.inf]
TOLERANCE = {DType.F64: 1e-10, DType.F32: 2e-5, DType.F16: 5e-3, DType.BF16: 4e-2}


def buffer(name: str, extents: Sequence[Expr | int], dtype: DType) -> Buffer:
    shape = tuple(as_expr(e) for e in extents)
    return Buffer(name=name, dtype=dtype, shape=shape, strides=make_contiguous_strides(shape))


def whole_and_pieces(
    kind: ReduceKind,
    dtype: DType,
    kept: Sequence[Expr | int],
    axes: Sequence[Expr | int],
    *,
    wanted: float,
    order: Sequence[int] | None = None,
    hint: int = 8,
    unwanted: Sequence[int] = (),
    twice: bool = False,
) -> list[Graph]:
    """A graph of one reduction, and the graph of its pieces; none of both if nothing is cut."""
    ranges = tuple(symbol(f"i{k}", extent=as_expr(e)) for k, e in enumerate(kept))
    along = tuple(symbol(f"r{k}", extent=as_expr(e)) for k, e in enumerate(axes))
    result = DType.I64 if kind in ("argmin", "argmax") else dtype
    outputs = tuple(
        None if k in unwanted else buffer(f"y{k}", kept, result) for k in range(REDUCE_OPS[kind].outputs)
    )
    body: Scalar = load("x", (*ranges, *along), dtype)
    if twice:
        body = op("mul", body, const(2, dtype))
    node = Reduce(outputs=outputs, kind=kind, ranges=ranges, axes=along, body=body)
    sizes = {axis: evaluate(get_extent(axis), {"s0": hint}) for axis in along}
    ordered = along if order is None else tuple(along[k] for k in order)
    positions = kind in ("argmin", "argmax")
    pieces = cut_axes(along, along if positions else ordered, sizes, wanted=wanted, skip=not positions)
    if pieces is None:
        return []
    numbers = count()
    nodes = reduce_in_pieces(node, pieces, lambda name: f"{name}_{next(numbers)}")
    graphs = []
    for made in ((node,), nodes):
        graph = Graph(
            name="g",
            symbols=tuple({s for e in axes if not isinstance(e, int) for s in e.free_symbols}),
            inputs=(buffer("x", (*kept, *axes), dtype),),
            nodes=made,
            outputs=tuple(Ref(b.name) for b in outputs if b is not None),
        )
        verify_graph(graph)
        graphs.append(graph)
    return graphs


def values_of(seed: int, shape: Sequence[int], dtype: DType, *, odd: Sequence[float] = ()) -> torch.Tensor:
    """Small numbers with many ties; floats have the `odd` values beside them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, 5, shape, generator=generator)
    if dtype is DType.BOOL:
        return drawn % 2 == 0
    if not dtype.is_float:
        return drawn.to(TORCH[dtype])
    found = (drawn - 2).to(torch.float64) * 0.75
    if odd:
        chance = torch.rand(shape, generator=generator)
        for k, value in enumerate(odd):
            found[(chance > 0.9 - 0.1 * k) & (chance <= 1 - 0.1 * k)] = value
    return found.to(TORCH[dtype])


def agree(graphs: Sequence[Graph], x: torch.Tensor, dtype: DType, *, tolerance: float | None = None) -> None:
    whole, split = (tensors_of(interpret_graph(graph, [x.clone()])) for graph in graphs)
    for one, other in zip(whole, split, strict=True):
        if one.dtype.is_floating_point:
            close = TOLERANCE[dtype] if tolerance is None else tolerance
            torch.testing.assert_close(other, one, rtol=close, atol=close, equal_nan=True)
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=lambda value: getattr(value, "text", value))
@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=2),
    st.lists(st.integers(1, 11), min_size=1, max_size=3),
    st.floats(1.5, 12),
    st.booleans(),
    st.sampled_from(([], ODD, [math.inf], [-math.inf])),
    st.integers(0, 1 << 16),
)
def test_pieces_give_what_the_whole_gives(
    kind: ReduceKind,
    dtype: DType,
    kept: list[int],
    axes: list[int],
    wanted: float,
    backwards: bool,
    odd: list[float],
    seed: int,
) -> None:
    order = range(len(axes))[::-1] if backwards else None
    graphs = whole_and_pieces(kind, dtype, kept, axes, wanted=wanted, order=order)
    if graphs:
        agree(graphs, values_of(seed, (*kept, *axes), dtype, odd=odd), dtype)


@pytest.mark.parametrize("kind", sorted(REDUCE_OPS))
@settings(max_examples=5, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.floats(1.5, 20), st.booleans(), st.integers(0, 1 << 16))
def test_sizes_unknown_when_cut(
    kind: ReduceKind, hint: int, size: int, wanted: float, odd: bool, seed: int
) -> None:
    """Also where the last pieces have no points at all."""
    dtype = TYPES.get(kind, FLOATS)[0]
    s0 = symbol("s0", lo=1)
    graphs = whole_and_pieces(kind, dtype, (2,), (s0, 3), wanted=wanted, hint=hint, order=(0, 1))
    if graphs:
        agree(graphs, values_of(seed, (2, size, 3), dtype, odd=ODD if odd else ()), dtype)


@pytest.mark.parametrize("kind", ["welford", "online_softmax"])
@pytest.mark.parametrize("unwanted", [0, 1])
@pytest.mark.parametrize("length", [48, 47])
def test_one_result_of_two(kind: ReduceKind, unwanted: int, length: int) -> None:
    graphs = whole_and_pieces(kind, DType.F32, (3,), (length,), wanted=6, unwanted=(unwanted,))
    agree(graphs, values_of(1, (3, length), DType.F32), DType.F32)


@pytest.mark.parametrize("length", [4096, 4099])
def test_variance_beside_a_large_mean(length: int) -> None:
    """Sums of squares minus squares of sums would leave nothing of the variance."""
    graphs = whole_and_pieces("welford", DType.F32, (), (length,), wanted=32)
    x = torch.randn(length, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1e4
    mean, squares = tensors_of(interpret_graph(graphs[1], [x.float()]))
    rounded = x.float().double()
    assert mean.item() == pytest.approx(rounded.mean().item(), rel=1e-6)
    assert squares.item() == pytest.approx(((rounded - rounded.mean()) ** 2).sum().item(), rel=1e-3)


@pytest.mark.parametrize("kind", ["argmin", "argmax"])
@pytest.mark.parametrize("fill", [0.0, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("length", [24, 23])
def test_of_equal_extremes_the_first_wins(kind: ReduceKind, fill: float, length: int) -> None:
    graphs = whole_and_pieces(kind, DType.F32, (2,), (length,), wanted=6)
    x = torch.full((2, length), fill)
    assert tensors_of(interpret_graph(graphs[1], [x]))[0].tolist() == [0, 0]
    x = torch.zeros(2, length)
    x[0, [9, 17]] = math.nan
    x[1, [11, 13]] = -1.0 if kind == "argmin" else 1.0
    assert tensors_of(interpret_graph(graphs[1], [x]))[0].tolist() == [9, 11]


@pytest.mark.parametrize("length", [24, 23])
def test_exponentials_of_rows_with_infinitely_small_values(length: int) -> None:
    graphs = whole_and_pieces("online_softmax", DType.F32, (3,), (length,), wanted=6)
    x = torch.full((3, length), -math.inf)
    x[1, 7] = 2.0
    x[2, 5] = math.inf
    agree(graphs, x, DType.F32)
    top, total = tensors_of(interpret_graph(graphs[1], [x]))
    assert top.tolist() == [-math.inf, 2.0, math.inf]
    assert total[1].item() == 1.0 and total.isnan().tolist() == [True, False, True]


def test_narrow_sums_are_carried_wide_between_the_two() -> None:
    """Pieces' sums of 257 are no bf16 numbers."""
    graphs = whole_and_pieces("sum", DType.BF16, (), (257 * 12,), wanted=12, twice=True)
    first = graphs[1].nodes[0]
    assert isinstance(first, Reduce) and [b.dtype for b in first.outputs if b is not None] == [DType.F32]
    x = torch.full((257 * 12,), 0.5, dtype=torch.bfloat16)
    (found,) = tensors_of(interpret_graph(graphs[1], [x]))
    assert found.item() == torch.tensor(257.0 * 12, dtype=torch.bfloat16).item()
