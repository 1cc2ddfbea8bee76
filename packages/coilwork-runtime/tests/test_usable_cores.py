"""How many workers build kernels: affinity, and quotas of cgroups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coilwork_runtime import usable_cores
from coilwork_runtime.usable_cores import count_usable_cores, read_cpu_quota


def make_groups(
    folder: Path, *, groups: str, kind: str, options: str, root: str, quotas: dict[str, dict[str, str]]
) -> Path:
    """A process's folder, of groups that are mounted in `folder`; `quotas` are their files."""
    mounted, proc = folder / "mounted", folder / "proc"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(groups)
    mount = f"33 32 0:28 {root} {mounted} rw,relatime shared:9 - {kind} cgroup {options}"
    (proc / "mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/root rw\n{mount}\nrubbish\n")
    for group, files in quotas.items():
        place = mounted / group
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name).write_text(text)
    return proc


def version_2(folder: Path, path: str, root: str, quotas: dict[str, str]) -> Path:
    files = {group: {"cpu.max": text} for group, text in quotas.items()}
    return make_groups(folder, groups=f"0::{path}\n", kind="cgroup2", options="rw", root=root, quotas=files)


@pytest.mark.parametrize(
    ("path", "root", "quotas", "expected"),
    [
        ("/", "/", {}, None),
        ("/", "/", {"": "max 100000\n"}, None),
        # a container that sees its own group as the root of all
        ("/", "/", {"": "150000 100000\n"}, 1.5),
        ("/a/b", "/", {"a": "400000 100000", "a/b": "max 100000"}, 4.0),
        ("/a/b", "/", {"a": "400000 100000", "a/b": "50000 100000"}, 0.5),
        # a container that sees the machine's paths, and mounts its group alone
        ("/docker/x", "/docker/x", {"": "200000 100000"}, 2.0),
        ("/../other", "/docker/x", {"": "200000 100000"}, 2.0),
        ("/", "/", {"": "rubbish"}, None),
        ("/", "/", {"": "100000 0"}, None),
    ],
)
def test_quotas_of_version_2(
    path: str, root: str, quotas: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    assert read_cpu_quota(version_2(tmp_path, path, root, quotas)) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", None), ("300000", 3.0), ("50000", 0.5)])
def test_quotas_of_version_1(quota: str, expected: float | None, tmp_path: Path) -> None:
    files = {"job": {"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"}}
    proc = make_groups(
        tmp_path,
        groups="9:name=systemd:/\n4:cpu,cpuacct:/job\n0::/\n",
        kind="cgroup",
        options="rw,cpu,cpuacct",
        root="/",
        quotas=files,
    )
    assert read_cpu_quota(proc) == expected


def test_workers_are_no_more_than_affinity_and_quota_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for quota, expected in ((None, 8), (0.2, 1), (1.5, 2), (3.0, 3), (64.0, 8)):
        monkeypatch.setattr(usable_cores, "read_cpu_quota", lambda quota=quota: quota)
        assert count_usable_cores() == expected
    assert read_cpu_quota(tmp_path / "no such folder") is None
