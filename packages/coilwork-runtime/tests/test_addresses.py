"""Tensors that do not start at multiples of 16 bytes are found, with the native executor and without it."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch

from coilwork_runtime import any_unaligned
from coilwork_runtime.compiling import EXECUTOR
from coilwork_runtime.executor.program import executor_extension


class Other(torch.Tensor):
    """A type that nobody has told of."""


@pytest.fixture(params=["native", "python"], autouse=True)
def executor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.delitem(sys.modules, EXECUTOR, raising=False)
    elif shutil.which("g++") is None:
        pytest.skip("needs g++")
    else:
        monkeypatch.setitem(sys.modules, EXECUTOR, executor_extension(None))


def test_those_at_the_positions_count() -> None:
    base = torch.zeros(16)
    values = [
        base,
        base[1:],
        torch.nn.Parameter(torch.zeros(4)),
        base[4:],
        torch.empty(0),
        7,
        base[2:].as_subclass(Other),
    ]
    assert not any_unaligned(values, ())
    assert not any_unaligned(values, (0, 2, 3, 4))
    assert any_unaligned(values, (0, 1))
    assert any_unaligned(values, (2, 6))
    assert not any_unaligned([value.as_subclass(Other) for value in (base, base[4:])], (0, 1))
    assert any_unaligned([base.to(torch.bfloat16)[7:]], (0,)) and not any_unaligned(
        [base.to(torch.bfloat16)[8:]], (0,)
    )


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(AttributeError, match="data_ptr"):
        any_unaligned([7], (0,))
    with pytest.raises(IndexError):
        any_unaligned([torch.zeros(4)], (1,))
