"""Options are checked at a call of `coilwork.compile`, and names in options must exist."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import coilwork
from coilwork.errors import IgnoredOptionWarning, OptionError
from coilwork_frontend.option_sources import check_fallback
from coilwork_lowering.registry import RULES


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_function_and_a_module_are_compiled(tmp_path: Path) -> None:
    compiled = coilwork.compile(double, fullgraph=True, strict=True, trace=str(tmp_path))
    assert not [*tmp_path.iterdir()]
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert [path.name.partition("_")[0] for path in tmp_path.iterdir()] == ["inference"]
    module = torch.nn.Linear(3, 2)
    found = coilwork.compile(module, strict=True)(torch.ones(4, 3))
    torch.testing.assert_close(found, module(torch.ones(4, 3)))


def test_it_is_a_decorator(tmp_path: Path) -> None:
    @coilwork.compile(trace=str(tmp_path), mode="max-autotune-no-cudagraphs")
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    assert torch.equal(triple(torch.ones(3)), torch.full((3,), 3.0))
    assert [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stricct": True}, "did you mean 'strict'"),
        ({"mode": "max-autotun"}, "did you mean 'max-autotune'"),
        ({"fallback": ["aten.nothing_like_it"]}, "there is no operator"),
        ({"skip_rewrites": ["nothing_like_it"]}, "nothing_like_it"),
        ({"workers": -1}, "at least 0"),
    ],
)
def test_options_are_checked_at_the_call(given: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        coilwork.compile(double, **given)


def test_options_around_the_call_hold_for_the_function(tmp_path: Path) -> None:
    with coilwork.options(trace=str(tmp_path / "around"), strict=True):
        inner = coilwork.compile(double)
        own = coilwork.compile(lambda x: x + 1, trace=str(tmp_path / "own"))
    inner(torch.ones(3))
    own(torch.ones(3))
    assert len([*(tmp_path / "around").iterdir()]) == len([*(tmp_path / "own").iterdir()]) == 1


def test_options_around_a_first_call_hold_for_it(tmp_path: Path) -> None:
    compiled = torch.compile(double, backend="coilwork")
    with coilwork.options(trace=str(tmp_path)):
        compiled(torch.ones(3))
    assert len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("wrapper", ["cpp", "fx"])
def test_what_a_wrapper_does_not_honour_is_told(wrapper: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", IgnoredOptionWarning)
        for name, value in (("check_lifetimes", True), ("executor", "native")):
            with pytest.raises(IgnoredOptionWarning, match=name):
                coilwork.compile(double, wrapper=wrapper, **{name: value})


def test_options_are_listed() -> None:
    names = [option.name for option in coilwork.list_options()]
    assert names[0] == "mode" and "check_lifetimes" in names


@pytest.mark.parametrize("name", ["aten.cumsum", "aten.sum.dim_IntList", "a_library.loaded_later"])
def test_operators_may_be_named_with_or_without_overload(name: str) -> None:
    check_fallback([name], RULES)


@pytest.mark.parametrize(
    ("name", "help_text"),
    [
        ("aten.cumsm", "did you mean 'aten.cumsum'?"),
        ("cumsum", "did you mean 'aten.cumsum'?"),
        ("aten.sum.along_dim", "did you mean"),
        ("aten.zzzzzzzzz", "as in aten.cumsum or aten.sum.dim_IntList"),
    ],
)
def test_others_are_refused(name: str, help_text: str) -> None:
    with pytest.raises(OptionError, match=f"there is no operator '{name}'") as caught:
        check_fallback(["aten.sin", name], RULES)
    assert caught.value.code == "bad-option" and help_text in str(caught.value)
