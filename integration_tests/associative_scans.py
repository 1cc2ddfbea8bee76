"""Programs with associative scans, beside a loop in Python: on CPU tensors, for C++ and for Triton's
interpreter.

Torch's function refuses CPU tensors where it is asked for `pointwise` combining, so the operator is called as
it does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import Tensor

from benchmarks.backends import compile_with, resolve_backend

Combining = Callable[..., list[Tensor]]
Scanning = Callable[..., list[Tensor]]


def by_operator(
    function: Combining, rows: Sequence[Tensor], dim: int, *, reverse: bool = False
) -> list[Tensor]:
    """Scanned by the operator."""
    moved = [row.movedim(dim, 0) for row in rows]
    if reverse:
        moved = [row.flip([0]) for row in moved]
    found: list[Tensor] = torch.ops.higher_order.associative_scan(function, moved, ())
    if reverse:
        found = [result.flip([0]) for result in found]
    return [result.movedim(0, dim) for result in found]


def by_loop(function: Combining, rows: Sequence[Tensor], dim: int, *, reverse: bool = False) -> list[Tensor]:
    """Scanned one point after the other."""
    moved = [row.movedim(dim, 0).flip(0) if reverse else row.movedim(dim, 0) for row in rows]
    points = [[row[0] for row in moved]]
    for k in range(1, moved[0].shape[0]):
        points.append(function(*points[-1], *(row[k] for row in moved)))
    stacked = [torch.stack(result) for result in zip(*points, strict=True)]
    return [(result.flip(0) if reverse else result).movedim(0, dim) for result in stacked]


def recurrence(a: Tensor, b: Tensor, later_a: Tensor, later_b: Tensor) -> list[Tensor]:
    """Two steps of `h = a * h + b` as one."""
    return [a * later_a, later_a * b + later_b]


def state_space(scan: Scanning, x: Tensor, gate: Tensor, *, dim: int, reverse: bool) -> tuple[Tensor, ...]:
    """What feeds and follows the scan is computed with it."""
    decay = gate.sigmoid() if gate.is_floating_point() else gate % 3
    product, state = scan(recurrence, [decay, x * 2], dim, reverse=reverse)
    return state * x + 1, product


def extremes(scan: Scanning, x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
    """The largest so far, and where it is."""

    def later(a: Tensor, at: Tensor, b: Tensor, other: Tensor) -> list[Tensor]:
        return [torch.maximum(a, b), torch.where(b >= a, other, at)]

    return tuple(scan(later, [x, places], 1))


def followed(scan: Scanning, x: Tensor) -> tuple[Tensor, ...]:
    """Sums and a softmax of what was scanned."""
    (state,) = scan(lambda a, b: [torch.logaddexp(a, b)], [x], 1, reverse=True)
    return state.sum(1), state.softmax(0)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of which no product of many is large."""
    found = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    return (found * (1 if dtype.is_floating_point else 4)).to(dtype)


def compared(function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor, dynamic: bool = False) -> None:
    """Fail unless Coilwork gives what a loop gives; where floats are narrow, what a loop over wider ones
    gives.
    """
    given = partial(function, by_operator)
    compiled = (
        torch.compile(given, backend=resolve_backend("coilwork"), dynamic=True)
        if dynamic
        else compile_with(given, "coilwork")
    )
    got = compiled(*inputs)
    narrow = inputs[0].dtype in (torch.bfloat16, torch.float16)
    wanted = function(by_loop, *(x.float() if narrow else x for x in inputs))
    for mine, its in zip(got, wanted, strict=True):
        if narrow:
            assert mine.dtype is inputs[0].dtype
            torch.testing.assert_close(mine.float(), its, rtol=3e-2, atol=3e-2)
        else:
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


def recurrences(dtype: torch.dtype) -> None:
    for dim in range(3):
        for reverse in (False, True):
            torch._dynamo.reset()
            function = partial(state_space, dim=dim, reverse=reverse)
            compared(function, drawn(3, 7, 20, dtype=dtype), drawn(3, 7, 20, dtype=dtype))


def strided() -> None:
    x, gate = drawn(9, 6), drawn(6, 18)
    compared(partial(state_space, dim=1, reverse=False), x.t(), gate[:, ::2])
    torch._dynamo.reset()
    compared(partial(state_space, dim=0, reverse=True), x.t(), gate[:, ::2])


def long_rows() -> None:
    for shape, dim in (((2, 9001), 1), ((600, 33), 0)):
        for reverse in (False, True):
            torch._dynamo.reset()
            compared(partial(state_space, dim=dim, reverse=reverse), drawn(*shape), drawn(*shape))


def few_points() -> None:
    for shape in ((1, 4), (4, 1), (1, 1)):
        torch._dynamo.reset()
        compared(partial(state_space, dim=1, reverse=True), drawn(*shape), drawn(*shape))


def any_sizes() -> None:
    function = partial(state_space, dim=1, reverse=False)
    for length in (5, 40, 3):
        compared(function, drawn(3, length, 4), drawn(3, length, 4), dynamic=True)


CASES: Final[Mapping[str, Callable[[], None]]] = {
    "f32": partial(recurrences, torch.float32),
    "f64": partial(recurrences, torch.float64),
    "bf16": partial(recurrences, torch.bfloat16),
    "int64": partial(recurrences, torch.int64),
    "strided": strided,
    "long rows": long_rows,
    "few points": few_points,
    "any sizes": any_sizes,
    "values of two types": lambda: compared(extremes, drawn(5, 30), torch.arange(30).expand(5, 30)),
    "what follows": lambda: compared(followed, drawn(5, 30)),
}
