"""What is put together and taken apart again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rewritten_graphs import check_same, rewritten
from torch import Tensor

from coilwork_lowering.rewrites.concat_split import CONCAT_SPLITS

X = torch.randn(4, 6)
Y = torch.randn(4, 6)

FIRES: dict[str, tuple[str, Callable[..., Any]]] = {
    "one": ("cat-of-one", lambda x, y: torch.cat([x + y]).sin()),
    "slices": ("cat-of-parts", lambda x, y: torch.cat([x[:, :2], x[:, 2:5], x[:, 5:]], 1) * y),
    "pieces": ("cat-of-parts", lambda x, y: torch.cat(x.split(2, 1), -1) * y),
    "sized pieces": (
        "cat-of-parts",
        lambda x, y: torch.cat(x.split([1, 3])).sin(),
    ),
    "split": ("split-of-cat", lambda x, y: [p.sin() for p in torch.cat([x, y]).split(4)]),
    "split across": ("split-of-cat", lambda x, y: [p.sin() for p in torch.cat([x, y], 1).split(6, 1)]),
    "split by sizes": (
        "split-of-cat",
        lambda x, y: [p.sin() for p in torch.cat([x, y[:2]]).split([4, 2])],
    ),
    "slice": ("slice-of-cat", lambda x, y: torch.cat([x, y], 1)[:, 6:].sin()),
    "first slice": ("slice-of-cat", lambda x, y: torch.cat([x, y])[:4].exp()),
    "unbind": ("unbind-of-stack", lambda x, y: [p.sin() for p in torch.stack([x, y]).unbind()]),
    "select": ("select-of-stack", lambda x, y: torch.stack([x, y], 2)[:, :, -1].sin()),
}


@pytest.mark.parametrize("case", FIRES)
def test_fires_and_changes_no_bit(case: str) -> None:
    name, function = FIRES[case]
    assert name in check_same(function, (X, Y), CONCAT_SPLITS).names


STAYS: dict[str, Callable[..., Any]] = {
    "another order": lambda x, y: torch.cat([x[:, 2:], x[:, :2]], 1) * y,
    "a part twice": lambda x, y: torch.cat([x[:, :2], x[:, :2], x[:, 4:]], 1) * y,
    "a part is missing": lambda x, y: torch.cat([x[:, :2], x[:, 3:]], 1),
    "two sources": lambda x, y: torch.cat([x[:, :2], y[:, 2:]], 1).sin(),
    "across": lambda x, y: torch.cat([x[:2], x[2:]], 1).sin(),
    "a step": lambda x, y: torch.cat([x[::2], x[2:]]).sin(),
    "the caller gets a tensor of its own": lambda x, y: torch.cat([x[:2], x[2:]]),
    "pieces cut parts": lambda x, y: [p.sin() for p in torch.cat([x, y]).split(2)],
    "a slice of two": lambda x, y: torch.cat([x, y])[2:6].sin(),
    "types are joined": lambda x, y: torch.cat([x, y.double()])[:4].sin(),
    "views would have other strides": lambda x, y: torch.mm(torch.cat([x, y], 1)[:, :6].t(), x),
    "along another dimension": lambda x, y: [p.sin() for p in torch.stack([x, x], 1).unbind(0)],
}


@pytest.mark.parametrize("case", STAYS)
def test_concatenations_that_are_not_split_again_stay(case: str) -> None:
    assert rewritten(STAYS[case], (X, Y), CONCAT_SPLITS).names == ()


def test_what_is_returned_stays_a_tensor_of_its_own() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return torch.cat([x, y]).split(4)

    assert rewritten(function, (X, Y), CONCAT_SPLITS).names == ()
