"""Where the cache lies, and whom it trusts."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs
import pytest

from coilwork_cache import InsecureRootError, RootUnavailableError, default_root
from coilwork_cache.folder import open_private_folder, write_atomically


def test_default_root_follows_the_variable(tmp_path: Path) -> None:
    assert default_root({"COILWORK_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert default_root({"COILWORK_CACHE_DIR": "~/x"}) == Path.home() / "x"
    assert default_root({"COILWORK_CACHE_DIR": "relative"}) == Path.cwd() / "relative"


def test_default_root_is_the_platforms_cache_folder() -> None:
    expected = Path(platformdirs.user_cache_dir("coilwork", appauthor=False))
    assert default_root({}) == default_root({"COILWORK_CACHE_DIR": ""}) == expected


def test_default_root_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *args: Path("~/.cache/coilwork"))
    with pytest.raises(RootUnavailableError, match="COILWORK_CACHE_DIR"):
        default_root({})


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
