"""The folders of a process for files that it loads code from, or that compilers use, and their end."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import multiprocessing.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coilwork_runtime.errors import ScratchFolderError

# Where else files may lie if the folder that TMPDIR names is not there any more, or not ours to write.
_OTHERS: Final = ("/tmp", "/var/tmp", "/dev/shm")
# A kernel's library has some 20 KiB, the executor's 2 MiB; a compiler writes a few.
LEAST_ROOM_BYTES: Final = 4 << 20
_UNWRITABLE: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
)


def new_folder(purpose: str) -> Path:
    """An empty folder that is there until the process ends: loaded code may be read while it can run.

    Raises:
        ScratchFolderError: there is no folder that can be written.
    """
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=make_scratch_folder()))


def make_scratch_folder() -> str:
    """The folder of this process for files of its own. It is made anew if somebody has removed it.

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
            folder = tempfile.mkdtemp(prefix="coilwork-", dir=parent)
        except OSError as error:
            reason = reason or error
            continue
        fault = _fault_of(folder)
        if fault is None:
            _remove_at_exit(folder)
            return folder
        reason = reason or fault
        os.rmdir(folder)
    assert reason is not None
    raise _explain_unusable(os.environ.get("TMPDIR", _OTHERS[0]), reason)


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
