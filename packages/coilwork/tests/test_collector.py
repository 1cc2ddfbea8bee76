"""The garbage collector around a compilation."""

from __future__ import annotations

import gc

import pytest
import torch

from coilwork import backend as backend_module
from coilwork_frontend.compile_captured import pause_collector


def test_it_is_off_inside_and_on_again_after_an_error() -> None:
    assert gc.isenabled()
    seen: list[bool] = []

    def failing() -> None:
        with pause_collector():
            with pause_collector():
                seen.append(gc.isenabled())
            seen.append(gc.isenabled())
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        failing()
    assert seen == [False, False]
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with pause_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_compilations_pause_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    compile_graph = backend_module.compile_graph

    def watching(*args: object, **kwargs: object) -> object:
        seen.append(gc.isenabled())
        return compile_graph(*args, **kwargs)

    monkeypatch.setattr(backend_module, "compile_graph", watching)
    torch._dynamo.reset()
    x = torch.randn(8, requires_grad=True)
    torch.compile(lambda x: (x.sin() * 2).sum(), backend=backend_module.backend)(x).backward()
    assert seen == [False, False]
    assert gc.isenabled()
