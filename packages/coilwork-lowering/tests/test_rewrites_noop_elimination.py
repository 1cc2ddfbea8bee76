"""Calls that return an operand: what goes, what stays, and that nothing changes but speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rewritten_graphs import check_same, rewritten
from torch import Tensor

from coilwork_lowering.rewrites.noop_elimination import NOOPS

aten = torch.ops.aten
prims = torch.ops.prims

SPECIAL = torch.tensor([[0.0, -0.0, float("nan"), float("inf"), -1.5, 3e38]])


def read(result: Tensor) -> Tensor:
    """A reader of what is dropped, so that the graph does not return it."""
    return torch.sin(result)


FIRES: dict[str, tuple[str, Callable[[Tensor], Any], Tensor]] = {
    "mul": ("times-one", lambda x: read(x * 1), SPECIAL),
    "mul float": ("times-one", lambda x: read(x * 1.0), SPECIAL),
    "div": ("times-one", lambda x: read(x / 1), SPECIAL),
    "pow": ("times-one", lambda x: read(x**1), SPECIAL),
    "integer sum": ("plus-zero", lambda x: (x + 0) * 3, torch.arange(6).reshape(2, 3)),
    "difference": ("plus-zero", lambda x: torch.copysign(torch.ones_like(x), x - 0.0), SPECIAL),
    "sum with -0.0": ("plus-zero", lambda x: torch.copysign(torch.ones_like(x), x + -0.0), SPECIAL),
    "same type": ("same-type", lambda x: read(prims.convert_element_type(x, torch.float32)), SPECIAL),
    "wider and back": (
        "wider-and-back",
        lambda x: read(x.to(torch.float32).to(torch.bfloat16)),
        SPECIAL.to(torch.bfloat16),
    ),
    "clone": ("clone", lambda x: read(x.clone()), SPECIAL),
    "view": ("same-view", lambda x: read(x.view(1, 6)), SPECIAL),
    "slice": ("same-view", lambda x: read(aten.slice(x, 1, 0, 9223372036854775807)), SPECIAL),
    "expand": ("same-view", lambda x: read(x.expand(1, 6)), SPECIAL),
    "permute": ("same-view", lambda x: read(x.permute(0, 1)), SPECIAL),
    "transposed twice": ("view-and-back", lambda x: read(x.t().t()), SPECIAL),
    "transposes": ("view-and-back", lambda x: read(x.transpose(0, 1).transpose(1, 0)), SPECIAL),
    "unsqueezed": ("view-and-back", lambda x: read(x.unsqueeze(0).squeeze(0)), SPECIAL),
    "viewed": ("view-and-back", lambda x: read(x.view(6).view(1, 6)), SPECIAL),
    "permutes": (
        "permuted-twice",
        lambda x: read(x.permute(2, 0, 1).permute(1, 0, 2)),
        torch.randn(2, 3, 4),
    ),
    "pad": ("clone", lambda x: read(aten.constant_pad_nd(x, [0, 0], 2.0)), SPECIAL),
    "abs": ("twice-is-once", lambda x: x.abs().abs(), SPECIAL),
    "relu": ("twice-is-once", lambda x: x.relu().relu(), SPECIAL),
    "neg": ("twice-is-never", lambda x: read(torch.neg(torch.neg(x))), SPECIAL),
    "not": ("twice-is-never", lambda x: ~~x + 1, torch.arange(5)),
}


@pytest.mark.parametrize("case", FIRES)
def test_goes_and_changes_no_bit(case: str) -> None:
    name, function, x = FIRES[case]
    made = check_same(function, (x,), NOOPS)
    assert name in made.names


def mutates(x: Tensor) -> Tensor:
    kept = x * 1
    aten.copy_(x, x + 1)
    return kept


STAYS: dict[str, tuple[Callable[[Tensor], Any], Tensor]] = {
    "a sum with 0.0 makes -0.0 positive": (lambda x: torch.copysign(torch.ones_like(x), x + 0), SPECIAL),
    "a difference with -0.0 as well": (lambda x: torch.copysign(torch.ones_like(x), x - -0.0), SPECIAL),
    "a factor that is not 1": (lambda x: read(x * 2), SPECIAL),
    "a boolean is no number": (lambda x: read(aten.mul.Tensor(x, 2.0)), SPECIAL),
    "the type changes": (lambda x: x * 1.0, torch.arange(4)),
    "a quotient of integers": (lambda x: x / 1, torch.arange(4)),
    "a narrower type loses bits": (
        lambda x: x.to(torch.bfloat16).to(torch.float32) * 2,
        torch.tensor([1.001, 3e-39]),
    ),
    "the caller gets a tensor of its own": (lambda x: x * 1, SPECIAL),
    "and a view of one": (lambda x: (x * 1).view(6), SPECIAL),
    "both are returned": (lambda x: (s := torch.sin(x), s * 1), SPECIAL),
    "the input is overwritten": (mutates, SPECIAL.clone()),
    "strides change": (lambda x: read(x.contiguous()), torch.randn(3, 4).t()),
    "a transposition of a square": (lambda x: read(x.t()), torch.randn(3, 3)),
    "a part is returned": (lambda x: torch.sin(x)[:, 2:4].clone(), SPECIAL),
    "a view of a part": (lambda x: (torch.sin(x)[:, 2:4] * 1).view(2), SPECIAL),
    "a part is negated twice": (lambda x: torch.sin(x)[:, 2:4].neg().neg(), SPECIAL),
    "padding": (lambda x: read(aten.constant_pad_nd(x, [0, 1], 2.0)), SPECIAL),
}


@pytest.mark.parametrize("case", STAYS)
def test_calls_that_change_something_stay(case: str) -> None:
    function, x = STAYS[case]
    assert rewritten(function, (x,), NOOPS).names == ()


def test_chains_go_at_once() -> None:
    made = check_same(lambda x: read(((x * 1) / 1 - 0.0).t().t()), (SPECIAL,), NOOPS)
    assert made.calls() == ["aten.sin.default"]


def test_a_value_of_the_graph_may_be_returned_for_its_copy() -> None:
    made = check_same(lambda x: torch.sin(x) * 1, (SPECIAL,), NOOPS)
    assert made.calls() == ["aten.sin.default"]


def test_a_part_that_only_the_graph_reads_is_not_copied() -> None:
    made = check_same(lambda x: read(torch.sin(x)[:, 2:4].clone()), (SPECIAL,), NOOPS)
    assert made.names == ("clone",)


def test_a_copy_stays_whose_result_shows_other_strides_of_one_element() -> None:
    x = torch.randn(2, 1, 3, 3)

    def copied(x: Tensor) -> Tensor:
        return torch.exp(x).clone(memory_format=torch.channels_last)

    made = check_same(copied, (x,), NOOPS)
    assert made.names == () and made.gm(x).stride() == copied(x).stride() == (9, 1, 3, 1)
    # who reads it does not see them
    assert rewritten(lambda x: copied(x).sum(), (x,), NOOPS).names == ("clone",)


def test_a_copy_of_a_conjugate_is_kept_where_its_memory_is_read() -> None:
    z = torch.randn(2, 3, dtype=torch.complex64)
    made = check_same(lambda z: torch.view_as_real(z.conj().clone().unsqueeze(0)) * 2, (z,), NOOPS)
    assert made.names == ()
    made = rewritten(lambda z: torch.exp(z.conj().clone()), (z,), NOOPS)
    assert made.names == ("clone",)
