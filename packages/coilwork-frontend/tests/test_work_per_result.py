"""What is looked up per result and per input of a graph does not grow with how many others there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_frontend.calling_convention import lazy_conjugation
from coilwork_frontend.calling_convention.lazy_conjugation import restore_marks
from coilwork_frontend.capture import input_storages
from coilwork_frontend.capture.input_storages import compile_with_storages
from coilwork_frontend.torch_compat.tensors import Marks


def trace_results(count: int) -> fx.GraphModule:
    """A graph of `count` results in memory of their own."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x + number for number in range(count))

    traced: fx.GraphModule = make_fx(run, tracing_mode="fake")(torch.ones(3))
    return traced


def count_calls(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[object]:
    """Have the calls of a function of `module` listed."""
    calls: list[object] = []
    run: Callable[[object], object] = getattr(module, name)

    def counted(value: object) -> object:
        calls.append(value)
        return run(value)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.mark.parametrize("is_known", [True, False])
def test_plain_results_are_not_compared_with_each_other(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch, lazy_conjugation, "identify_node_storage")
    gm = trace_results(20)
    marks = dict.fromkeys(range(20), Marks()) if is_known else {}
    assert restore_marks(gm, marks) is gm
    assert not calls


def test_inputs_that_nobody_looks_behind_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, input_storages, "get_storage")
    gm = trace_results(20)
    assert compile_with_storages(gm, [torch.ones(3)], lambda module, _: module) is gm
    assert not calls
