"""Operators for kernels of the user's: what tells them apart, their schemas, and their launches."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import torch

from coilwork_runtime.triton_kernels.user_kernels import UserKernel, define_kernel, find_kernel

pytest.importorskip("triton", reason="compiles Triton kernels")

SOURCE: Final = '''
import triton
import triton.language as tl

LIMIT = tl.constexpr(3)

@triton.jit
def inner(value):
    return value * 2

@triton.jit
def outer(x, out, n, factor, flag, BLOCK: tl.constexpr):
    """It's "documented"."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = inner(tl.load(x + at, mask=at < n)) * factor + LIMIT
    tl.store(out + at, tl.where(flag, value, -value), mask=at < n)

WIDEST = 32

def prune(configs, named, **others):
    return [config for config in configs if config.kwargs["BLOCK"] <= WIDEST]

tuned = triton.autotune(
    configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}, num_warps=2)],
    key=["n"],
    prune_configs_by={"early_config_prune": prune},
)(outer)
'''
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    numbers = itertools.count()

    def load_text(text: str) -> ModuleType:
        # one file name, since what a kernel says of its place is in its key; one folder for each text
        path = tmp_path / str(next(numbers)) / "kernels_of_a_user.py"
        path.parent.mkdir()
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("kernels_of_a_user", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_text


def _values(**more: Any) -> dict[str, Any]:
    named = {"x": torch.ones(40), "out": torch.empty(40), "n": 40, "factor": 1.5, "flag": True, "BLOCK": 16}
    return {**named, **more}


def _define(kernel: Any, *, grids: int = 1, **values: Any) -> UserKernel:
    defined = define_kernel(kernel, _values(**values), written=("out",), grids=grids)
    assert defined is not None
    return defined


def test_schema_says_what_is_written(load: Load) -> None:
    kernel = _define(load(SOURCE).outer)
    assert str(kernel.overload._schema) == (
        f"coilwork_kernels::{kernel.name}(Tensor x, Tensor(a1!) out, SymInt n, float factor, bool flag, "
        "SymInt BLOCK, SymInt[] launch_grid) -> ()"
    )
    assert find_kernel(f"coilwork_kernels.{kernel.name}.default") is kernel
    assert find_kernel("aten.mm.default") is None


def test_equal_kernels_share_an_operator(load: Load) -> None:
    first, second = load(SOURCE), load(SOURCE)
    assert _define(first.outer) is _define(second.outer, n=41, factor=2.5, BLOCK=32)
    assert _define(first.tuned, grids=2) is _define(second.tuned, grids=2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return value * 2", "return value * 3"),
        ("tl.constexpr(3)", "tl.constexpr(4)"),
        ("* factor + LIMIT", "* factor - LIMIT"),
        ("num_warps=2", "num_warps=4"),
        ("<= WIDEST]", "< WIDEST]"),
        ("WIDEST = 32", "WIDEST = 64"),
    ],
)
def test_what_changes_a_launch_changes_the_operator(old: str, new: str, load: Load) -> None:
    first, second = load(SOURCE), load(SOURCE.replace(old, new))
    assert _define(first.tuned, grids=2) is not _define(second.tuned, grids=2)


def test_constants_are_of_the_operator(load: Load) -> None:
    outer = load(SOURCE).outer
    assert _define(outer, factor=None).constants == {"factor": None}
    assert _define(outer, factor=None) is not _define(outer)
    assert _define(outer, factor=torch.float32) is not _define(outer)


def test_an_object_of_the_users_is_never_taken_for_another(load: Load) -> None:
    outer = load(SOURCE).outer
    assert _define(outer, factor=object()) is not _define(outer, factor=object())


def test_there_is_no_operator_for_other_things(load: Load) -> None:
    assert define_kernel(len, {"x": torch.ones(2)}, written=()) is None
    assert define_kernel(load(SOURCE).outer, _values(factor=(torch.ones(2), 1)), written=()) is None


@pytest.mark.parametrize("name", ["outer", "tuned"])
def test_launches_over_cpu_tensors_are_interpreted(
    name: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load(SOURCE)
    grids = [3, 1, 1] if name == "outer" else [3, 1, 1, 2, 1, 1]
    values = _values()
    if name == "tuned":
        del values["BLOCK"]
    kernel = define_kernel(getattr(module, name), values, written=("out",), grids=len(grids) // 3)
    assert kernel is not None
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    x, out = torch.randn(40), torch.full((40,), 7.0)
    values |= {"x": x, "out": out}
    kernel.overload(*values.values(), grids)
    torch.testing.assert_close(out, x * 2 * 1.5 + 3)
    values["flag"] = False
    kernel.launch(*values.values(), grids)
    torch.testing.assert_close(out, -(x * 2 * 1.5 + 3))


def test_an_empty_grid_launches_nothing(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = _define(load(SOURCE).outer)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    out = torch.full((40,), 7.0)
    kernel.overload(*_values(out=out).values(), [0, 1, 1])
    assert bool((out == 7).all())
