"""Importing the package works, and stays free of what only a compilation needs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import coilwork


def test_version_is_the_wheels() -> None:
    assert coilwork.__version__ == importlib.metadata.version("coilwork")


def test_backend_is_registered_by_entry_point() -> None:
    found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="coilwork")
    assert [point.value for point in found] == ["coilwork.backend:backend"]


def test_public_names_are_loaded_on_use() -> None:
    code = (
        "import coilwork, sys; assert 'torch' not in sys.modules, 'torch'; coilwork.options; "
        "import coilwork.backend; from coilwork import compile, list_options, options; "
        "assert callable(coilwork.options) and {*coilwork.__all__} <= {*dir(coilwork)}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing"):
        coilwork.nothing  # noqa: B018


def test_import_does_not_load_inductor() -> None:
    code = "import coilwork, sys; print(*sorted(m for m in sys.modules if m.startswith('torch._inductor')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
