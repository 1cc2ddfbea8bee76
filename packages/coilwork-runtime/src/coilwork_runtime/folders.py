"""The folders of a process for files that it loads code from, or that compilers use, and their end.

A process removes its folder when it ends. One that is killed can't: as long as it lives it holds a lock on
the file `.owner` in its folder, and the next process that makes a folder removes those whose locks are free.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import multiprocessing.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if sys.platform != "win32":
    import fcntl

from coilwork_runtime.errors import ScratchFolderError

# Where else files may lie if the folder that TMPDIR names is not there any more, or not ours to write.
_OTHERS: Final = ("/tmp", "/var/tmp", "/dev/shm")
# A kernel's library has some 20 KiB, the executor's 2 MiB; a compiler writes a few.
LEAST_ROOM_BYTES: Final = 4 << 20
PREFIX: Final = "coilwork-"
OWNER: Final = ".owner"
_UNWRITABLE: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
)


def new_folder(purpose: str) -> Path:
    """Return an empty folder that is there until the process ends: loaded code may be read while it can run.

    Raises:
        ScratchFolderError: there is no folder that can be written.
    """
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=make_scratch_folder()))


def make_scratch_folder() -> str:
    """Return the folder of this process for files of its own. It is made anew if somebody has removed it.

    Raises:
        ScratchFolderError: there is no folder that can be written.
    """
    return _process_folder().path()


@contextlib.contextmanager
def temporary_folder(purpose: str) -> Iterator[str]:
    """A folder that is there while it is entered.

    Raises:
        ScratchFolderError: there is no folder that can be written, or no room in it.
    """
    folder = new_folder(purpose)
    try:
        with scratch_errors(folder):
            yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def scratch_errors(folder: Path) -> Iterator[None]:
    """While it is entered, a failure to write is one of `folder`.

    Raises:
        ScratchFolderError: in its stead.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise _explain_unusable(str(folder), error) from error


class _ProcessFolder:
    """The folder of a process.

    A forked child has one of its own: its parent may end before it, and take its folder along. There is no
    lock, which a fork might find taken: two threads may make a folder each, and both go with the process.
    """

    def __init__(self) -> None:
        self._folder = ""
        self._owner = 0

    def path(self) -> str:
        """Return the folder; it is made if it is not there."""
        if self._owner != os.getpid() or not is_usable(self._folder):
            self._folder = _make_folder()
            self._owner = os.getpid()
        return self._folder


@functools.cache
def _process_folder() -> _ProcessFolder:
    return _ProcessFolder()


def is_usable(folder: str | Path) -> bool:
    """Return True if files can be written in `folder`, and code be loaded from there."""
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK) and not _fault_of(folder)


def _fault_of(folder: str | Path) -> OSError | None:
    """Return the fault of the file system below `folder`, if it has one."""
    system = os.statvfs(folder)
    if system.f_flag & getattr(os, "ST_NOEXEC", 0):
        return OSError(
            errno.EACCES,
            "its file system is mounted with noexec: no code can be loaded from there",
            str(folder),
        )
    # some file systems do not tell, and say that they have no blocks at all
    if system.f_blocks and system.f_bavail * system.f_frsize < LEAST_ROOM_BYTES:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    return None


def _make_folder() -> str:
    reason: OSError | None = None
    for parent in (None, *_OTHERS):
        try:
            folder = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        except OSError as error:
            reason = reason or error
            continue
        fault = _fault_of(folder)
        if fault is None:
            _hold(folder)
            _remove_at_exit(folder)
            sweep_abandoned(Path(folder).parent)
            return folder
        reason = reason or fault
        os.rmdir(folder)
    assert reason is not None
    raise _explain_unusable(os.environ.get("TMPDIR", _OTHERS[0]), reason)


def _hold(folder: str) -> None:
    """Lock the folder until this process ends, and the children that it forks, which may use what is in it.

    Without locks, nobody else removes it.
    """
    if sys.platform == "win32":
        return
    # locked before it has its name: a folder whose file nobody locks is abandoned
    path = os.path.join(folder, OWNER)
    with contextlib.suppress(OSError):
        handle = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(f"{path}.new", path)


def sweep_abandoned(parent: Path) -> None:
    """Remove the folders in `parent` that processes of this user have left behind, as they were killed."""
    if sys.platform == "win32":
        return
    try:
        found = [Path(one.path) for one in os.scandir(parent) if one.name.startswith(PREFIX)]
    except OSError:
        return
    for folder in found:
        # others' folders can't be opened, nor can those without a lock
        with contextlib.suppress(OSError):
            handle = os.open(folder / OWNER, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


def _remove_at_exit(folder: str) -> None:
    owner = os.getpid()

    def remove() -> None:
        # A forked child runs its parent's exit functions too.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    # children of multiprocessing run no exit functions but these
    multiprocessing.util.Finalize(None, remove, exitpriority=0)


def _explain_unusable(folder: str, error: OSError) -> ScratchFolderError:
    return ScratchFolderError(
        "no-scratch",
        f"no files can be written in {folder}",
        reason=str(error),
        remedy=(
            "free some room there, or set TMPDIR to a folder that this process may write to and load code "
            "from"
        ),
    )
