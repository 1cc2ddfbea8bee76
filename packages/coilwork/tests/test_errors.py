"""Warnings stand at the user's line."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

import coilwork
from coilwork import compile_graph, stages
from coilwork.errors import (
    CoilworkFallbackWarning,
    CoilworkWarning,
    IgnoredOptionWarning,
    NotBuiltYetWarning,
    UncachedPassWarning,
)
from coilwork_frontend import option_table as option_table
from coilwork_frontend.errors import warn_user
from coilwork_lowering import LoweringError

WITHOUT_EFFECT = {"wrapper": "fx", "executor": "native"}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    option_table._announce.cache_clear()
    return


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def leave(gm: torch.fx.GraphModule) -> None:
    """A pass without `uuid`."""


def line_of(run: Callable[[], object], category: type[Warning]) -> None:
    """`run`, of one line, warns once by `category`, at this line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    ours = [one for one in caught if issubclass(one.category, CoilworkWarning)]
    assert [one.category for one in ours] == [category], [str(one.message) for one in caught]
    line = inspect.getsourcelines(run)[1]
    assert (ours[0].filename, ours[0].lineno) == (__file__, line), str(ours[0].message)


def compiled(**options: Any) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.compile(double, backend="coilwork", options=options)
    return function


def test_options_are_warned_of_where_they_are_given() -> None:
    line_of(lambda: coilwork.compile(double, **WITHOUT_EFFECT), IgnoredOptionWarning)
    line_of(lambda: coilwork.compile(double, mode="reduce-overhead"), NotBuiltYetWarning)


@pytest.mark.parametrize(
    ("options", "category"),
    [
        (WITHOUT_EFFECT, IgnoredOptionWarning),
        # only the graph says that nothing of it is on a GPU
        ({"products": "cublaslt"}, IgnoredOptionWarning),
        ({"passes": [leave]}, UncachedPassWarning),
    ],
)
def test_torch_hands_options_on_at_the_first_call(
    options: dict[str, object], category: type[Warning]
) -> None:
    function, x = compiled(**options), torch.ones(3)
    line_of(lambda: function(x), category)


def test_an_unknown_variable_is_warned_of_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COILWORK_FUSSION", "0")
    function, x = compiled(), torch.ones(3)
    line_of(lambda: function(x), IgnoredOptionWarning)


def test_a_graph_that_falls_back_is_told_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(job: Any, **_: Any) -> Any:
        raise LoweringError("graph-form", "it is tried out")

    monkeypatch.setattr(compile_graph, "run_stages", fail)
    function, x = compiled(cache=False), torch.ones(3)
    line_of(lambda: function(x), CoilworkFallbackWarning)


def test_a_backward_graph_is_compiled_through_code_that_torch_generates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = stages.run_stages

    def fail(job: Any, **given: Any) -> Any:
        if job.role == "backward":
            raise LoweringError("graph-form", "it is tried out")
        return real(job, **given)

    monkeypatch.setattr(compile_graph, "run_stages", fail)
    x = torch.ones(3, requires_grad=True)
    loss = torch.compile(lambda x: (x.sin() * x.exp()).sum(), backend="coilwork", options={"cache": False})(x)
    line_of(lambda: loss.backward(), CoilworkFallbackWarning)


def test_a_thread_without_a_line_of_the_users_warns_all_the_same() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thread = threading.Thread(target=partial(warn_user, "told", IgnoredOptionWarning))
        thread.start()
        thread.join()
    assert [str(one.message) for one in caught] == ["told"]
