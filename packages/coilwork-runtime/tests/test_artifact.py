"""Saved artefacts: round trip, another process without a compiler, and every kind of wrong file
or machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from executor_assembly import Assembly, sample_program
from runtime_sample_kernels import cpp_kernel, triton_kernel

from coilwork_runtime import (
    ArtifactError,
    Builder,
    DeviceError,
    LayoutError,
    ProgramBytesError,
    artifact_file,
    load_artifact,
    save_artifact,
)
from coilwork_runtime.artifact import adapt_to_machine, can_run_on
from coilwork_runtime.manifest.kernel_manifest import KernelSpec, encode_kernels

CONSTANTS = {"c": torch.arange(8.0)}


def save(path: Path, spec: KernelSpec | None = None) -> Path:
    save_artifact(
        path,
        program=sample_program(),
        kernels=encode_kernels([spec or cpp_kernel()]),
        name="sample",
        builder=Builder(),
        constants=CONSTANTS,
    )
    return path


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("artifact") / "sample.coil")


def expected(x: torch.Tensor) -> torch.Tensor:
    return 2 * x + CONSTANTS["c"]


def test_round_trip(artifact: Path) -> None:
    program = load_artifact(artifact)
    x = torch.randn(8)
    (y,) = program(x)
    assert torch.equal(y, expected(x))
    assert program.name == "sample"


def test_equal_programs_give_equal_files(artifact: Path, tmp_path: Path) -> None:
    assert save(tmp_path / "again.coil").read_bytes() == artifact.read_bytes()


def test_launches_of_the_users_kernels_are_not_saved(tmp_path: Path) -> None:
    assembly = Assembly()
    assembly.input("x")
    assembly.call("coilwork_kernels.scale_0123456789ab.default", [assembly.ref("x")], results=[])
    with pytest.raises(ArtifactError, match="scale_0123456789ab") as caught:
        save_artifact(
            tmp_path / "launch.coil",
            program=assembly.returns("x"),
            kernels=encode_kernels([]),
            name="launch",
            builder=Builder(),
            constants={},
        )
    assert caught.value.code == "user-kernels"


def test_inputs_are_checked(artifact: Path) -> None:
    with pytest.raises(LayoutError, match="input x: shape"):
        load_artifact(artifact)(torch.randn(9))


def test_another_process_without_a_compiler(artifact: Path, tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from coilwork_runtime import load_artifact\n"
        f"(y,) = load_artifact({str(artifact)!r})(torch.ones(8))\n"
        "print(*y.tolist(), 'triton' in sys.modules)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CXX"}
    environment |= {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [*map(str, expected(torch.ones(8)).tolist()), "False"]


def test_every_flipped_byte_is_noticed_or_harmless(artifact: Path, tmp_path: Path) -> None:
    """Harmless: in a field of zip's that nobody reads. Never: another program, or an error that
    is not ours.
    """
    data = artifact.read_bytes()
    codes: list[str] = []
    damaged = tmp_path / "damaged.coil"
    good = artifact_file.read_records(artifact)
    for position in range(0, len(data), max(1, len(data) // 400)):
        damaged.write_bytes(data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :])
        try:
            assert artifact_file.read_records(damaged) == good
        except ArtifactError as error:
            codes.append(error.code)
    assert len(codes) > 300
    assert set(codes) <= {"damaged-artifact", "no-artifact"}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_cut_short(artifact: Path, tmp_path: Path, share: float) -> None:
    data = artifact.read_bytes()
    short = tmp_path / "short.coil"
    short.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(
        ArtifactError, match=r"(?s)damaged-artifact.*damaged or cut short.*try     copy or save it again"
    ):
        load_artifact(short)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="unreadable"):
        load_artifact(tmp_path / "absent.coil")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="unwritable"):
        save(tmp_path / "absent" / "sample.coil")


def test_another_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    with pytest.raises(ArtifactError, match="no-artifact"):
        load_artifact(path)


@pytest.mark.parametrize(("program", "kernels"), [(b"no program", None), (None, b"no kernels")])
def test_bytes_that_are_none_are_not_saved(
    program: bytes | None, kernels: bytes | None, tmp_path: Path
) -> None:
    with pytest.raises(ProgramBytesError):
        save_artifact(
            tmp_path / "x.coil",
            program=sample_program() if program is None else program,
            kernels=encode_kernels([cpp_kernel()]) if kernels is None else kernels,
            name="x",
            builder=Builder(),
            constants={},
        )


def test_another_format(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "newer.coil"
    good = artifact_file.read_records(artifact)
    monkeypatch.setattr(artifact_file, "FORMAT", 99)
    artifact_file.write_records(path, good)
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match=r"artifact-format.*\n.*format 99|artifact-format.*format 99"):
        load_artifact(path)


def test_another_runtime(artifact: Path, tmp_path: Path) -> None:
    path = tmp_path / "later.coil"
    artifact_file.write_records(path, replace(artifact_file.read_records(artifact), runtime="7.5.0"))
    with pytest.raises(ArtifactError, match=r"(?s)runtime-version.*pip install 'coilwork-runtime==7\.5\.0'"):
        load_artifact(path)


def with_machine(artifact: Path, path: Path, machine: str) -> Path:
    good = artifact_file.read_records(artifact)
    artifact_file.write_records(path, replace(good, facts={**good.facts, "machine": machine}))
    return path


def test_another_cpu_builds_from_the_source(artifact: Path, tmp_path: Path) -> None:
    program = load_artifact(with_machine(artifact, tmp_path / "other.coil", "sparc64"))
    assert torch.equal(program(torch.ones(8))[0], expected(torch.ones(8)))


def test_another_cpu_without_a_compiler(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = with_machine(artifact, tmp_path / "other.coil", "sparc64")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match=r"(?s)other-device.*no C\+\+ compiler"):
        load_artifact(other)


def test_features_that_this_cpu_lacks_are_left_out() -> None:
    spec = replace(cpp_kernel(), features=("avx1024", "quantum"))
    fitting = adapt_to_machine(spec)
    assert isinstance(fitting, KernelSpec) and fitting.features == ()


def test_a_gpu_artifact_without_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="compiles a kernel")
    path = save(tmp_path / "gpu.coil", triton_kernel(blocks=(256, 512)))
    kernels = json.loads(zipfile.ZipFile(path).read("manifest.json"))["facts"]["kernels"]["double_it"]
    assert [kernel["config"]["XBLOCK"] for kernel in kernels] == [256, 512]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"(?s)missing-device.*made for sm_90"):
        load_artifact(path)


@pytest.mark.parametrize(
    ("target", "present", "runs"),
    [
        ("sm_90", "sm_90", True),
        ("sm_80", "sm_86", True),
        ("sm_86", "sm_80", False),
        ("sm_80", "sm_90", False),
        ("sm_100", "sm_103", False),
        ("gfx942", "gfx942", True),
        ("gfx942", "gfx90a", False),
        ("sm_90", "gfx942", False),
    ],
)
def test_what_runs_where(target: str, present: str, runs: bool) -> None:
    assert can_run_on(target, present) is runs


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(6)[1::2],
        torch.randn(5).expand(3, 5),
        torch.tensor(2.5, dtype=torch.float64),
        torch.empty(0, 3),
        torch.randn(7).bfloat16(),
        torch.tensor([True, False]),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4).to(torch.float8_e4m3fn),
    ],
    ids=["plain", "transposed", "strided", "expanded", "scalar", "empty", "bf16", "bool", "conj", "f8"],
)
def test_constants_keep_values_and_layout(value: torch.Tensor) -> None:
    from coilwork_runtime.artifact_file import decode_constant, describe_constant, encode_constant

    description = json.loads(json.dumps(describe_constant(value)))
    back = decode_constant(description, encode_constant(value))
    assert back.dtype == value.dtype and back.stride() == value.stride()
    assert torch.equal(back.to(torch.complex128), value.to(torch.complex128))


def test_a_constant_of_the_wrong_length() -> None:
    from coilwork_runtime.artifact_file import decode_constant, describe_constant

    with pytest.raises(ValueError, match="has 3 bytes"):
        decode_constant(describe_constant(torch.ones(2)), b"abc")
