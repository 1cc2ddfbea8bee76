"""Where the cache lies, and whom it trusts."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import platformdirs
import pytest

from coilwork_cache import (
    CacheUnavailableWarning,
    InsecureRootError,
    NullStore,
    RootUnavailableError,
    content_key,
    find_default_root,
    local_store,
    open_local_store,
)
from coilwork_cache.folder import open_private_folder, write_atomically
from coilwork_cache.store import ForkedLock


def test_default_root_follows_the_variable(tmp_path: Path) -> None:
    assert find_default_root({"COILWORK_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert find_default_root({"COILWORK_CACHE_DIR": "~/x"}) == Path.home() / "x"
    assert find_default_root({"COILWORK_CACHE_DIR": "relative"}) == Path.cwd() / "relative"


def test_default_root_is_the_platforms_cache_folder() -> None:
    expected = Path(platformdirs.user_cache_dir("coilwork", appauthor=False))
    assert find_default_root({}) == find_default_root({"COILWORK_CACHE_DIR": ""}) == expected


def test_default_root_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *args: Path("~/.cache/coilwork"))
    with pytest.raises(RootUnavailableError, match="COILWORK_CACHE_DIR"):
        find_default_root({})


def test_creates_missing_folders_privately(tmp_path: Path) -> None:
    open_private_folder(tmp_path / "a" / "b")
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert folder.stat().st_mode & 0o777 == 0o700
    open_private_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize("mode", [0o702, 0o720, 0o777, 0o1777])
def test_refuses_a_folder_that_others_may_write(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(InsecureRootError, match=f"mode {mode:04o}"):
        open_private_folder(folder)


def test_accepts_a_folder_that_others_may_read(tmp_path: Path) -> None:
    folder = tmp_path / "readable"
    folder.mkdir()
    folder.chmod(0o755)
    open_private_folder(folder)


def test_refuses_another_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(InsecureRootError, match=f"this process runs as {stranger}"):
        open_private_folder(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_refuses_another_users_link_to_our_own_folder(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ours")
    open_private_folder(link)
    os.chown(link, 12345, -1, follow_symlinks=False)
    with pytest.raises(InsecureRootError, match="user id 12345"):
        open_private_folder(link)


def test_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RootUnavailableError, match="not a folder"):
        open_private_folder(tmp_path / "file")


def test_a_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"old")

    def fail(source: object, destination: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no"):
        write_atomically(tmp_path, target, (b"new",), durable=True)
    assert [path.name for path in tmp_path.iterdir()] == ["target"] and target.read_bytes() == b"old"


def test_a_relative_root_needs_a_current_folder_and_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, gone = os.getcwd(), tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        with pytest.raises(RootUnavailableError, match="relative"):
            find_default_root({"COILWORK_CACHE_DIR": "relative"})
        with pytest.warns(CacheUnavailableWarning, match="relative"):
            assert isinstance(open_local_store(Path("relative")), NullStore)
    finally:
        os.chdir(before)
    with pytest.raises(RootUnavailableError, match="home"):
        find_default_root({"COILWORK_CACHE_DIR": "~nobody-of-this-name/x"})


def test_a_folder_that_cannot_be_written_is_warned_of_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(local_store, "write_atomically", refuse)

    def compile_thrice() -> None:
        for number in range(3):
            store = open_local_store(tmp_path / "root")
            store.put(content_key("any", str(number)), b"data")
            assert store.get(content_key("any", str(number))) is None

    with pytest.warns(CacheUnavailableWarning) as told:
        compile_thrice()
    assert len(told) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_is_free_in_a_forked_child() -> None:
    lock = ForkedLock()
    with lock:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            with lock:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    with lock:
        pass
