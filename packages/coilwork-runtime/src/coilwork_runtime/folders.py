"""Where a process keeps the files that it loads code from, and when they go."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


def new_folder(purpose: str) -> Path:
    """An empty folder that is there until the process ends: loaded code may be read again as long as it can run."""
    return Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=_process_folder()))


@functools.cache
def _process_folder() -> Path:
    folder, owner = Path(tempfile.mkdtemp(prefix="coilwork-")), os.getpid()

    def remove() -> None:
        # A forked child runs its parent's exit functions too.
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
