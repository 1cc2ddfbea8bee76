"""Kernels are built in every state that a process can be in, or the error says what to do."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from coilwork_cache import MemoryStore
from coilwork_runtime import Builder, KernelBuildError, MissingCompilerError, extensions, folders
from coilwork_runtime.cpp import toolchain
from coilwork_runtime.cpp.cpp_builder import make_library_key
from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.errors import RuntimeFault, ScratchFolderError
from coilwork_runtime.generated import CppKernel
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.native_build import compile_extension, run_tool, split_command
from coilwork_runtime.threads import Threads

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

SOURCE = """
#include <cstdint>
extern "C" __attribute__((visibility("default"))) void add(const float* a, float* b, int64_t n) {
  for (int64_t i = 0; i < n; ++i) b[i] = a[i] + NUMBERf;
}
"""


def add(number: int) -> KernelSpec:
    """A kernel that nobody has built before if its `number` is new."""
    return CppKernel(
        name="add",
        source=SOURCE.replace("NUMBER", f"{number}."),
        entry="add",
        args=("*in:f32", "*out:f32", "size:i64"),
    )


NUMBERS = iter(range(1, 1000))


def build_something_new(builder: Builder | None = None) -> None:
    """Build two kernels that are new, and run them."""
    numbers = [next(NUMBERS), next(NUMBERS)]
    for number in numbers:
        launch = (builder or Builder(MemoryStore())).build([add(number)])["add"]
        given, found = torch.arange(5.0), torch.zeros(5)
        launch(given, found, 5)
        assert found.tolist() == (given + number).tolist()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The process's folder for temporary files; its scratch folder will lie there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders._process_folder.cache_clear()
    yield tmp_path
    folders._process_folder.cache_clear()


def test_a_removed_scratch_folder_is_made_anew(temporary: Path) -> None:
    builder, store = Builder(), MemoryStore()
    kept = Builder(store)
    build_something_new(builder)
    kept.build([add(999)])
    for folder in temporary.glob("coilwork-*"):
        shutil.rmtree(folder)
    # both those that were at work before, and new ones; what was written is written again, from the store
    build_something_new(builder)
    build_something_new()
    kept.build([add(999)])
    assert len(list(store.entries())) == 2
    assert list(temporary.glob("coilwork-*"))


def test_a_removed_temporary_folder_is_done_without(temporary: Path) -> None:
    builder = Builder()
    build_something_new(builder)
    shutil.rmtree(temporary)
    build_something_new(builder)
    assert not temporary.exists()


def test_extensions_are_built_after_a_removal(temporary: Path) -> None:
    folders.make_scratch_folder()
    shutil.rmtree(temporary)
    texts = (("module.cpp", "#include <Python.h>\n"),)
    built = compile_extension(find_toolchain().words, texts, scratch=folders.make_scratch_folder())
    assert built is not None and built.startswith(b"\x7fELF")


def test_no_folder_to_write_to_is_said_with_its_remedy(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_OTHERS", ("/proc",))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "gone"))
    with pytest.raises(ScratchFolderError, match=r"(?s)no files can be written in .*set TMPDIR"):
        folders.new_folder("any")


def with_children() -> Callable[[], object]:
    """The system is as it is."""
    return lambda: None


def without_children(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """The system forgets the exit codes of children, and those that they start inherit that."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGCHLD, before)


def without_folder(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """The current folder is gone."""
    before, folder = os.getcwd(), tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)
    return lambda: os.chdir(before)


def with_few_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """A dozen more files may be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 13, limits[1]))
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def with_mask(mask: int) -> Callable[[pytest.MonkeyPatch], Callable[[], object]]:
    """New files get other rights."""

    def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
        before = os.umask(mask)
        return lambda: os.umask(before)

    return enter


def with_variables(**variables: str | None) -> Callable[[pytest.MonkeyPatch], Callable[[], object]]:
    """Other variables, or none of a name."""

    def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
        for name, value in variables.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        return lambda: None

    return enter


STATES = {
    "children are not waited for": without_children,
    "no current folder": without_folder,
    "few files": with_few_files,
    "private files": with_mask(0o077),
    "files without rights": with_mask(0o777),
    "no path": with_variables(PATH=None),
    "an empty path": with_variables(PATH="", CXX=shutil.which("g++")),
    "no home": with_variables(HOME=None),
    "an absent home": with_variables(HOME="/nonexistent"),
    "a compiler behind another program": with_variables(CXX="env g++"),
    "a compiler with arguments": with_variables(CXX=" env LC_ALL=C g++ -pipe '-DNAME=a b' "),
    "a compiler by its path": with_variables(CXX=shutil.which("g++")),
    "a compiler of no name": with_variables(CXX="  "),
    "an absent temporary folder": with_variables(TMPDIR="/nonexistent"),
}


@pytest.mark.parametrize("state", STATES)
def test_kernels_are_built(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    leave = STATES[state](monkeypatch)
    try:
        build_something_new()
    finally:
        leave()


def test_a_compiler_whose_path_has_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my own tools"
    folder.mkdir()
    (folder / "g++").symlink_to(str(shutil.which("g++")))
    for chosen in (f"{folder}/g++", f"env '{folder}/g++'", f'"{folder}/g++" -pipe'):
        monkeypatch.setenv("CXX", chosen)
        build_something_new()
    assert split_command(f"{folder}/g++") == (f"{folder}/g++",)


def test_arguments_are_a_part_of_what_the_compiler_is() -> None:
    plain, other = (find_toolchain({"CXX": chosen}) for chosen in ("g++", "g++ -O1"))
    assert plain.words == (other.command,) and other.arguments == ("-O1",)
    assert plain.version != other.version


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("no-such-compiler", "names 'no-such-compiler', which is no program"),
        ("no-such-program g++", "names 'no-such-program g\\+\\+', which is no program"),
        ("g++ '", "which is no command.*No closing quotation"),
        ("env no-such-compiler", "env no-such-compiler cannot build.*no-such-compiler"),
        ("false", "false cannot build"),
    ],
)
def test_wrong_compilers_are_said_with_their_remedy(
    chosen: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", chosen)
    for enter in (with_children, partial(without_children, monkeypatch)):
        leave = enter()
        try:
            with pytest.raises(MissingCompilerError, match=f"(?s){said}.*CXX"):
                build_something_new()
        finally:
            leave()


def test_an_empty_path_has_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingCompilerError, match=r"(?s)no C\+\+ compiler.*set CXX"):
        build_something_new()


def test_what_a_compiler_refuses_is_told_where_children_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave = without_children(monkeypatch)
    try:
        with pytest.raises(KernelBuildError, match="expected"):
            Builder().build([CppKernel(name="wrong", source="this is no C++", entry="wrong", args=())])
    finally:
        leave()


def test_files_that_may_not_grow_are_an_error_that_says_so() -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    find_toolchain()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RuntimeFault, match=r"(?i)file (size limit exceeded|too large)"):
            build_something_new()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def build_in_child(number: int) -> None:
    Builder(MemoryStore()).build([add(number)])


def test_children_of_multiprocessing_build(temporary: Path) -> None:
    # pytest gives this module a name that a new process cannot import
    from test_process_states import build_in_child

    build_something_new()
    kept = set(temporary.iterdir())
    starts = (get_context("fork").Process, get_context("spawn").Process)
    for number, make_process in enumerate(starts, start=500):
        child = make_process(target=build_in_child, args=(number,))
        child.start()
        child.join(120)
        assert child.exitcode == 0, make_process
    assert set(temporary.glob("coilwork-*")) <= kept


def test_a_child_does_not_wait_for_what_its_parent_was_doing() -> None:
    """A thread loads an extension while another one forks."""
    with extensions._LOADING:
        child = multiprocessing.get_context("fork").Process(target=_take_lock)
        child.start()
        child.join(60)
        hung = child.is_alive()
        child.kill()
    assert not hung and child.exitcode == 0


def _take_lock() -> None:
    with extensions._LOADING:
        pass


def test_work_is_done_at_once_where_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with Threads(2, "test") as threads:
        monkeypatch.setattr(threads._pool, "submit", lambda *_: (_ for _ in ()).throw(RuntimeError("over")))
        assert list(threads.map(lambda value: value + 1, [1, 2])) == [2, 3]
        assert isinstance(threads.submit(int, "no").exception(), ValueError)


LIVES = """
    import atexit, os, sys, threading, time
    sys.path.insert(0, sys.argv[1])
    from test_process_states import build_something_new
    def told(what):
        build_something_new()
        print(what, flush=True)
    atexit.register(told, "at the exit")
    def late():
        threading.main_thread().join()
        time.sleep(0.1)
        told("after the main thread")
    threading.Thread(target=late).start()
    told("first")
    parent = os.getpid()
    if os.fork() == 0:
        # its parent waits for nobody, and takes its folder along
        while os.getppid() == parent:
            time.sleep(0.05)
        os.close(0)
        told("in a child that outlived its parent")
        os._exit(0)
"""


def test_work_goes_on_after_the_main_thread_and_after_the_parent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIVES), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) == {
        "first",
        "after the main thread",
        "at the exit",
        "in a child that outlived its parent",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_another_user_builds() -> None:
    build_something_new()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(12345)
            build_something_new()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("fault", ["noexec", "full"])
def test_where_code_cannot_lie_another_folder_is_taken(
    fault: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once files are there: disks fill up."""
    builder = Builder()
    build_something_new(builder)
    ask = os.statvfs

    def answer(path: str | Path) -> object:
        found = ask(path)
        values = {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}
        if str(path).startswith(str(temporary)):
            values |= {"f_flag": values["f_flag"] | os.ST_NOEXEC} if fault == "noexec" else {"f_bavail": 0}
        return SimpleNamespace(**values)

    monkeypatch.setattr(os, "statvfs", answer)
    build_something_new(builder)
    build_something_new()
    assert not folders.make_scratch_folder().startswith(str(temporary))
    monkeypatch.setattr(folders, "_OTHERS", ("/proc",))
    folders._process_folder.cache_clear()
    said = (
        "(?s)mounted with noexec.*load code from"
        if fault == "noexec"
        else "(?s)No space left.*free some room"
    )
    with pytest.raises(ScratchFolderError, match=said):
        folders.make_scratch_folder()


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("question", ["", "case $* in *--version*) exec g++ --version;; esac"])
def test_a_compiler_that_hangs_is_said_and_tried_again_once_it_is_another(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "LONGEST_ANSWER_S", 0.3)
    for enter in (with_children, partial(without_children, monkeypatch)):
        monkeypatch.setenv("CXX", script(tmp_path / "compiler", f"{question}\nexec sleep 100 # {enter}"))
        leave = enter()
        try:
            with pytest.raises(MissingCompilerError, match=r"(?s)(does not answer|has not ended).*CXX"):
                build_something_new()
        finally:
            leave()
    script(tmp_path / "compiler", 'exec g++ "$@"')
    monkeypatch.setattr(toolchain, "LONGEST_ANSWER_S", 60.0)
    build_something_new()


def test_an_extension_is_built_once_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = (("later.cpp", "#include <Python.h>\n"),)
    monkeypatch.setenv("CXX", "false")
    assert extensions._build(texts) is None
    monkeypatch.delenv("CXX")
    assert extensions._build(texts) is not None


def test_what_a_tool_leaves_running_is_not_waited_for() -> None:
    began_s = time.monotonic()
    done = run_tool(["/bin/sh", "-c", "sleep 30 & echo said; echo complained >&2; exit 3"])
    assert (done.code, done.output, done.complaint) == (3, "said\n", "complained\n")
    assert time.monotonic() - began_s < 25


def test_closed_standard_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for stream in range(3):
                os.close(stream)
            build_something_new()
            without_children(monkeypatch)
            with pytest.raises(KernelBuildError, match="does not name a type"):
                Builder().build([CppKernel(name="wrong", source="no C++ either", entry="wrong", args=())])
            build_something_new()
            code = 0
        except BaseException:  # noqa: BLE001
            Path(tmp_path, "said").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    assert status == 0, Path(tmp_path, "said").read_text()


def test_a_child_builds_what_its_parent_was_building() -> None:
    builder = Builder(MemoryStore())
    build_something_new(builder)
    kernel = add(998)
    key = make_library_key(kernel, find_toolchain())
    begun, ended = threading.Event(), threading.Event()

    def wait_for_end() -> Path:
        begun.set()
        ended.wait(100)
        return Path()

    def hold() -> None:
        with builder._cpp._lock:
            builder._cpp._flights.run(key, wait_for_end)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(60)
            builder.build([kernel])
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    ended.set()
    thread.join()
    assert status == 0


def test_an_interrupt_begins_nothing_else() -> None:
    begun, done = threading.Event(), []

    def work(number: int) -> None:
        begun.set()
        time.sleep(0.2)
        done.append(number)

    def begin() -> None:
        with Threads(1, "test") as threads:
            for number in range(5):
                threads.submit(work, number)
            assert begun.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert len(done) < 5
