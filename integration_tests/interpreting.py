"""Processes whose kernels run in Triton's interpreter: Triton decides when it is imported whether it
interprets.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from integration_tests.forks import AT_START, Forks

ROOT: Final = Path(__file__).resolve().parent.parent


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Variables of such a process, with `more`. It finds this repository, and no options of the caller's."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("COILWORK_")}
    return found | {
        "TRITON_INTERPRET": "1",
        "COILWORK_TRITON_ON_CPU": "1",
        "COILWORK_VERIFY": "1",
        # a cached graph would leave no kernels in the trace
        "COILWORK_CACHE": "0",
        "COILWORK_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
        **more,
    }


def answers_of(module: str, folder: Path, **more: str) -> dict[str, str]:
    """What is wrong with each case of `module`, which a process runs in `folder` and prints as its last line,
    in JSON.
    """
    variables = environment(folder / "cache", COILWORK_STRICT="1", **more)
    if any(name in AT_START for name in more):
        command = [sys.executable, "-m", "integration_tests.quicker_compiles", module, str(folder)]
        done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
    else:
        try:
            done = start_forks().run(module, [str(folder)], variables=variables, folder=folder)
        except BaseException:
            # the test was stopped, perhaps: the next one gets a process that is not at work
            start_forks().close()
            start_forks.cache_clear()
            raise
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@functools.cache
def start_forks() -> Forks:
    """The process that forks, of this process of tests."""
    started = Forks(environment(Path(tempfile.gettempdir()) / "unused"), ROOT)
    atexit.register(started.close)
    return started
