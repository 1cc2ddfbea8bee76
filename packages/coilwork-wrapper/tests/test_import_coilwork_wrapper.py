"""Importing `coilwork_wrapper` loads only what the package promises to load."""

from __future__ import annotations

import functools
import subprocess
import sys

import coilwork_wrapper

ALLOWED_OF_OURS = frozenset({"coilwork_wrapper", "coilwork_ir"})
NEVER_LOADED = ("torch._inductor", "triton")


@functools.cache
def modules_after_import() -> list[str]:
    """Names in `sys.modules` of a fresh interpreter that has only imported this package."""
    code = "import coilwork_wrapper, sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_has_a_version() -> None:
    assert coilwork_wrapper.__version__.count(".") == 2


def test_loads_no_other_package_of_ours() -> None:
    tops = {name.partition(".")[0] for name in modules_after_import()}
    ours = {top for top in tops if top == "coilwork" or top.startswith("coilwork_")}
    assert ours <= ALLOWED_OF_OURS


def test_loads_nothing_heavy() -> None:
    loaded = modules_after_import()
    heavy = [name for name in loaded for root in NEVER_LOADED if name == root or name.startswith(root + ".")]
    assert heavy == []
