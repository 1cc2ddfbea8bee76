"""The cache's folder: where it is, that it is private, and how a file appears in it all at once."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from coilwork_cache.errors import InsecureRootError, RootUnavailableError

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
if sys.platform == "win32":
    BINARY_FLAG = os.O_BINARY
else:
    import fcntl

    BINARY_FLAG = 0
# No file takes an hour to write. Where the system has no locks, what is older was left by a dead process.
STALE_TEMPORARY_S = 3600.0


def find_default_root(environ: Mapping[str, str]) -> Path:
    """`COILWORK_CACHE_DIR` if `environ` sets it, else the user's cache folder as the platform defines it.

    Raises RootUnavailableError where neither gives an absolute path (a user without a home folder, a
    removed current folder).
    """
    chosen = environ.get("COILWORK_CACHE_DIR", "")
    if chosen:
        return make_absolute(Path(chosen))
    root = platformdirs.user_cache_path("coilwork", False)
    if not root.is_absolute():
        raise RootUnavailableError(str(root), "this user has no home folder")
    return root


def make_absolute(path: Path) -> Path:
    """`path` below the root of the file system, whatever the current folder will be later.

    Raises RootUnavailableError where it begins at a home folder or a current folder that is not there.
    """
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError) as error:
        raise RootUnavailableError(str(path), f"it is a relative path, and {error}") from error


def open_private_folder(path: Path) -> None:
    """Create `path` for this user alone, or check that an existing one is safe to trust.

    Raises InsecureRootError if it belongs to another user or if group or others may write to it, since
    whoever can write here can choose what this process loads as machine code; RootUnavailableError if it
    can't be made or examined. On Windows, folder permissions are inherited from the user's profile and not
    checked.
    """
    try:
        make_private_folders(path)
        # A link that somebody else made may be redirected later, so its owner counts, too.
        found, link = path.stat(), path.lstat()
    except OSError as error:
        raise RootUnavailableError(str(path), str(error)) from error
    if not stat.S_ISDIR(found.st_mode):
        raise RootUnavailableError(str(path), "it is not a folder")
    if sys.platform == "win32":
        return
    user = os.geteuid()
    for owner in (found.st_uid, link.st_uid):
        if owner != user:
            raise InsecureRootError(str(path), f"it belongs to user id {owner}, this process runs as {user}")
    if found.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise InsecureRootError(str(path), f"its mode {mode:04o} lets other users write to it")


def make_private_folders(path: Path) -> None:
    """Make `path` and the folders above it where they are missing, each for this user alone. Raises OSError.

    `Path.mkdir(parents=True)` would give the ones above the mode of the umask.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=PRIVATE_FOLDER)


def find_owner_problem(handle: int) -> str | None:
    """Return why the open file `handle` isn't to be trusted: it is another user's. None if it is ours."""
    if sys.platform == "win32":
        return None
    owner, user = os.fstat(handle).st_uid, os.geteuid()
    return None if owner == user else f"it belongs to user id {owner}, this process runs as {user}"


def write_atomically(
    temporary_folder: Path, target: Path, chunks: tuple[bytes, ...], *, durable: bool
) -> None:
    """Make `target` hold `chunks`, so that readers see the old file or the new one and nothing between.

    Both paths must lie on one file system. With `durable`, the data is on the disk before the name is.
    Raises OSError; the temporary file is gone then. A process killed here leaves it behind, for
    `remove_abandoned`: the file is locked while it is written, and the lock ends with the process.
    """
    temporary = temporary_folder / f"{os.getpid()}-{secrets.token_hex(8)}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY_FLAG, PRIVATE_FILE)
        try:
            _lock(handle)
            for chunk in chunks:
                _write_all(handle, chunk)
            if durable:
                os.fsync(handle)
            if sys.platform != "win32":
                # while it is locked: a file that nobody holds seems abandoned
                os.replace(temporary, target)
        finally:
            os.close(handle)
        if sys.platform == "win32":
            os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def remove_abandoned(folder: Path) -> None:
    """Remove the files of `folder` whose writer (`write_atomically`) has died."""
    for path in list_files(folder):
        with contextlib.suppress(OSError):
            if _is_abandoned(path):
                path.unlink()


def _is_abandoned(path: Path) -> bool:
    """Tell if nobody writes the file. A writer that has made it and not locked it yet finds it gone, and
    begins again. Raises OSError."""
    if sys.platform == "win32":
        return path.stat().st_mtime < time.time() - STALE_TEMPORARY_S
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # a file system without locks
        return os.fstat(handle).st_mtime < time.time() - STALE_TEMPORARY_S
    finally:
        os.close(handle)
    return True


def _lock(handle: int) -> None:
    """Show that this process writes the open file `handle`, until it is closed."""
    if sys.platform != "win32":
        # some file systems have no locks
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def list_files(folder: Path) -> list[Path]:
    """Return the paths in `folder`, sorted by name; none if it doesn't exist or can't be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
