"""Who runs an artefact: the native executor where it is to be had, and Python elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from executor_assembly import sample_program
from runtime_sample_kernels import cpp_kernel

from coilwork_cache import MemoryStore
from coilwork_runtime import (
    ArtifactError,
    Builder,
    ExecutorUnavailableError,
    LayoutError,
    load_artifact,
    save_artifact,
)
from coilwork_runtime.artifact import load, records
from coilwork_runtime.manifest.encoding import encode_kernels

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

CONSTANTS = {"c": torch.arange(8.0)}


def save(path: Path, roles: str = "", refusal: str = "") -> Path:
    save_artifact(
        path,
        program=sample_program(),
        kernels=encode_kernels([cpp_kernel()]),
        name="sample",
        builder=Builder(),
        constants=CONSTANTS,
        roles=roles,
        refusal=refusal,
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
    assert check(save(tmp_path / "a.coil"), MemoryStore()) == "native"


@pytest.mark.parametrize("executor", ["native", "python"])
def test_roles_are_applied(executor: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.coil", "takes 1\nin 0 resolved\nout 0 view of out 0\n")
    loaded = load_artifact(path, store=MemoryStore() if executor == "native" else None)
    x = torch.randn(8)
    (found,) = loaded(torch._neg_view(x))
    assert torch.equal(found, CONSTANTS["c"] - 2 * x)
    assert found._is_view() and loaded.executor == executor


def test_roles_that_need_python_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="made by tail"):
        save(tmp_path / "a.coil", "takes 1\ncall tail takes in 0 gives out 0\n")


def test_without_a_store_nothing_is_built(tmp_path: Path) -> None:
    assert check(save(tmp_path / "a.coil"), None) == "python"


def test_a_program_that_the_executor_refuses_runs_in_python(tmp_path: Path) -> None:
    path = save(tmp_path / "a.coil", refusal="a thing that cannot be")
    assert check(path, MemoryStore()) == "python"


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["python", "native"])
def test_a_program_of_another_version_is_refused(tmp_path: Path, store: MemoryStore | None) -> None:
    good = records.read_records(save(tmp_path / "a.coil"))
    data = sample_program()
    other = {**good.contents, records.PROGRAM: data[:8] + bytes((99,)) + data[9:]}
    records.write_records(tmp_path / "b.coil", replace(good, contents=other))
    with pytest.raises(ArtifactError, match=r"(?s)damaged-artifact.*of version 99.*save the artefact again"):
        load_artifact(tmp_path / "b.coil", store=store)


def test_without_the_executor_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise ExecutorUnavailableError("executor-build", "there is none")

    monkeypatch.setattr(load, "load_native", unavailable)
    assert check(save(tmp_path / "a.coil"), MemoryStore()) == "python"
