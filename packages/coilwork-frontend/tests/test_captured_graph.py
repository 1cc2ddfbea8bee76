"""The captured graph in the compiled program's stead: whose results and errors are seen, and what is left as
it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from coilwork_frontend.capture.eager_fallback import CapturedGraph, GuardedProgram

SAYS_SO = "not for this call"


def double(x: Tensor) -> Tensor:
    return x * 2


def with_captured(compiled: Callable[..., Any], captured: Callable[..., Any], **more: bool) -> GuardedProgram:
    graph = CapturedGraph(fx.symbolic_trace(captured), "a reason")
    return GuardedProgram(
        compiled, graph, is_failure=lambda error: SAYS_SO in str(error), **{"random": False, **more}
    )


def failing(message: str) -> Callable[..., Any]:
    def compiled(*args: Any) -> Any:
        torch.rand(3)
        raise RuntimeError(message)

    return compiled


def test_the_compiled_program_serves_where_it_can(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        assert with_captured(lambda x: x + 1, double)(torch.tensor(5.0)) == 6
    assert not caplog.records


def test_the_captured_graph_runs_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    call = with_captured(failing(SAYS_SO), double)
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        assert [float(call(torch.tensor(value))) for value in (5.0, 6.0)] == [10, 12]
    assert [record.getMessage() for record in caplog.records] == [
        "a reason: the captured graph runs, in eager mode"
    ]


def test_other_errors_are_raised() -> None:
    with pytest.raises(RuntimeError, match="something else"):
        with_captured(failing("something else"), double)(torch.ones(2))


def test_numbers_are_drawn_anew() -> None:
    def drawing(x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    torch.manual_seed(3)
    expected = drawing(torch.zeros(4))
    torch.manual_seed(3)
    assert torch.equal(with_captured(failing(SAYS_SO), drawing, random=True)(torch.zeros(4)), expected)


def test_a_graph_that_may_say_something_else_only_serves_for_its_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(RuntimeError, match=SAYS_SO), caplog.at_level(logging.WARNING, logger="coilwork"):
        with_captured(failing(SAYS_SO), double, faithful=False)(torch.ones(2))
    assert not caplog.records

    def of_another_shape(x: Tensor) -> Tensor:
        return x.view(3)

    with pytest.raises(RuntimeError, match="invalid for input of size 2"):
        with_captured(failing(SAYS_SO), of_another_shape, faithful=False)(torch.ones(2))
