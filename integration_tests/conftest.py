"""The order of files; caches of a file's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish() -> None:
    """Import Dynamo before the root's conftest.py sets it up; consumers' environment has no torch."""
    if "torch" in sys.modules:
        import torch._dynamo  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files marked slow go first: of two workers, neither shall wait for the other's last file at the end.

    It takes `--no-loadscope-reorder`, as pytest-xdist else begins with the files that have the most tests.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="module")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the tests of one file compile."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def own_caches(monkeypatch: pytest.MonkeyPatch, kernel_cache: Path) -> Iterator[None]:
    """Kernels are kept for this file alone, nothing that Dynamo knows outlives a test, and random numbers are
    the same.
    """
    import torch

    monkeypatch.setenv("COILWORK_CACHE_DIR", str(kernel_cache))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
