"""Random programs that update inputs and what they computed, through views, and read them in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor

SIZE: Final = 6
Function = Callable[..., tuple[Tensor, ...]]

_VIEWS: Final = (
    "[1:]",
    "[:-1]",
    "[::2]",
    ".t()",
    "[1:3]",
    "[:, 1:]",
    "[:, ::2]",
    "[2:]",
    "[n:]",
    "[:, : n + 1]",
)
_MADE: Final = (
    "{0} @ w",
    "torch.zeros(6, 6)",
    "{0}.sin()",
    "{0}.clone()",
    "{0}.cumsum(0)",
    "torch.cat([{0}[:3], {0}[3:]])",
)
_READ: Final = ("{0}.sum()", "{0}.sum(0)", "{0} * 2", "{0}.clone()", "{0}[0] + 1")
_UPDATES: Final = (
    "{0}[i] = v",
    "{0}[i] = {0}[:3] * 2",
    "{0}[:, i] = v.t()",
    "{0}[:, i] = {0}[:, :3].clone()",
    "{0}[1] = v[0]",
    "{0}[-1] = {0}[0] * 2",
    "{0}.index_add_(0, i, v)",
    "{0}.index_copy_(0, i, v)",
    "{0}.index_put_((i,), v, accumulate=True)",
    "{0}.scatter_(0, j, v)",
    "{0}.scatter_add_(1, j, v)",
    "{0}.diagonal().add_(1)",
    "{0}.masked_fill_({0} > 0, 0.25)",
)
_OF_VIEWS: Final = (
    "t.mul_(t.sin() + 1)",
    "t.copy_(t.flip(0))",
    "t.zero_()",
    "t.copy_(0.5)",
    "t.add_(x.sum())",
)


def program(seed: int) -> str:
    """Source of `f(x, k, w, v, i, j, n)`, which returns a tuple."""
    return (
        "def f(x, k, w, v, i, j, n):\n"
        f"{''.join(f'    {line}' + chr(10) for line in _lines(random.Random(seed)))}"
    )


def _lines(rng: random.Random) -> Iterator[str]:
    names, results = ["x", "k"], ["x.sum()"]
    for number in range(rng.randint(3, 9)):
        name = rng.choice(names)
        view = name + "".join(rng.choices(_VIEWS, k=rng.randint(0, 3)))
        match rng.randint(0, 5):
            case 0:
                yield f"y{number} = {rng.choice(_MADE).format(name)}"
                names.append(f"y{number}")
            case 1:
                yield f"r{number} = {rng.choice(_READ).format(rng.choice((name, view)))}"
                results.append(f"r{number}")
            case 2:
                yield f"t = {view}; {rng.choice(_OF_VIEWS)}"
            case _:
                yield rng.choice(_UPDATES).format(name)
    results += [name for name in names[2:] if rng.random() < 0.6]
    results += [name + rng.choice(_VIEWS) for name in names[:2] if rng.random() < 0.4]
    yield f"return {', '.join(results)},"


def function_of(source: str) -> Function:
    """The function that `source` defines."""
    space: dict[str, Any] = {"torch": torch}
    exec(source, space)
    found: Function = space["f"]
    return found


def inputs_of(seed: int) -> tuple[Any, ...]:
    """Arguments for any program."""
    torch.manual_seed(seed)
    square = [torch.randn(SIZE, SIZE) for _ in range(3)]
    if seed % 3 == 0:
        square[0] = square[0].t()
    rows = torch.stack([torch.randperm(SIZE)[:3] for _ in range(SIZE)], 1)
    return *square, torch.randn(3, SIZE), torch.randperm(SIZE)[:3], rows, 2
