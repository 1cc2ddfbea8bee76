"""Importing a package costs less than 0.3 s beyond torch's own import.

A slow or busy machine takes longer for torch as well, so the limit grows with what torch's own import takes
there. What torch has made is taken out of the collector's sight first: a walk through it is no part of our
import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT_S = 0.3
# torch's import takes 1.2 s of processor time on the machine where the limit was set
SHARE_OF_TORCH = 0.25
PACKAGES = Path(__file__).resolve().parent.parent / "packages"
NAMES = tuple(sorted(path.parent.name.replace("-", "_") for path in PACKAGES.glob("*/pyproject.toml")))
# Torch is imported once; each import of a package happens in a child of that process, which has nothing else.
SERVER = """
import gc, os, sys, time, traceback
start = time.process_time()
import torch
print(time.process_time() - start, flush=True)
gc.collect()
gc.freeze()
for name in sys.stdin:
    child = os.fork()
    if child == 0:
        took = float("inf")
        try:
            own = time.process_time()
            __import__(name.strip())
            took = time.process_time() - own
        except BaseException:
            traceback.print_exc()
        print(took, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


class Imports:
    """Measures imports in processor seconds, with bytecode kept.

    Attributes:
        of_torch: what torch's own import took.
    """

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-c", SERVER]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.of_torch = self._read()

    def measure(self, name: str) -> float:
        """What the import of the package took after torch's."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _read(self) -> float:
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())


@pytest.fixture(scope="module")
def imports() -> Iterator[Imports]:
    process = Imports()
    yield process
    process.close()


@pytest.mark.parametrize("name", NAMES)
def test_import_is_quick(imports: Imports, name: str) -> None:
    limit, over = max(LIMIT_S, SHARE_OF_TORCH * imports.of_torch), list[float]()
    # The first import may compile bytecode; a busy machine may disturb one of them.
    while len(over) < 4 and min(over, default=1.0) >= 0:
        over.append(imports.measure(name) - limit)
    assert min(over) < 0
