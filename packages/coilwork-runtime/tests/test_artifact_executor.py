"""Artefacts with a program for the native executor: it runs where the executor is to be had, and the module elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from executor_assembly import CHECK, Assembly, u8
from runtime_sample_kernels import cpp_kernel, module_text

from coilwork_cache import MemoryStore
from coilwork_runtime import (
    ArtifactError,
    Builder,
    ExecutorUnavailableError,
    LayoutError,
    load_artifact,
    save_artifact,
)
from coilwork_runtime.artifact import load

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

CONSTANTS = {"c": torch.arange(8.0)}


def program() -> bytes:
    """What the sample module does: 2 * x + c."""
    asm = Assembly("sample")
    asm.input("x")
    asm.constant("c", "c")
    asm.add(CHECK, asm.slot("x") + asm.layout(8) + u8(0), "check %x")
    asm.alloc("y", asm.layout(8))
    asm.launch("double_it", ["x", "y"], [asm.number(8)])
    asm.call("aten.add.Tensor", [asm.ref("y"), asm.ref("c")], results=["z"])
    asm.free("y")
    return asm.returns("z")


def save(path: Path, data: bytes, roles: str = "") -> Path:
    save_artifact(
        path,
        module_text=module_text(cpp_kernel()),
        name="sample",
        builder=Builder(),
        constants=CONSTANTS,
        program=data,
        roles=roles,
    )
    return path


def check(path: Path, store: MemoryStore | None) -> str:
    loaded = load_artifact(path, store=store)
    x = torch.randn(8)
    assert torch.equal(loaded(x)[0], 2 * x + CONSTANTS["c"])
    with pytest.raises(LayoutError, match="input x: shape"):
        loaded(torch.randn(9))
    return loaded.executor


def test_the_program_runs_natively(tmp_path: Path) -> None:
    assert check(save(tmp_path / "a.coil", program()), MemoryStore()) == "native"


@pytest.mark.parametrize("executor", ["native", "python"])
def test_roles_are_applied(executor: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.coil", program(), "takes 1\nin 0 resolved\nout 0 view of out 0\n")
    loaded = load_artifact(path, store=MemoryStore() if executor == "native" else None)
    x = torch.randn(8)
    (found,) = loaded(torch._neg_view(x))
    assert torch.equal(found, CONSTANTS["c"] - 2 * x)
    assert found._is_view() and loaded.executor == executor


def test_roles_that_need_python_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="made by tail"):
        save(tmp_path / "a.coil", program(), "takes 1\ncall tail takes in 0 gives out 0\n")


def test_without_a_store_nothing_is_built(tmp_path: Path) -> None:
    assert check(save(tmp_path / "a.coil", program()), None) == "python"


def test_without_a_program_the_module_runs(tmp_path: Path) -> None:
    assert check(save(tmp_path / "a.coil", b""), MemoryStore()) == "python"


def test_a_program_of_another_version_leaves_the_module(tmp_path: Path) -> None:
    data = program()
    other = data[:8] + bytes((99,)) + data[9:]
    assert check(save(tmp_path / "a.coil", other), MemoryStore()) == "python"


def test_without_the_executor_the_module_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise ExecutorUnavailableError("executor-build", "there is none")

    monkeypatch.setattr(load, "load_native", unavailable)
    assert check(save(tmp_path / "a.coil", program()), MemoryStore()) == "python"
