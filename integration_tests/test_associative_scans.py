"""Associative scans from torch.compile to C++, and to kernels in Triton's interpreter; gradients as torch
defines them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.backends import compile_with, resolve_backend
from integration_tests.associative_scans import CASES, by_operator, drawn, recurrence
from integration_tests.interpreting import answers_of
from integration_tests.model_checks import no_fallback


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CASES)
def test_cpu_scans_agree_with_a_loop(name: str) -> None:
    with no_fallback():
        CASES[name]()


def test_producers_and_consumers_fuse_with_a_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COILWORK_TRACE", str(tmp_path))
    monkeypatch.setenv("COILWORK_CACHE", "0")
    CASES["strided"]()
    texts = [path.read_text() for path in tmp_path.rglob("*.txt") if "program" in path.name]
    assert any(text.count("launch ") == 1 for text in texts)
    assert all("= scan by {" in path.read_text() for path in tmp_path.rglob("*.loops.txt"))


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_a_scan_agree(reverse: bool) -> None:
    def function(x: Tensor, gate: Tensor) -> Tensor:
        return by_operator(recurrence, [gate.sigmoid(), x], 1, reverse=reverse)[1].cos()

    def gradients(backend: Any) -> list[Tensor]:
        torch._dynamo.reset()
        x, gate = drawn(3, 9, 5).requires_grad_(), drawn(3, 9, 5).requires_grad_()
        found = torch.compile(function, backend=backend)(x, gate)
        return [found.detach(), *torch.autograd.grad(found.square().sum(), [x, gate])]

    with no_fallback():
        mine = gradients(resolve_backend("coilwork"))
    for found, wanted in zip(mine, gradients("aot_eager"), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_generic_combine_mode_agrees() -> None:
    from torch._higher_order_ops import associative_scan

    def function(x: Tensor) -> Tensor:
        found: Tensor = associative_scan(torch.maximum, x, 1, reverse=True, combine_mode="generic")
        return found

    x = drawn(4, 13)
    with no_fallback():
        assert torch.equal(compile_with(function, "coilwork")(x), x.flip(1).cummax(1).values.flip(1))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case in Triton's interpreter."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    return answers_of("integration_tests.interpreted_scans", tmp_path_factory.mktemp("scans"))


@pytest.mark.interpreter
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_triton_scans_agree_with_a_loop(answers: dict[str, str], name: str) -> None:
    if answers[name]:
        pytest.fail(answers[name], pytrace=False)
