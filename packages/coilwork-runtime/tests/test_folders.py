"""Folders of processes that were killed go when another process makes one."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coilwork_runtime import folders
from coilwork_runtime.executor.native_program import find_executor_extension


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders._process_folder.cache_clear()
    yield tmp_path
    folders._process_folder.cache_clear()


def start_process(*, forks: bool = False) -> int:
    """The number of a process that has a folder with a file in it, and waits. If it `forks`, it is that of a
    child of it, and it has ended itself.
    """
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        folders._process_folder.cache_clear()
        (folders.new_folder("cpp") / "kernel.so").write_text("code")
        if forks and (child := os.fork()):
            os.write(write, str(child).encode())
            os._exit(0)
        if not forks:
            os.write(write, str(os.getpid()).encode())
        while True:
            signal.pause()
    number = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    if forks:
        os.waitpid(process, 0)
    return number


def end_process(number: int) -> None:
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)


def test_the_folder_of_a_killed_process_is_swept_and_no_other(temporary: Path) -> None:
    foreign = temporary / "coilwork-of-somebody-else"
    foreign.mkdir()
    (foreign / "file").write_text("no lock file, so none of ours")
    killed, alive = start_process(), start_process()
    assert len(list(temporary.glob("coilwork-*/cpp-*/kernel.so"))) == 2
    end_process(killed)
    own = Path(folders.make_scratch_folder())
    left = {one.name for one in temporary.iterdir()}
    assert len(left) == 3 and {own.name, foreign.name} < left
    end_process(alive)
    folders.sweep_abandoned(temporary)
    # this process lives
    assert {one.name for one in temporary.iterdir()} == {own.name, foreign.name}


def test_a_child_that_outlives_its_parent_keeps_the_folder(temporary: Path) -> None:
    """It may use code from there."""
    child = start_process(forks=True)
    folders.sweep_abandoned(temporary)
    assert len(list(temporary.iterdir())) == 1
    os.kill(child, signal.SIGKILL)
    deadline_s = time.monotonic() + 10
    while list(temporary.iterdir()) and time.monotonic() < deadline_s:
        time.sleep(0.005)
        folders.sweep_abandoned(temporary)
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_is_told_to_end_removes_its_folder(number: int, temporary: Path) -> None:
    """At once, and by the signal; what somebody else handles stays as it is."""
    extension = find_executor_extension(None)
    own = set(temporary.iterdir())
    for handler, status in ((signal.SIG_DFL, number), (signal.SIG_IGN, signal.SIGKILL)):
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            signal.signal(number, handler)
            folders._process_folder.cache_clear()
            (folders.new_folder("cpp") / "kernel.so").write_text("code")
            extension.remove_when_ended(os.fsencode(folders.make_scratch_folder()))
            # a child that was forked since leaves its parent's folder alone
            if (child := os.fork()) == 0:
                os.kill(os.getpid(), number)
                os._exit(0)
            os.waitpid(child, 0)
            os.write(write, str(len(list(temporary.glob("coilwork-*/cpp-*/kernel.so")))).encode())
            while True:
                signal.pause()
        assert os.read(read, 1) == b"1"
        os.close(read)
        os.close(write)
        os.kill(process, number)
        if handler is signal.SIG_IGN:
            os.kill(process, signal.SIGKILL)
        _, ended = os.waitpid(process, 0)
        assert os.WTERMSIG(ended) == status
        assert len({*temporary.iterdir()} - own) == (handler is signal.SIG_IGN)
