"""Memory that views do not have, that is written twice, or that gradients need as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from integration_tests.operators.kinds.call import (
    LONGER,
    MATRIX,
    NUMBERS,
    PLANE,
    ROW,
    BadCall,
    grid,
    integers,
)

MEMORY: Final[Mapping[str, BadCall]] = {
    "view of a transposed": BadCall(lambda x: (x * 2).t().view(-1) + 1, (MATRIX,)),
    "view of a transposed input": BadCall(lambda x: x.view(-1) + 1, (MATRIX.t(),), (MATRIX,)),
    "view of columns": BadCall(lambda x: x[:, 1:3].view(-1) + 1, (MATRIX,)),
    "view as another width of type": BadCall(lambda x: x.view(torch.float64) + 1, (grid(4, 5),), (MATRIX,)),
    "view as another width of a transposed": BadCall(lambda x: x.t().view(torch.float64) + 1, (MATRIX,)),
    "view of real numbers as complex": BadCall(
        lambda x: torch.view_as_complex(x * 2), (grid(4, 3),), (grid(4, 2),)
    ),
    "view of a complex number that is none": BadCall(lambda x: torch.view_as_real(x * 2), (MATRIX,)),
    "write to an expanded": BadCall(lambda x: (x * 2).expand(4, 6).add_(1), (ROW,)),
    "write to an expanded input": BadCall(lambda x: x.add_(1), (ROW.expand(4, 6),), (MATRIX,)),
    "fill of an expanded": BadCall(lambda x: x.expand(4, 6).mul_(2.0), (ROW.clone(),)),
    "copy over itself": BadCall(lambda x: x[1:].copy_(x[:-1]), (MATRIX.clone(),)),
    "add of itself moved": BadCall(lambda x: x[1:].add_(x[:-1]), (MATRIX.clone(),)),
    "scatter into an expanded": BadCall(
        lambda x, k: x.expand(4, 6).scatter_(0, k, 1.0), (ROW.clone(), torch.zeros(4, 6, dtype=torch.int64))
    ),
    "index_add into an expanded": BadCall(
        lambda x, y: x.expand(4, 6).index_add_(0, integers(0), y[:1]), (ROW.clone(), MATRIX)
    ),
    "set of another type": BadCall(lambda x, y: x.set_(y), (MATRIX.clone(), NUMBERS)),
    "resize of a computed": BadCall(lambda x: (x * 2).resize_(-1, 3), (MATRIX,)),
    "t of a cube": BadCall(lambda x: (x * 2).t(), (PLANE,), (MATRIX,)),
    "mT of a row": BadCall(lambda x: (x * 2).mT, (ROW,), (MATRIX,)),
    "H of a cube": BadCall(lambda x: (x * 2).H, (PLANE,), (MATRIX,)),
    "imaginary part of reals": BadCall(lambda x: (x * 2).imag, (MATRIX,), (MATRIX.to(torch.complex64),)),
    "conjugate in place of a view as real": BadCall(
        lambda x: torch.view_as_real(x.conj()), (MATRIX.to(torch.complex64),)
    ),
    "an iteration over a number": BadCall(lambda x: [one + 1 for one in x], (torch.tensor(1.0),), (MATRIX,)),
    "length of a number": BadCall(lambda x: len(x) + x, (torch.tensor(1.0),), (MATRIX,)),
    "three of four rows": BadCall(lambda x: sum((lambda a, b, c: (a, b, c))(*x)), (MATRIX,), (grid(3, 6),)),
    "more subscripts than dimensions": BadCall(lambda x: x[0, 0, 0] + 1, (MATRIX,), (PLANE,)),
    "two ellipses": BadCall(lambda x: x[..., 0, ...] + 1, (PLANE,)),
    "a word as a subscript": BadCall(lambda x: x["a"] + 1, (MATRIX,)),
    "a float as a subscript": BadCall(lambda x: x[1.5] + 1, (MATRIX,)),
    "a missing attribute": BadCall(lambda x: (x * 2).no_such_thing(), (MATRIX,)),
    "a deleted dimension name": BadCall(lambda x: (x * 2).sum("rows"), (MATRIX,)),
}


def _trained(function: Callable[..., Any], *given: Any, good: tuple[Any, ...] | None = None) -> BadCall:
    return BadCall(function, given, good, training=True)


def _leaf_written(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _part_of_leaf_written(x: Tensor) -> Tensor:
    x[0].mul_(2)
    return x * 2


def _saved_overwritten(x: Tensor) -> Tensor:
    y = x.exp()
    z = y * y
    y.add_(1)
    return z


def _unbound_written(x: Tensor) -> Tensor:
    first, _ = (x * 2).unbind(1)[:2]
    first.add_(1)
    return first


def _split_written(x: Tensor) -> Tensor:
    first, _ = (x * 2).split(2)
    first.mul_(2)
    return first


def _twice(x: Tensor) -> Tensor:
    y = (x * x).sum()
    (g,) = torch.autograd.grad(y, x)
    (h,) = torch.autograd.grad(y, x)
    return g + h


def _no_grad_view_written(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        z = y[0]
    z.mul_(2)
    return z


AUTOGRAD: Final[Mapping[str, BadCall]] = {
    "a leaf that is written": _trained(_leaf_written, MATRIX),
    "a part of a leaf that is written": _trained(_part_of_leaf_written, MATRIX),
    "saved and overwritten": _trained(_saved_overwritten, MATRIX),
    "a part of unbind that is written": _trained(_unbound_written, MATRIX),
    "a part of split that is written": _trained(_split_written, MATRIX),
    "a view without gradients that is written": _trained(_no_grad_view_written, MATRIX),
    "gradients twice": _trained(_twice, MATRIX),
    "integers that ask for gradients": BadCall(lambda x: x.clone().requires_grad_() * 2, (NUMBERS,)),
    "integers made to ask for gradients": BadCall(
        lambda x: torch.zeros(3, dtype=torch.int64, requires_grad=True) + x[0, 0], (NUMBERS,)
    ),
    "gradient of what asks for none": BadCall(lambda x: torch.autograd.grad((x * 2).sum(), x), (MATRIX,)),
    "backward of what asks for none": BadCall(lambda x: (x * 2).sum().backward(), (MATRIX,)),
    "backward of many": _trained(lambda x: (x * 2).backward(), MATRIX),
    "numpy of what asks for gradients": _trained(lambda x: (x * 2).numpy(), MATRIX),
    "deepcopy of a result": _trained(lambda x: __import__("copy").deepcopy(x * 2), MATRIX),
    "gradient of an unused input": _trained(
        lambda x, y: torch.autograd.grad((x * 2).sum(), y), MATRIX, LONGER
    ),
    "gradient of a rounded median of nothing": _trained(lambda x: (x * 2).max(), torch.empty(0)),
    "detached and taken": _trained(lambda x: torch.autograd.grad((x.detach() * 2).sum(), x), MATRIX),
    "into an out that asks": _trained(lambda x, y: torch.mul(x, 2, out=y), MATRIX, MATRIX),
    "a seed of another shape": _trained(lambda x: torch.autograd.grad(x * 2, x, torch.ones(3)), MATRIX),
    "a copy from what asks into integers": _trained(
        lambda x, k: k.copy_(x).cumsum_(0).sqrt_(), MATRIX, NUMBERS
    ),
}
