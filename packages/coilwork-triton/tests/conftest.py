"""Fixtures: what runs Triton kernels and what compiles them, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# tests are imported one by one (importlib mode), so what they share must be found by name
sys.path.insert(0, str(Path(__file__).parent))

from kernel_bench import TritonProcess


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--random-triton-mappings N` draws more mappings."""
    parser.addoption(
        "--random-triton-mappings", type=int, default=16, help="how many mappings are drawn, run and compared"
    )


@pytest.fixture(
    scope="session",
    params=[
        pytest.param("interpreter", marks=pytest.mark.interpreter),
        pytest.param("gpu", marks=pytest.mark.gpu),
    ],
)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonProcess]:
    """What runs kernels: Triton's interpreter on CPU tensors, and the GPU where there is one."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    torch = pytest.importorskip("torch", reason="the package itself does without")
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    process = TritonProcess(interpret=request.param == "interpreter", cache=tmp_path_factory.mktemp("triton"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """Triton's compiler, for any GPU."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    process = TritonProcess(interpret=False, cache=tmp_path_factory.mktemp("triton"))
    yield process
    process.close()
