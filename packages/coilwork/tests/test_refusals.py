"""Values that eager refuses, at run time: compiled programs raise the same errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork.backend import backend

Program = Callable[[Tensor, Tensor], object]


def refuse_alike(function: Program, values: Tensor, *others: Tensor, dynamic: bool = False) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, options={"strict": True}, dynamic=dynamic)
    with pytest.raises((IndexError, RuntimeError)) as refused:
        function(values, *others)
    with pytest.raises((IndexError, RuntimeError)) as found:
        compiled(values, *others)
    assert found.type is refused.type


POSITIONS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "index_add": lambda a, k: a.index_add(0, k, a[:2]),
        "index_add of a row": lambda a, k: a[:, 0].index_add(0, k, a[:2, 0]),
        "index_add in 16 bits": lambda a, k: a.half().index_add(0, k, a[:2].half()),
        "index_add of booleans": lambda a, k: (a > 0).index_add(0, k, a[:2] > 0),
        "index_copy": lambda a, k: a.index_copy(0, k, a[:2]),
        "index_copy of complex numbers": lambda a, k: (a * 1j).index_copy(0, k, a[:2] * 1j),
        "index_reduce": lambda a, k: a.index_reduce(0, k, a[:2], "prod"),
        "index_select": lambda a, k: a.index_select(0, k),
        "index_select along rows": lambda a, k: a.index_select(1, k),
        "cross_entropy": lambda a, k: F.cross_entropy(a[:2], k),
        "nll_loss": lambda a, k: F.nll_loss(a[:2], k, reduction="none"),
        "gather": lambda a, k: a.gather(0, k[:, None]),
    }
)


@pytest.mark.parametrize("position", [-1, 7])
@pytest.mark.parametrize("what", POSITIONS)
def test_positions_out_of_bounds_are_refused_as_by_eager(what: str, position: int) -> None:
    refuse_alike(POSITIONS[what], torch.randn(5, 5), torch.tensor([0, position]))


def test_more_is_chosen_than_there_is() -> None:
    refuse_alike(lambda a, k: a.masked_scatter(a == a, a[k]), torch.randn(5), torch.tensor([0, 1]))


def test_negative_positions_that_eager_takes() -> None:
    torch._dynamo.reset()
    values, last = torch.randn(5, 3), torch.tensor([0, -1])

    def function(a: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return a.index_fill(0, k, 2.0), a.index_put((k,), a[:2], accumulate=True)

    torch.testing.assert_close(torch.compile(function, backend=backend)(values, last), function(values, last))


DIVISIONS: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "floor": lambda a, b: a // b,
        "remainder": lambda a, b: (a % b) + 1,
        "remainder of a number": lambda a, b: a + torch.remainder(5, b),
        "fmod": lambda a, b: torch.fmod(a, b),
        "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        "in place": lambda a, b: a.clone().floor_divide_(b),
        "by a constant": lambda a, b: a // 0,
        "by a sum": lambda a, b: a // (b * 0).sum(),
        "summed": lambda a, b: (a[:, None] // b).sum(),
    }
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("what", DIVISIONS)
def test_whole_numbers_by_0(what: str, dtype: torch.dtype, dynamic: bool) -> None:
    values, divisors = torch.arange(5).to(dtype), torch.tensor([3, 1, 0, 2, 5]).to(dtype)
    refuse_alike(DIVISIONS[what], values, divisors, dynamic=dynamic)


def test_nothing_is_divided_by_0() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: (a // b, a % b), backend=backend, dynamic=True)
    for count in (3, 0):
        values, zero = torch.arange(count), torch.tensor(0 if count == 0 else 2)
        torch.testing.assert_close(compiled(values, zero), (values // zero, values % zero))


def test_floats_are_divided_by_0() -> None:
    torch._dynamo.reset()
    values, divisors = torch.tensor([1.0, -2.0, 0.0]), torch.zeros(3)
    compiled = torch.compile(lambda a, b: (a // b, a % b), backend=backend)
    torch.testing.assert_close(
        compiled(values, divisors), (values // divisors, values % divisors), equal_nan=True
    )


def of_zeros(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.long)


SOURCES: Final[Mapping[str, tuple[Program, tuple[int, ...], tuple[int, ...]]]] = MappingProxyType(
    {
        "index_add to a number": (lambda a, b: a.index_add(0, of_zeros(1), b), (), (1,)),
        "index_add of another rank": (
            lambda a, b: a.index_add(0, of_zeros(1), b),
            (5,),
            (1, 1),
        ),
        "index_add that would be expanded": (
            lambda a, b: a.index_add(0, of_zeros(2), b),
            (5, 3),
            (2, 1),
        ),
        "index_add to nothing": (
            lambda a, b: a.index_add(0, of_zeros(2), b),
            (0, 3),
            (2, 2),
        ),
        "index_reduce": (
            lambda a, b: a.index_reduce(0, of_zeros(2), b, "amax"),
            (5, 3),
            (3, 3),
        ),
        "index_fill": (lambda a, b: a.index_fill(0, b.int(), 1.0), (5, 3), (2,)),
        "bincount": (lambda a, b: torch.bincount(a.long().abs(), b), (4,), (3,)),
    }
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", SOURCES)
def test_sources_of_other_sizes(what: str, dynamic: bool) -> None:
    """Torch's meta functions take these: they are refused when they run."""
    function, size, of_source = SOURCES[what]
    refuse_alike(function, torch.randn(size), torch.randn(of_source), dynamic=dynamic)


EXTREMES: Final[Mapping[str, Callable[[Tensor], object]]] = MappingProxyType(
    {
        "max": lambda rows: rows.max(),
        "max of no numbers": lambda rows: rows.flatten().max(),
        "max along": lambda rows: rows.max(0),
        "min along, in a column": lambda rows: rows.min(0).indices.sum(),
        "amax": lambda rows: rows.amax(),
        "norm": lambda rows: torch.linalg.vector_norm(rows, float("inf"), 0),
    }
)


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("trained", [False, True])
def test_extremes_of_as_many_rows_as_data_decides(extreme: str, trained: bool) -> None:
    """The positions of extremes that are not there were written to by the backward."""

    def of_chosen(values: Tensor, chosen: Tensor) -> object:
        return EXTREMES[extreme](values[chosen])

    values = torch.arange(12.0).view(4, 3).requires_grad_(trained)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(of_chosen, backend=backend, options={"strict": True}, fullgraph=True)
        some = torch.tensor([False, True, True, False])
        torch.testing.assert_close(compiled(values, some), of_chosen(values, some))
        refuse_alike(of_chosen, values, torch.zeros(4, dtype=torch.bool))
    torch._dynamo.reset()


BAGS: Final = (
    (0, 3, 6),
    (0, 3, 8),
    (0, 5, 3),
    (0, 8, 4),
    (0, 4, 0),
    (0, 3, 9),
    (0, 9, 3),
    (1, 3, 6),
    (0, -1, 4),
    (0, 3, -1),
)


@pytest.mark.parametrize("has_end", [False, True])
@pytest.mark.parametrize("mode, padding", [("sum", None), ("mean", 0), ("max", None)])
def test_bad_offsets_of_bags_are_refused_as_by_eager(mode: str, padding: int | None, has_end: bool) -> None:
    """Offsets that go down are refused by eager's fast kernel alone, and only where the last one
    is an end.
    """

    def function(i: Tensor, w: Tensor, offsets: Tensor) -> Tensor:
        found: Tensor = F.embedding_bag(
            i, w, offsets, mode=mode, padding_idx=padding, include_last_offset=has_end
        )
        return found

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=backend, options={"strict": True})
    table, rows = torch.randn(10, 3), torch.tensor([1, 2, 3, 4, 5, 6, 7, 8])
    for numbers in BAGS:
        offsets = torch.tensor(numbers)
        try:
            wanted: Tensor | type[Exception] = function(rows, table, offsets)
        except (IndexError, RuntimeError) as error:
            wanted = type(error)
        if isinstance(wanted, Tensor):
            # of offsets that go down eager gives what lies in memory, and what is behind the end to the last
            # bag
            if numbers == (0, 3, 8) or (numbers == (0, 3, 6) and not has_end):
                torch.testing.assert_close(compiled(rows, table, offsets), wanted, msg=f"{numbers}")
            continue
        with pytest.raises((IndexError, RuntimeError)) as refused:
            compiled(rows, table, offsets)
        assert refused.type is wanted, numbers
