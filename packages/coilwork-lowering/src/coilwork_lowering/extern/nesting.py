"""Results of operators that hold lists: one by one for the program, in their lists for the graph that was
captured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from coilwork_ir.buffers import ResultPath
from coilwork_lowering.building.values import Value


def placed_results(result: Any) -> tuple[tuple[ResultPath, Any], ...]:
    """Every result that is no list, and where it lies in `result`: a bare one at `()`, and nothing at all
    nowhere.
    """
    return () if result is None else tuple(_walk_results(result, ()))


def _walk_results(result: Any, path: ResultPath) -> Iterator[tuple[ResultPath, Any]]:
    if not isinstance(result, list | tuple):
        yield path, result
        return
    for number, item in enumerate(result):
        yield from _walk_results(item, (*path, number))


def nesting_paths(result: Any) -> tuple[ResultPath, ...]:
    """The places of the results in `result`; none if a number alone says where each lies."""
    paths = tuple(path for path, _ in placed_results(result))
    listed = isinstance(result, list | tuple) and any(isinstance(item, list | tuple) for item in result)
    return paths if listed else ()


def as_returned(result: Any, values: Sequence[Value]) -> Value:
    """`values`, one for each of `placed_results(result)`, in lists as those are."""
    remaining = iter(values)
    return None if result is None else _fill_lists(result, remaining)


def _fill_lists(result: Any, values: Iterator[Value]) -> Value:
    if isinstance(result, list | tuple):
        return tuple(_fill_lists(item, values) for item in result)
    return next(values)
