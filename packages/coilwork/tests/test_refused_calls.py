"""Calls that eager refuses and on which compiling fails: eager's error, without a word of the compiler's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coilwork import attempts
from coilwork.backend import backend
from coilwork.errors import CoilworkFallbackWarning

Program = Callable[[Tensor], object]


def compiled(function: Program, *, strict: bool, dynamic: bool = False) -> Program:
    torch._dynamo.reset()
    options = {"strict": strict, "cache": False}
    return torch.compile(function, backend=backend, options=options, dynamic=dynamic)


@contextmanager
def broken_stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler that compiles nothing."""

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("a fault of the compiler's")

    with monkeypatch.context() as patch:
        patch.setattr(attempts, "run_stages", fail)
        yield


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_eagers_error_is_raised_where_compiling_fails(
    strict: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.embedding(x.round().long(), torch.ones(3, 2)) * 2

    x = torch.tensor([0.0, 7.0])
    with broken_stages(monkeypatch), warnings.catch_warnings():
        warnings.simplefilter("error", CoilworkFallbackWarning)
        run = compiled(function, strict=strict, dynamic=dynamic)
        for _ in range(2):
            with pytest.raises(IndexError, match="index out of range in self"):
                run(x)


def test_a_good_call_that_follows_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor) -> Tensor:
        return nn.functional.embedding(x.round().long(), torch.ones(3, 2)) * 2

    for strict in (False, True):
        with broken_stages(monkeypatch):
            run = compiled(function, strict=strict)
            with pytest.raises(IndexError):
                run(torch.tensor([0.0, 7.0]))
            if strict:
                with pytest.raises(Exception, match="a fault of the compiler's"):
                    run(torch.tensor([0.0, 2.0]))
                continue
            with pytest.warns(CoilworkFallbackWarning, match="a fault of the compiler's"):
                assert torch.equal(run(torch.tensor([0.0, 2.0])), torch.full((2, 2), 2.0))


def test_faults_of_the_compiler_are_still_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.get_rng_state()
    x = torch.ones(3)
    with broken_stages(monkeypatch), pytest.raises(Exception, match="a fault of the compiler's"):
        compiled(lambda x: x.add_(torch.rand(3)), strict=True)(x)
    assert torch.equal(x, torch.ones(3))
    assert torch.equal(numbers, torch.get_rng_state())


def test_the_users_operators_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    library = torch.library.Library("coilwork_refused_calls", "FRAGMENT")
    library.define("count(Tensor x) -> Tensor")
    library.impl("count", lambda x: calls.append(1) or x.clone(), "CompositeExplicitAutograd")
    torch.library.register_fake("coilwork_refused_calls::count", torch.empty_like, lib=library)
    with broken_stages(monkeypatch), pytest.raises(Exception, match="a fault of the compiler's"):
        compiled(torch.ops.coilwork_refused_calls.count, strict=True)(torch.ones(2))
    assert calls == []


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_what_tracing_refuses_otherwise_is_eagers_to_refuse() -> None:
    for strict in (False, True):
        run = compiled(lambda x: x.add_(x, alpha=1j), strict=strict)
        with pytest.raises(RuntimeError, match="must not be a complex number"):
            run(torch.ones(2))


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_a_tensor_cannot_hold(dynamic: bool) -> None:
    """Tracing takes them, with `aot_eager` as well."""
    x, z = torch.ones(3, 3), torch.ones(3, 3, dtype=torch.complex64)
    programs: tuple[Program, ...] = (
        lambda x: torch.amax(x, 0, out=torch.empty(3, dtype=torch.float64)),
        lambda x: torch.any(x, 0, out=torch.empty(3, dtype=torch.int64)),
        lambda x: x.clone().add_(z),
        lambda x: x.long().mul_(x),
    )
    for program in programs:
        with pytest.raises(RuntimeError) as wanted:
            program(x)
        with pytest.raises(RuntimeError) as found:
            compiled(program, strict=True, dynamic=dynamic)(x)
        assert found.type is wanted.type


def test_results_that_a_tensor_can_hold() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        into = torch.empty(3, dtype=torch.float64)
        return torch.sum(x, 0, out=into), x.double().add_(x), torch.add(x, x, out=torch.empty(3, 3))

    x = torch.randn(3, 3)
    found = compiled(program, strict=True)(x)
    assert isinstance(found, tuple)
    for one, other in zip(found, program(x), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("error::coilwork.errors.CoilworkFallbackWarning")
def test_types_that_are_taken_apart_whatever_they_are() -> None:
    """Torch's own tracing takes these calls apart before it asks for a type."""
    images = torch.ones(1, 3, 4, 4, dtype=torch.int64)
    programs: tuple[Program, ...] = (
        lambda x: nn.functional.interpolate(x, size=(3, 3), mode="bilinear"),
        lambda x: nn.functional.interpolate(x, size=(3, 3), mode="bicubic"),
        lambda x: nn.functional.interpolate(x[0], size=3, mode="linear"),
        lambda x: nn.functional.max_pool1d(x[0], 2),
    )
    for program in programs:
        with pytest.raises(NotImplementedError):
            program(images)
        with pytest.raises(NotImplementedError):
            compiled(program, strict=True)(images)
