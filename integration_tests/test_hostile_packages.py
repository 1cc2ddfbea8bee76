"""The command that loads damaged and hostile packages: its files, and that it tells what is wrong.

All of it: `python -m integration_tests.hostile_packages`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

from coilwork import export
from coilwork_aot.archive import read_archive
from integration_tests import hostile_packages
from integration_tests.hostile_packages import (
    FAMILIES,
    Originals,
    Watch,
    judge,
    list_records,
    load_by_python,
    report,
    run,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the command forks")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Originals:
    """Packages of a product, which takes no compiler."""
    folder, made = tmp_path_factory.mktemp("packages"), []
    for number in (3, 5):
        path = folder / f"{number}.cw"
        export(torch.nn.Linear(4, number), (torch.randn(2, 4),), path=path)
        made.append(path.read_bytes())
    return Originals(made[0], made[1], list_records(read_archive(folder / "3.cw")))


class Agreeing:
    """Stands for the C++ library, and says what Python says."""

    def open(self, path: Path) -> str:
        return load_by_python(path, Watch())


class Trusting:
    """A library that takes every file, and leaves another one behind."""

    def open(self, path: Path) -> str:
        path.with_suffix(".new").touch()
        return ""


@pytest.mark.parametrize("family", FAMILIES)
def test_files_of_each_family_are_refused(originals: Originals, tmp_path: Path, family: str) -> None:
    path, codes = tmp_path / "hostile.cw", set()
    for seed in range(6):
        data = FAMILIES[family](originals, random.Random(seed))
        path.write_bytes(data)
        is_hashed = family == "rehashed" or data == originals.one
        code, fault = judge(path, Agreeing(), Watch(), is_hashed=is_hashed)
        assert not fault, (seed, fault)
        codes.add(code)
    assert codes - {"loaded"}, "no file of the family was refused"


def test_a_loader_that_takes_a_damaged_file_is_reported(originals: Originals, tmp_path: Path) -> None:
    path = tmp_path / "hostile.cw"
    path.write_bytes(originals.one[:-1])
    code, fault = judge(path, Trusting(), Watch(), is_hashed=False)
    assert code == "truncated"
    assert "files have appeared" in fault and "Python says truncated, C++ nothing" in fault


def test_a_crash_is_reported_and_the_rest_goes_on(
    originals: Originals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash_at_two(
        numbers: range, seed: int, given: Originals, library: Path, folder: Path, to: int
    ) -> None:
        for number in numbers:
            os.write(to, b'{"begun": %d, "family": "cut"}\n' % number)
            if number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            os.write(to, b'{"number": %d, "family": "cut", "code": "truncated", "fault": ""}\n' % number)

    monkeypatch.setattr(hostile_packages, "run_batch", crash_at_two)
    found = run(range(5), 0, originals, tmp_path, tmp_path)
    assert [one["code"] for one in found] == ["truncated", "truncated", "", "truncated", "truncated"]
    assert "FAULT 2 cut: the process ended: SIGKILL" in report(found)
    assert report(found).endswith("5 files, 1 faults")


def test_what_a_refused_file_may_not_do_is_heard() -> None:
    watch = Watch(active=True)
    watch.hear("open", ("/etc/hosts", "r", os.O_RDONLY))
    assert not watch.events
    watch.hear("open", ("/tmp/x", "w", os.O_WRONLY | os.O_CREAT))
    watch.hear("subprocess.Popen", ("sh",))
    assert len(watch.events) == 2
