"""Fixtures: Triton's interpreter and Triton's compiler, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# tests are imported one by one (importlib mode), so what they share must be found by name
sys.path.insert(0, str(Path(__file__).parent))

from kernel_bench import TritonProcess  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--refresh-goldens` rewrites the expected texts of this package."""
    parser.addoption("--refresh-goldens", action="store_true", help="rewrite golden texts instead of comparing")


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """Triton's interpreter on CPU tensors."""
    pytest.importorskip("triton")
    process = TritonProcess(interpret=True, cache=tmp_path_factory.mktemp("triton"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """Triton's compiler, for any GPU."""
    pytest.importorskip("triton")
    process = TritonProcess(interpret=False, cache=tmp_path_factory.mktemp("triton"))
    yield process
    process.close()
