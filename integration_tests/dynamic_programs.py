"""Programs whose sizes come from data: a family over what unbacked symbols can do, each with inputs of
several sizes.

`TABLE` pairs a function with the argument tuples that one graph, compiled once, must serve. What a function
promises about its sizes it says by `torch._check`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch._higher_order_ops import scan
from torch._higher_order_ops.map import map as map_rows

X: Final = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """`graphs`: how many graphs its arguments may take; more than one where Dynamo itself specialises."""

    run: Callable[..., object]
    arguments: tuple[tuple[Tensor, ...], ...]
    graphs: int = 1


def _int(value: Tensor, low: int, high: int) -> int:
    number = value.item()
    torch._check(number >= low)
    torch._check(number <= high)
    return int(number)


def nonzero(x: Tensor) -> Tensor:
    return torch.nonzero(x > 0).float().sum(1)


def masked_select(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.masked_select(x, x > 0)
    return y * 2, y.sum(), y.softmax(0)


def boolean_index(x: Tensor) -> Tensor:
    y = x[x > 0.3]
    return torch.cat([y, y + 1])


def nothing_selected(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x[x > 100.0]
    return y * 2, y.sum(), torch.cat([y, x.reshape(-1)])


def shapes_from_items(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    k = _int(n, 2, 1000)
    return torch.zeros(k) + x.sum(), torch.arange(k)


def narrow(x: Tensor, n: Tensor) -> Tensor:
    return x.narrow(0, _int(n, 0, x.size(0) - 2), 2) + 1


def select(x: Tensor, n: Tensor) -> Tensor:
    return x.select(0, _int(n, 0, x.size(0) - 1)) * 2


def slices(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    k = _int(n, 0, x.size(0))
    return x[:k].sum(0), x[k:].sum(0)


def storage_offset(x: Tensor, n: Tensor) -> Tensor:
    return torch.as_strided(x, (3,), (2,), _int(n, 0, 4)) * 2


def reshapes(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x[: _int(n, 2, x.size(0))]
    return y.reshape(-1) + 1, y.t().reshape(-1), y.contiguous().view(-1)


def columns_reshaped(x: Tensor, n: Tensor) -> Tensor:
    # whether the narrowed columns are contiguous depends on data
    k = _int(n, 1, x.size(1))
    return x[:, :k].reshape(-1) * 2


def repeated(x: Tensor) -> tuple[Tensor, Tensor]:
    r = torch.repeat_interleave(x, (x[:, 0] > 0).long() + 1, dim=0)
    return r.sum(0), r * 2


def unique(x: Tensor) -> tuple[Tensor, Tensor]:
    u = torch.unique((x * 3).long())
    return u * 2, u.sum()


def split(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    a, b = n.tolist()
    torch._check(a >= 0)
    torch._check(b >= 0)
    torch._check(a + b == x.size(0))
    p, q = torch.split(x, [a, b])
    return p + 1, q.sum(0)


def products(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    z = torch.ones(_int(n, 2, 1000), x.size(1))
    return z @ x.t(), torch.softmax(z, 0), z.max(0).values


def normed_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x[torch.nonzero(x[:, 0] > 0).squeeze(1)]
    return y @ x.t(), torch.nn.functional.layer_norm(y, (y.size(1),))


def written_rows(x: Tensor) -> Tensor:
    y, i = x.clone(), torch.nonzero(x[:, 0] > 0).squeeze(1)
    y[i] = 0
    return y.index_add_(0, i, x[i])


def numbers(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    return x * n.item(), torch.arange(x.size(0)) + n.item()


def known_by_promise(x: Tensor, n: Tensor) -> tuple[Tensor, int]:
    k = n.item()
    return x + torch.ones(int(k), 1), k * 2


def even(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    k = _int(n, 2, 1000)
    torch._check(k % 2 == 0)
    return torch.arange(k).view(2, -1) + 1, torch.zeros(k // 2) + x.sum()


def equal_numbers(x: Tensor, n: Tensor) -> Tensor:
    k, m = n.item(), (n + x.size(0) - 6).item()
    torch._check(k == m)
    return torch.ones(int(k)) + torch.arange(int(m))


def rounded(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    k = _int(n, 0, 8)
    return x[: round(k / 2 + 1)] * 2, x + round(k * 1.2345, 2)


def sizes_from_floats(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor, int, int]:
    f = n.item()
    k = int(f * 3)
    torch._check(k >= 0)
    return torch.zeros(k) + x.sum(), torch.arange(0, f, 0.5) * 2, math.floor(f * 2), math.ceil(f / 0.7)


def overwritten_before_its_size_is_made(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    n = n.clone()
    f = n.item()
    n.add_(70)
    k = int(f * 3)
    torch._check(k >= 0)
    return torch.zeros(k) + n, x * f


def compared(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    k = n.item()
    return x * (k > 3), torch.full((2,), k == 4)


def branch_by_item(x: Tensor, n: Tensor) -> Tensor:
    many: Any = n.item() > 3
    result: Tensor = torch.cond(many, lambda y: y.sin(), lambda y: y.cos() + 1, (x,))
    return result * 2


@torch.library.custom_op("coilwork_dynamic::pick", mutates_args=("seen",))
def pick(seen: Tensor, x: Tensor) -> Tensor:
    """What is positive, and one more in `seen`."""
    seen.add_(1)
    return x[x > 0]


@pick.register_fake
def _(seen: Tensor, x: Tensor) -> Tensor:
    return x.new_empty([torch.library.get_ctx().new_dynamic_size()])


def picked_by_a_call_that_writes(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    seen = torch.zeros(3)
    found = pick(seen, x)
    return found * 2, pick(seen, -x).view(-1, 1) + 1, seen


def padded(x: Tensor, n: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (0, _int(n, 0, 50)))


def sliced_twice(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Each slice has a size of its own, which is the same number."""
    k = n.item()
    return x[:, :k].softmax(1), x[:, :k] * 2


def between_items(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
    low, high = (value.item() for value in n)
    y = x.sin()
    z = x.clone()
    z[low:high] = 1.5
    return x[low : low + high] * 2, y[low:high], x[:, low:high].cos(), x[low:high:2].sum(1), z


def at_items(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (value.item() for value in n)
    y = x.clone()
    y[first] = x[second] * 2
    return x[first] + x[second].cos(), y


def scanned(x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x[x[:, 0] < 0]
    torch._check(rows.shape[0] > 0)
    last, decayed = scan(lambda c, row: (c * 0.5 + row, (c - row).exp()), x[0] * 0, rows)
    return last, decayed


def mapped(x: Tensor) -> Tensor:
    rows = x[x[:, 0] < 0]
    torch._check(rows.shape[0] > 0)
    found: Tensor = map_rows(lambda row, other: row.softmax(0) + other, rows, x[0])
    return found


def _n(*values: int) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple((X, torch.tensor(value)) for value in values)


def _pairs(*values: tuple[int, int]) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple((X, torch.tensor(pair)) for pair in values)


def _floats(*values: float) -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple((X, torch.tensor(value)) for value in values)


_SIGNS: Final = ((X,), (-X,))
TABLE: Final[Mapping[str, Program]] = MappingProxyType(
    {
        "nonzero": Program(run=nonzero, arguments=_SIGNS),
        "masked_select": Program(run=masked_select, arguments=_SIGNS),
        "boolean index": Program(run=boolean_index, arguments=_SIGNS),
        "nothing selected": Program(run=nothing_selected, arguments=((X,), (X * 200,))),
        "shapes from items": Program(run=shapes_from_items, arguments=_n(5, 2, 999)),
        "narrow": Program(run=narrow, arguments=_n(2, 0, 4)),
        "select": Program(run=select, arguments=_n(2, 0, 5)),
        "slices": Program(run=slices, arguments=_n(2, 0, 6, 1)),
        "sliced twice": Program(run=sliced_twice, arguments=_n(2, 0, 6, 1), graphs=3),
        "between items": Program(
            run=between_items, arguments=_pairs((0, 2), (-2, 1), (2, 99), (-99, 3), (4, 2))
        ),
        "at items": Program(run=at_items, arguments=_pairs((0, 2), (-1, 3), (5, -6))),
        "storage offset": Program(run=storage_offset, arguments=_n(1, 4, 0)),
        "reshapes": Program(run=reshapes, arguments=_n(3, 6, 2)),
        "columns reshaped": Program(run=columns_reshaped, arguments=_n(3, 8, 1), graphs=3),
        "repeated": Program(run=repeated, arguments=_SIGNS),
        "unique": Program(run=unique, arguments=((X,), (X * 2,))),
        "split": Program(run=split, arguments=((X, torch.tensor([2, 4])), (X, torch.tensor([6, 0])))),
        "products": Program(run=products, arguments=_n(3, 2, 40)),
        "normed rows": Program(run=normed_rows, arguments=_SIGNS),
        "written rows": Program(run=written_rows, arguments=_SIGNS),
        "numbers": Program(run=numbers, arguments=_n(3, -2, 0)),
        "known by promise": Program(run=known_by_promise, arguments=_n(6)),
        "even": Program(run=even, arguments=_n(6, 8, 40)),
        "equal numbers": Program(run=equal_numbers, arguments=_n(6, 2, 40)),
        "rounded": Program(run=rounded, arguments=_n(3, 5, 7)),
        "sizes from floats": Program(run=sizes_from_floats, arguments=_floats(1.3, 2.5, 7.0)),
        "overwritten": Program(run=overwritten_before_its_size_is_made, arguments=_floats(1.3, 2.5, 7.0)),
        "compared": Program(run=compared, arguments=_n(3, 5, 4)),
        "branch by item": Program(run=branch_by_item, arguments=_n(3, 5, 4)),
        "picked by a call that writes": Program(run=picked_by_a_call_that_writes, arguments=_SIGNS),
        "padded": Program(run=padded, arguments=_n(3, 0, 1)),
        "scanned": Program(run=scanned, arguments=_SIGNS),
        "mapped": Program(run=mapped, arguments=_SIGNS),
    }
)
