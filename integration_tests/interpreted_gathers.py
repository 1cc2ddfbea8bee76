"""Rows looked up at positions from data, and scattered or looked up again: beside eager, positions out of
range included.

Run as a process, which prints what is wrong with each case as a line of JSON, kernels are run by Triton's
interpreter.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from benchmarks.backends import resolve_backend

Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Given = tuple[Tensor, Tensor, Tensor, Tensor]
NODES, EDGES, WIDTH = 7, 40, 24
# In 32 bits, too, an element of such a row lies outside of all that a process has mapped.
_FAR: Final = 0x2AAA_AAAA


def _index_add(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def _weighted(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x.index_select(0, src) * w[:, None])


def _differences(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, (x[src] - x[dst]).relu())


def _index_put(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return torch.ones_like(x).index_put((dst,), x[src], accumulate=True)


def _stored(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    # all rows that go to one place are alike
    return torch.ones_like(x).index_put((dst,), x[dst].neg())


def _scatter_add(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(x).scatter_add(0, dst[:, None].expand(-1, x.shape[1]), x[src])


def _largest(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return x.scatter_reduce(0, dst[:, None].expand(-1, x.shape[1]), x[src].exp(), "amax")


def _mean(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return x.scatter_reduce(0, dst[:, None].expand(-1, x.shape[1]), x[src], "mean", include_self=False)


def _elements(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return torch.zeros_like(x[:, 0]).scatter_reduce(0, dst, x[:, 1].contiguous()[src], "amin")


def _integers(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    counts = (x * 8).long()
    return torch.zeros_like(counts).index_add(0, dst, counts[src])


def _twice(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return x[src].tanh()[dst]


def _ends(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x[src], x[dst], w[:, None].expand(-1, 3)], 1)


def _neighbours(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    rows = torch.nn.functional.pad(x[src], (0, 0, 1, 2))
    return rows[1:] - rows[:-1]


def _backwards(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    return x[src].flip(0)


def _row_sums_too(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    rows = x[src]
    return torch.zeros_like(x).index_add(0, dst, rows) + rows.sum(1).sum()


def _gradient(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (found,) = torch.autograd.grad((_weighted(x, src, dst, w) ** 2).sum(), x)
    return found


CASES: Final = MappingProxyType(
    {
        "index_add": _index_add,
        "weighted": _weighted,
        "differences": _differences,
        "index_put": _index_put,
        "stored": _stored,
        "scatter_add": _scatter_add,
        "largest": _largest,
        "mean": _mean,
        "elements": _elements,
        "integers": _integers,
        "twice": _twice,
        "ends": _ends,
        "neighbours": _neighbours,
        "backwards": _backwards,
        "row sums too": _row_sums_too,
        "gradient": _gradient,
    }
)


def inputs(edges: int = EDGES) -> Given:
    """Rows, where edges come from and lead to, their weights."""
    draw = torch.Generator().manual_seed(edges)
    x, w = torch.randn(NODES, WIDTH, generator=draw), torch.randn(edges, generator=draw)
    src, dst = (torch.randint(0, NODES, (edges,), generator=draw) for _ in range(2))
    return x, src, dst, w


def _raised(call: Callable[..., object], given: Given) -> BaseException | None:
    try:
        call(*given)
    except (IndexError, RuntimeError) as error:
        return error
    return None


def compared(function: Function, *, dynamic: bool) -> None:
    """Fail unless `function` gives what eager does, for other numbers of edges too, and refuses what it
    refuses.
    """
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=resolve_backend("coilwork"), dynamic=dynamic)
    for edges in (EDGES, EDGES - 9, 0) if dynamic else (EDGES,):
        given = inputs(edges)
        torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-4, atol=1e-4)
    for bad in _with_one_changed():
        refused, got = _raised(function, bad), _raised(compiled, bad)
        if refused is None:
            assert got is None, got
            torch.testing.assert_close(compiled(*bad), function(*bad), rtol=1e-4, atol=1e-4)
        else:
            assert got is not None, f"not refused: {refused}"
            assert "index out of range in" in str(got), got


def _with_one_changed() -> Iterator[Given]:
    """Inputs with a position that counts from the end, or lies beyond it, or before the beginning, or where
    no memory is.
    """
    for value in (-1, NODES, -NODES - 1, _FAR, -_FAR):
        for which in (1, 2):
            given = list(inputs())
            given[which][3] = value
            x, src, dst, w = given
            yield x, src, dst, w


def verdict(function: Function, *, dynamic: bool) -> str:
    """What is wrong with `function`; "" if nothing is."""
    try:
        compared(function, dynamic=dynamic)
    except Exception:  # noqa: BLE001  the test shows it
        return traceback.format_exc(limit=-3)
    return ""


if __name__ == "__main__":
    print(
        json.dumps(
            {
                f"{name}, {'dynamic' if dynamic else 'static'}": verdict(function, dynamic=dynamic)
                for name, function in CASES.items()
                for dynamic in (False, True)
            }
        )
    )
