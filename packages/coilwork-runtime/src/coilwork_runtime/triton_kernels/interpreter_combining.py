"""Reductions and scans of Triton's interpreter as trees over whole blocks.

As it comes (Triton 3.6, 3.7), the interpreter calls a combine function once per element, in Python, for all
but a few that it knows. Here, as on a GPU, a call combines all pairs of a level: some log2(length) calls for
a reduction, twice that for a scan. Neighbours are combined, the earlier as the first operand, so combine
functions need be associative only, not commutative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Arrays = Sequence[Any]
"""One NumPy array for each operand that is joined, all of one shape, with the combined axis first."""

Combine = Callable[[Arrays, Arrays], Arrays]


def reduce_blocks(operation: Any, blocks: Sequence[Any]) -> list[Any]:
    """Return what `ReduceOps.generic_reduce` gives, but for the order in which elements are combined.

    Takes a `ReduceOps` and `tl.tensor`s of one shape whose extents are powers of two; `axis=None` is the axis
    of all elements.
    """
    import numpy

    axis, shape = operation.axis, blocks[0].handle.data.shape
    arrays = [
        block.handle.data.flatten() if axis is None else numpy.moveaxis(block.handle.data, axis, 0)
        for block in blocks
    ]
    combine = _whole_levels(operation, blocks)
    while len(arrays[0]) > 1:
        arrays = list(combine([x[0::2] for x in arrays], [x[1::2] for x in arrays]))
    results = [x[0] for x in arrays]
    if operation.keep_dims:
        kept = (
            [1] * len(shape)
            if axis is None
            else [1 if k == axis % len(shape) else n for k, n in enumerate(shape)]
        )
        results = [x.reshape(kept) for x in results]
    return _tensors(operation, results, blocks)


def scan_blocks(operation: Any, blocks: Sequence[Any]) -> list[Any]:
    """Return what `ScanOps.generic_scan` gives, but for the order in which elements are combined.

    Takes a `ScanOps` and `tl.tensor`s of one shape whose extents are powers of two. Who calls turns reversed
    scans around.
    """
    import numpy

    arrays = [numpy.moveaxis(block.handle.data, operation.axis, 0) for block in blocks]
    results = _scanned(arrays, _whole_levels(operation, blocks))
    return _tensors(
        operation, [numpy.ascontiguousarray(numpy.moveaxis(x, 0, operation.axis)) for x in results], blocks
    )


def _scanned(arrays: Arrays, combine: Combine) -> Arrays:
    """Inclusive prefixes along the first axis: those of the pairs are every second one (Ladner and Fischer,
    1980).
    """
    import numpy

    if len(arrays[0]) == 1:
        return arrays
    firsts = [x[0::2] for x in arrays]
    at_seconds = _scanned(combine(firsts, [x[1::2] for x in arrays]), combine)
    # before the first pair there is nothing: it meets the last, for blocks must stay powers of two, and is
    # put back below
    at_firsts = combine([numpy.roll(x, 1, axis=0) for x in at_seconds], firsts)
    results = []
    for given, first, second in zip(arrays, at_firsts, at_seconds, strict=True):
        result = numpy.empty_like(given)
        result[0::2], result[1::2] = first, second
        result[0] = given[0]
        results.append(result)
    return results


def _whole_levels(operation: Any, blocks: Sequence[Any]) -> Combine:
    """The combine function of `operation` on arrays of any length, in the types of `blocks`."""
    import numpy
    import triton.language as tl

    def combine(left: Arrays, right: Arrays) -> Arrays:
        found = operation.combine_fn.fn(
            *_tensors(operation, left, blocks), *_tensors(operation, right, blocks)
        )
        parts = found if isinstance(found, tuple) else (found,)
        # a combine function may also return a plain number
        data = [part.handle.data if isinstance(part, tl.tensor) else part for part in parts]
        return [
            numpy.broadcast_to(numpy.asarray(x, dtype=y.dtype), y.shape)
            for x, y in zip(data, left, strict=True)
        ]

    return combine


def _tensors(operation: Any, arrays: Arrays, like: Sequence[Any]) -> list[Any]:
    """The arrays, or single numbers, as tensors with the element types of `like`."""
    return [operation.to_tensor(x, block.dtype) for x, block in zip(arrays, like, strict=True)]
