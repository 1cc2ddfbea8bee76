"""What devices are, without compiling."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from coilwork_runtime import DeviceError, describe_cpu, describe_gpu, devices
from coilwork_runtime.devices import (
    AVX2,
    AVX512,
    can_run_on,
    find_cpu_target_name,
    find_device_number,
    parse_device,
    read_cpu_features,
)


def test_the_cpu_is_described_without_starting_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("describing a device starts no process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    facts = describe_cpu()
    assert facts.name == find_cpu_target_name(platform.machine(), read_cpu_features())
    assert facts.multiprocessors == torch.get_num_threads()


@pytest.mark.parametrize(
    ("machine", "features", "name"),
    [
        ("x86_64", AVX2 | AVX512, "x86-64-avx512"),
        ("x86_64", AVX2, "x86-64-avx2"),
        ("AMD64", AVX2, "x86-64-avx2"),
        ("x86_64", AVX512 - {"avx512dq"} | AVX2, "x86-64-avx2"),
        ("aarch64", frozenset({"asimd"}), "aarch64-neon"),
        ("arm64", frozenset(), "aarch64-neon"),
    ],
)
def test_a_cpu_has_the_target_of_its_features(machine: str, features: frozenset[str], name: str) -> None:
    assert find_cpu_target_name(machine, features) == name


@pytest.mark.parametrize("key", ["flags\t\t", "Features\t"])
def test_features_are_read_from_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor : 0\n{key}: fma avx2\n\nprocessor : 1\n{key}: fma\n")
    monkeypatch.setattr(devices, "CPU_INFO", info)
    assert read_cpu_features() == {"fma", "avx2"}


def test_without_a_kernels_list_torch_says_what_the_cpu_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "CPU_INFO", tmp_path / "absent")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert read_cpu_features() == AVX2
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert read_cpu_features() == frozenset()
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert read_cpu_features() == {"asimd"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_processor_without_the_least_instructions_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str
) -> None:
    """The model of a processor that virtual machines have if none is asked for."""
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags : sse2 ssse3 fma\n")
    monkeypatch.setattr(devices, "CPU_INFO", info)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    if machine == "aarch64":
        assert describe_cpu().name == "aarch64-neon"
        return
    with pytest.raises(DeviceError, match="avx2, f16c, which this processor lacks"):
        describe_cpu()


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match="cuda:63"):
        describe_gpu(63)


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
    ("name", "device", "number"),
    [
        ("cpu", "cpu", -1),
        ("meta", "meta", -1),
        ("cuda", "cuda:0", 0),
        ("xpu", "xpu:0", 0),
        ("cuda:3", "cuda:3", 3),
    ],
)
def test_accelerators_have_numbers(name: str, device: str, number: int) -> None:
    assert parse_device(name) == torch.device(device)
    assert find_device_number(name) == number
