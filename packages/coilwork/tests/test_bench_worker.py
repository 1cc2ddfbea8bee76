"""The measuring process of `coilwork bench`: what it builds, calls and judges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from coilwork.backend import backend as registered
from coilwork_tools.bench.worker import build, compute_distance, judge, measure
from coilwork_tools.demo.worker import compile_function

SCRIPT = """
import torch

def softmax():
    return (lambda x: x.softmax(-1)), (torch.randn(4, 16),)

def layer():
    return torch.nn.Linear(3, 2), (torch.randn(5, 3),)

def single():
    return (lambda x: x.sin() + torch.ones(4, dtype=torch.float32).matmul(torch.ones(4, dtype=x.dtype))), \
(torch.randn(4),)

def accumulated():
    return (lambda x: x.add_(1)), (torch.zeros(4),)

def nothing():
    return 3
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return str(path)


def test_every_process_builds_the_same(script: str) -> None:
    first, second = (build(script, "softmax", backward=False) for _ in range(2))
    assert torch.equal(first.args[0], second.args[0])


def test_what_is_no_subject_is_refused(script: str) -> None:
    with pytest.raises(TypeError, match=r"nothing\(\) must return"):
        build(script, "nothing", backward=False)


def test_gradients_are_results(script: str) -> None:
    subject = build(script, "layer", backward=True)
    output, weight, bias = subject.call(subject.function)
    assert not output.requires_grad
    assert weight.shape == (2, 3) and torch.equal(bias, torch.full((2,), 5.0))


def test_eager_is_right_and_timed(script: str) -> None:
    found = measure(script, "softmax", "eager", backward=False)
    assert not found.failure and found.device == "cpu"
    assert found.error is not None and found.error == found.eager_error and found.error < 1e-6
    assert found.fewest_bytes == 2 * 4 * 16 * 4
    assert found.busy_us is not None and found.copy_us is not None and found.peak_bytes is not None


def test_wrong_results_are_told(script: str) -> None:
    subject = build(script, "softmax", backward=False)
    (right,) = subject.call(subject.function)
    assert judge(script, "softmax", [right], backward=False)[0] == ""
    assert judge(script, "softmax", [right + 1e-3], backward=False)[0].startswith("wrong")
    assert "types or shapes" in judge(script, "softmax", [right.half()], backward=False)[0]
    assert judge(script, "softmax", [right * float("nan")], backward=False)[0].startswith("wrong")


def test_what_does_not_run_in_float64_is_not_judged(script: str) -> None:
    assert judge(script, "single", [torch.zeros(4)], backward=False) == ("", None, None)


def test_arguments_that_calls_change_are_made_anew(script: str) -> None:
    found = measure(script, "accumulated", "eager", backward=False)
    assert not found.failure and found.error == 0.0


def test_distance_is_relative() -> None:
    assert compute_distance([torch.tensor([3.0, 4.4])], [torch.tensor([3.0, 4.0])]) == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        ("coilwork", None),
        ("coilwork-max", "max-autotune-no-cudagraphs"),
        ("coilwork:reduce-overhead", "reduce-overhead"),
    ],
)
def test_backends_may_name_a_mode(backend: str, mode: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, str | None]] = []

    def compile(function: Callable[..., Any], *, backend: object, mode: str | None) -> Callable[..., Any]:
        asked.append((backend == "coilwork" or backend is registered, mode))
        return function

    monkeypatch.setattr(torch, "compile", compile)
    compile_function(torch.sin, backend)
    assert asked == [(True, mode)]
