"""The table for AOTAutograd: made once, the caller's own, and another one where there are other operators or
options.
"""

from __future__ import annotations

import sys
import time

import pytest
import torch

from coilwork_lowering import LoweringOptions
from coilwork_lowering.decompositions.table import decompositions

aten = torch.ops.aten


def test_it_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = decompositions()
    monkeypatch.delattr(sys.modules[decompositions.__module__], "copy_base_decompositions")
    assert decompositions() == first


def test_what_a_caller_changes_is_its_own() -> None:
    mine = decompositions()
    mine.clear()
    assert aten._softmax.default in decompositions()


def test_options_decide() -> None:
    assert aten._softmax.default in decompositions()
    assert aten._softmax.default not in decompositions(LoweringOptions(keep=("aten._softmax",)))
    assert aten._softmax.default in decompositions()


def test_operators_that_come_later_are_in_it() -> None:
    decompositions()
    library = torch.library.Library(f"coilwork_later_{time.time_ns()}", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
    twice = getattr(torch.ops, library.ns).twice.default
    assert twice in decompositions()
