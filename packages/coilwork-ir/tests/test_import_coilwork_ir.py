"""Importing `coilwork_ir` loads only what the package promises to load."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

import coilwork_ir

ALLOWED_OF_OURS = frozenset({"coilwork_ir"})
NEVER_LOADED = ("torch", "sympy", "triton", "numpy")


# everything but the interpreters, the conformance kit and the bridge to sympy
LIGHT = (
    "coilwork_ir.backend, coilwork_ir.target, coilwork_ir.loops.text, coilwork_ir.loops.verify, "
    "coilwork_ir.kernels.text, coilwork_ir.kernels.verify, coilwork_ir.program.text, "
    "coilwork_ir.program.verify"
)


@functools.cache
def modules_after_import(modules: str = "coilwork_ir") -> list[str]:
    """Names in `sys.modules` of a fresh interpreter that has only imported `modules`."""
    code = f"import {modules}, sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_has_a_version() -> None:
    assert coilwork_ir.__version__.count(".") == 2


def test_loads_no_other_package_of_ours() -> None:
    tops = {name.partition(".")[0] for name in modules_after_import()}
    ours = {top for top in tops if top == "coilwork" or top.startswith("coilwork_")}
    assert ours <= ALLOWED_OF_OURS


@pytest.mark.parametrize("modules", ["coilwork_ir", LIGHT])
def test_loads_nothing_heavy(modules: str) -> None:
    loaded = modules_after_import(modules)
    heavy = [name for name in loaded for root in NEVER_LOADED if name == root or name.startswith(root + ".")]
    assert heavy == []
