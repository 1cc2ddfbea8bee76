"""Puts the repository's root on the path, for `benchmarks` and `integration_tests` themselves; the order of
files; caches of a file's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)


def pytest_collection_finish() -> None:
    """After all imports; consumers' environment has no torch."""
    if "torch" in sys.modules:
        import torch._dynamo

        from integration_tests.quicker_compiles import quicken_compiles

        quicken_compiles()
        # of what is compiled too often without a reset, eager would be compared with itself
        torch._dynamo.config.fail_on_recompile_limit_hit = True


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
