"""Jagged nested tensors: rows of several lengths in one buffer, whose ragged size is no number."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coilwork.errors import CoilworkFallbackWarning

Program = Callable[..., Tensor]

PROGRAMS: dict[str, Program] = {
    "pointwise": lambda rows, w: (rows + 1).sin() * rows,
    "linear": lambda rows, w: F.linear(rows, w).relu(),
    "layer norm": lambda rows, w: F.linear(F.layer_norm(rows, (8,)), w),
    "softmax within elements": lambda rows, w: rows.softmax(-1),
    "softmax within rows": lambda rows, w: torch.softmax(rows, 1),
    "sum of each row": lambda rows, w: rows.sum(1) * 2,
    "mean of each element": lambda rows, w: rows.mean(-1, keepdim=True),
    "padded": lambda rows, w: rows.to_padded_tensor(0.0).sin(),
    "values": lambda rows, w: rows.values().cos() * 2,
    "made of values and offsets": lambda rows, w: (
        torch.nested.nested_tensor_from_jagged(rows.values().sin(), rows.offsets()) * 2
    ),
}
# eager has no gradient of these
_INFERENCE_ONLY = ("softmax within rows", "sum of each row")


def make(lengths: tuple[int, ...], *, trains: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    rows = [torch.randn(length, 8, generator=generator) for length in lengths]
    weight = torch.randn(4, 8, generator=generator).requires_grad_(trains)
    nested: Any = torch.nested.nested_tensor(rows, layout=torch.jagged)
    return nested.requires_grad_(trains), weight


def outcome(program: Program, lengths: tuple[int, ...], *, trains: bool) -> list[Tensor]:
    """The values of the result and, in training, the gradients."""
    rows, weight = make(lengths, trains=trains)
    result = program(rows, weight)
    values = result.values() if result.is_nested else result
    found = [values.detach()]
    if trains:
        values.sin().sum().backward()
        found += [
            one.grad.values() if one.is_nested else one.grad for one in (rows, weight) if one.grad is not None
        ]
    return found


@pytest.mark.parametrize(
    ("name", "trains"),
    [
        *(pytest.param(name, False, id=f"{name}-inference") for name in PROGRAMS),
        # of others eager has no gradient
        *(
            pytest.param(name, True, id=f"{name}-training")
            for name in PROGRAMS
            if name not in _INFERENCE_ONLY
        ),
    ],
)
def test_programs_of_jagged_tensors_are_those_of_eager(name: str, trains: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(PROGRAMS[name], backend="coilwork", fullgraph=True, options={"strict": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error", CoilworkFallbackWarning)
        for lengths in ((2, 4, 3), (5, 1, 2, 6)):
            found, wanted = (outcome(one, lengths, trains=trains) for one in (compiled, PROGRAMS[name]))
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(one, other)
