"""Who runs an artefact: the native executor where it is to be had, and Python elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from executor_assembly import sample_program
from runtime_sample_kernels import cpp_kernel, triton_kernel

from coilwork_cache import MemoryStore
from coilwork_runtime import (
    ArtifactError,
    Builder,
    ExecutorUnavailableError,
    LayoutError,
    artifact_file,
    extensions,
    load_artifact,
    save_artifact,
)
from coilwork_runtime.executor import choice
from coilwork_runtime.executor.choice import ExecutorOptions
from coilwork_runtime.manifest.kernel_manifest import KernelSpec, encode_kernels
from coilwork_runtime.native_build import EXECUTOR

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

CONSTANTS = {"c": torch.arange(8.0)}


def save(
    path: Path,
    roles: str = "",
    refusal: str = "",
    *,
    kernel: KernelSpec | None = None,
    rounds_freely: bool = False,
) -> Path:
    save_artifact(
        path,
        program=sample_program(),
        kernels=encode_kernels([kernel or cpp_kernel()]),
        name="sample",
        builder=Builder(),
        constants=CONSTANTS,
        roles=roles,
        refusal=refusal,
        rounds_freely=rounds_freely,
    )
    return path


def check(path: Path, store: MemoryStore | None, options: ExecutorOptions | None = None) -> str:
    loaded = load_artifact(path, store=store, options=options)
    x = torch.randn(8)
    assert torch.equal(loaded(x)[0], 2 * x + CONSTANTS["c"])
    with pytest.raises(LayoutError, match="input x: shape"):
        loaded(torch.randn(9))
    return loaded.executor


def test_the_program_runs_natively(tmp_path: Path) -> None:
    assert check(save(tmp_path / "a.coil"), MemoryStore()) == "native"


@pytest.mark.interpreter
def test_a_program_of_gpu_kernels_runs_natively(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="runs a kernel of Triton's")
    save(tmp_path / "a.coil", kernel=triton_kernel())
    code = f"""if True:
        import torch
        from coilwork_cache import open_local_store
        from coilwork_runtime import load_artifact
        loaded = load_artifact({str(tmp_path / "a.coil")!r}, store=open_local_store(None))
        (found,) = loaded(torch.ones(8))
        print(loaded.executor, *found.tolist())
    """
    # Triton interprets in a process that is told so from its beginning
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["native", *map(str, (2 + CONSTANTS["c"]).tolist())]


def test_who_runs_it_may_be_chosen(tmp_path: Path) -> None:
    path = save(tmp_path / "a.coil")
    assert check(path, MemoryStore(), ExecutorOptions(executor="python")) == "python"


@pytest.mark.parametrize("rounds_freely", [False, True])
def test_libraries_are_called_as_the_program_was_compiled(
    rounds_freely: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[bool, tuple[str, ...]]] = []
    drive = choice.drive

    def seen(graph: choice.Loadable, *, options: ExecutorOptions, **rest: object) -> choice.Driven:
        given.append((options.rounds_freely, tuple(graph.devices)))
        return drive(graph, options=options, **rest)

    monkeypatch.setattr("coilwork_runtime.artifact.drive", seen)
    check(save(tmp_path / "a.coil", rounds_freely=rounds_freely), MemoryStore())
    assert given == [(rounds_freely, ("cpu",))]


@pytest.mark.parametrize("executor", ["native", "python"])
def test_roles_are_applied(executor: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.coil", "takes 1\nin 0 resolved\nout 0 view of out 0\n")
    options = ExecutorOptions(executor="python" if executor == "python" else "native")
    loaded = load_artifact(path, store=MemoryStore(), options=options)
    x = torch.randn(8)
    (found,) = loaded(torch._neg_view(x))
    assert torch.equal(found, CONSTANTS["c"] - 2 * x)
    assert found._is_view() and loaded.executor == executor


def test_roles_that_need_python_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="made by tail"):
        save(tmp_path / "a.coil", "takes 1\ncall tail takes in 0 gives out 0\n")


def test_without_a_store_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, EXECUTOR, raising=False)
    monkeypatch.setattr(extensions, "PREBUILT", "nothing-is-here")
    assert check(save(tmp_path / "a.coil"), None) == "python"


def test_without_a_store_the_executor_at_hand_runs_it(tmp_path: Path) -> None:
    path = save(tmp_path / "a.coil")
    check(path, MemoryStore())
    assert check(path, None) == "native"


def test_a_program_that_the_executor_refuses_runs_in_python(tmp_path: Path) -> None:
    path = save(tmp_path / "a.coil", refusal="a thing that cannot be")
    assert check(path, MemoryStore()) == "python"


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["python", "native"])
def test_a_program_of_another_version_is_refused(tmp_path: Path, store: MemoryStore | None) -> None:
    good = artifact_file.read_records(save(tmp_path / "a.coil"))
    data = sample_program()
    other = {**good.contents, artifact_file.PROGRAM: data[:8] + bytes((99,)) + data[9:]}
    artifact_file.write_records(tmp_path / "b.coil", replace(good, contents=other))
    with pytest.raises(ArtifactError, match=r"(?s)damaged-artifact.*of version 99.*save the artefact again"):
        load_artifact(tmp_path / "b.coil", store=store)


def test_without_the_executor_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(*_: object, **__: object) -> None:
        raise ExecutorUnavailableError("executor-build", "there is none")

    monkeypatch.setattr(choice, "load_native", unavailable)
    path = save(tmp_path / "a.coil")
    assert check(path, MemoryStore()) == "python"
    with pytest.warns(
        UserWarning, match=r"artefact sample is driven by Python instead of the native.*there is none"
    ):
        check(path, MemoryStore(), ExecutorOptions(executor="native"))
    with pytest.raises(ExecutorUnavailableError, match="there is none"):
        load_artifact(path, store=MemoryStore(), options=ExecutorOptions(executor="native", strict=True))
