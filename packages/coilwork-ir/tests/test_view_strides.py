"""Views of memory that is laid out anew show the same elements, or are said to be impossible."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, symbol
from coilwork_ir.loops.layouts import ViewsOf, make_nested_strides, remake_view
from coilwork_ir.loops.text import parse_graph


def buffer(shape: tuple[Expr | int, ...], strides: tuple[Expr | int, ...] | None = None) -> Buffer:
    extents = tuple(as_expr(e) for e in shape)
    made = make_contiguous_strides(extents) if strides is None else tuple(as_expr(s) for s in strides)
    return Buffer(name="b", dtype=DType.F32, shape=extents, strides=made)


def numbers(values: tuple[Expr, ...]) -> tuple[int, ...]:
    found = tuple(as_int(v) for v in values)
    assert None not in found
    return tuple(v for v in found if v is not None)


def places(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> list[int]:
    return [
        offset + sum(i * s for i, s in zip(index, strides, strict=True))
        for index in product(*map(range, shape))
    ]


def random_view(rng: Random, shape: list[int]) -> tuple[list[int], list[int], int]:
    """A chain of slices, splits, merges and permutations of dense memory: shape, strides and offset."""
    strides = list(numbers(make_contiguous_strides(tuple(as_expr(e) for e in shape))))
    offset = 0
    for _ in range(rng.randint(1, 5)):
        d = rng.randrange(len(shape))
        match rng.choice(("slice", "split", "merge", "swap", "one", "expand")):
            case "slice" if shape[d] > 2:
                start, step = rng.randint(0, 1), rng.choice((1, 1, 2))
                offset += start * strides[d]
                shape[d] = (shape[d] - start + step - 1) // step - rng.randint(0, 1)
                strides[d] *= step
            case "split":
                parts = [n for n in range(2, shape[d]) if shape[d] % n == 0]
                if parts:
                    inner = rng.choice(parts)
                    shape[d : d + 1] = [shape[d] // inner, inner]
                    strides[d : d + 1] = [strides[d] * inner, strides[d]]
            case "merge" if d + 1 < len(shape) and strides[d] == strides[d + 1] * shape[d + 1]:
                shape[d : d + 2] = [shape[d] * shape[d + 1]]
                strides[d : d + 2] = [strides[d + 1]]
            case "swap":
                e = rng.randrange(len(shape))
                shape[d], shape[e] = shape[e], shape[d]
                strides[d], strides[e] = strides[e], strides[d]
            case "one":
                shape.insert(d, 1)
                strides.insert(d, rng.randint(1, 9))
            case "expand" if shape[d] == 1:
                shape[d], strides[d] = 3, 0
            case _:
                pass
    return shape, strides, offset


@pytest.mark.parametrize("seed", range(8))
def test_views_show_the_same_elements(seed: int) -> None:
    rng = Random(seed)
    remade = 0
    for _ in range(150):
        base = [rng.choice((1, 2, 3, 4, 6, 8)) for _ in range(rng.randint(1, 4))]
        source = buffer(tuple(base))
        shape, strides, offset = random_view(rng, base.copy())
        order = list(range(len(base)))
        rng.shuffle(order)
        laid_out = make_nested_strides(source.shape, tuple(order))
        found = remake_view(buffer(tuple(shape), tuple(strides)), as_expr(offset), source, laid_out)
        if found is None:
            continue
        remade += 1
        old = places(tuple(base), numbers(source.strides), 0)
        new = places(tuple(base), numbers(laid_out), 0)
        moved = dict(zip(old, new, strict=True))
        made, start = found
        shown = places(tuple(shape), numbers(made), as_int(start) or 0)
        assert shown == [moved[place] for place in places(tuple(shape), tuple(strides), offset)]
    assert remade > 60


def test_the_captured_strides_are_found_again() -> None:
    for seed in range(200):
        rng = Random(seed)
        base = [rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.randint(1, 4))]
        source = buffer(tuple(base))
        shape, strides, offset = random_view(rng, base.copy())
        view = buffer(tuple(shape), tuple(strides))
        found = remake_view(view, as_expr(offset), source, source.strides)
        if found is not None:
            made, start = found
            assert places(tuple(shape), numbers(made), as_int(start) or 0) == places(
                tuple(shape), tuple(strides), offset
            )


def test_rows_that_are_merged_must_follow_each_other() -> None:
    source, view = buffer((2, 40, 48)), buffer((80, 48))
    zero = as_expr(0)
    assert remake_view(view, zero, source, numbers_as_strides(48, 96, 1)) is None
    assert remake_view(view, zero, source, numbers_as_strides(40, 1, 80)) == (numbers_as_strides(1, 80), zero)


def numbers_as_strides(*values: int) -> tuple[Expr, ...]:
    return tuple(as_expr(v) for v in values)


def test_open_sizes_are_matched_by_name() -> None:
    n = symbol("n", lo=2)
    source, view = buffer((n, 40, 48)), buffer((40 * n, 6, 8), (48, 8, 1))
    found = remake_view(view, as_expr(0), source, (as_expr(40), as_expr(1), 40 * n))
    assert found == ((as_expr(1), 320 * n, 40 * n), as_expr(0))
    assert remake_view(view, as_expr(0), source, (as_expr(1), n, 40 * n)) is None


def test_views_of_views_and_of_updated_memory() -> None:
    graph = parse_graph("""
    graph @g {
      input %x: f32[4, 6]
      %a: f32[4, 6] = pointwise [i0: 4, i1: 6] {
        t0 = load %x[i0, i1] : f32
        yield t0
      }
      %b: f32[4, 6] = pointwise [i0: 4, i1: 6] into %a {
        t0 = load %x[i0, i1] : f32
        yield t0
      }
      %v: f32[6, 4]{1, 6} = view %b offset `0`
      %w: f32[2, 4]{2, 6} = view %v offset `1`
      %bits: i32[4, 6] = view %b offset `0`
      return (%x)
    }
    """)
    views = ViewsOf(graph)
    columns = numbers_as_strides(1, 4)
    assert views.strides_of("b", columns) == columns
    assert views.strides_of("v", columns) == numbers_as_strides(4, 1)
    assert views.remake("w", columns) == (numbers_as_strides(8, 1), as_expr(4))
    assert views.strides_of("bits", columns) is None
