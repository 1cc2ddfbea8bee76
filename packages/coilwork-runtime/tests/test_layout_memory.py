"""Recognising inputs whose layouts were checked before."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from coilwork_runtime.generated import LayoutMemory, ensure_aligned
from coilwork_runtime.layout_checks import MOST_LESSONS


def test_nothing_is_known_at_first() -> None:
    assert not LayoutMemory().match(torch.ones(2))


@pytest.mark.parametrize(
    ("other", "known"),
    [
        (torch.zeros(2, 3), True),
        (torch.zeros(3, 3), False),
        (torch.zeros(2, 4), False),
        (torch.zeros(3, 2).t(), False),
        (torch.zeros(6), False),
        (torch.zeros(2, 3, dtype=torch.float64), False),
        (torch.zeros(2, 3, device="meta"), False),
        (None, False),
    ],
    ids=["equal", "rows", "columns", "strides", "rank", "dtype", "device", "none"],
)
def test_only_equal_layouts_are_recognised(other: torch.Tensor, known: bool) -> None:
    memory, first = LayoutMemory(), torch.ones(4)
    memory.learn(first, torch.ones(2, 3))
    assert memory.match(first, other) is known
    assert not memory.match(torch.ones(5), torch.ones(2, 3))


def test_no_tensor_is_kept_alive() -> None:
    memory, value = LayoutMemory(), torch.ones(3)
    memory.learn(value)
    gone = weakref.ref(value)
    del value
    gc.collect()
    assert gone() is None and memory.match(torch.ones(3))


def test_learning_stops_for_those_who_alternate() -> None:
    memory = LayoutMemory()
    for size in range(MOST_LESSONS + 2):
        memory.learn(torch.ones(size))
    assert memory.match(torch.ones(MOST_LESSONS - 1)) and not memory.match(torch.ones(MOST_LESSONS + 1))


def test_misaligned_tensors_are_copied_in_their_layout() -> None:
    base = torch.arange(14.0)
    inner, outer = base[1:13].view(3, 4).t(), torch.arange(4.0)
    first, second = ensure_aligned(inner, outer)
    assert second is outer and first is not inner
    assert first.data_ptr() % 16 == 0 and first.stride() == inner.stride() and torch.equal(first, inner)
    assert tuple(ensure_aligned(outer)) == (outer,)
