"""Counts of hits and misses by kind, over several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from coilwork_cache import (
    JsonCodec,
    KernelCache,
    LocalStore,
    MemoryStore,
    TieredStore,
    TuningCache,
    TypedCache,
    UseCount,
    clear,
    content_key,
)
from coilwork_cache.use_counts import LONGEST_BYTES, UseCounts

# Misses, writes and finds a kernel; then it ends as it is told.
PROCESS = """
import os, signal, sys
from pathlib import Path
from coilwork_cache import KernelCache, LocalStore
kernels = KernelCache(LocalStore(Path(sys.argv[1])))
key = kernels.key(sys.argv[2])
kernels.get(key)
kernels.put(key, b"code")
kernels.get(key)
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_add_up(tmp_path: Path) -> None:
    for name, end in (("a", "ends"), ("b", "ends"), ("c", "killed")):
        subprocess.run([sys.executable, "-c", PROCESS, str(tmp_path), name, end], check=False)
    store = LocalStore(tmp_path)
    # the killed one wrote its first count at once
    assert store.uses() == {"kernel": UseCount(hits=2, misses=3, puts=2)}
    TuningCache(store).get(content_key("tuning", "none"))
    assert store.uses()["tuning"] == UseCount(misses=1)
    clear(store)
    assert store.uses() == {}


def test_damaged_entries_and_those_of_the_slow_store_count(tmp_path: Path) -> None:
    slow = MemoryStore()
    KernelCache(slow).put(content_key("kernel", "a"), b"code")
    store = TieredStore(LocalStore(tmp_path), slow)
    kernels = KernelCache(store)
    for _ in range(2):
        kernels.get(content_key("kernel", "a"))
    other = TypedCache(store, kind="json", codec=JsonCodec())
    store.put(content_key("json", "b"), b"rubbish")
    with pytest.warns(UserWarning, match="corrupt-entry"):
        assert other.get(content_key("json", "b")) is None
    assert store.uses() == {
        "kernel": UseCount(hits=2, shared_hits=1),
        "json": UseCount(misses=1, damaged=1),
    }


def test_a_long_file_becomes_its_sums_and_rubbish_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_bytes(b"kernel 1 0 2 3 0\nrubbish\n\xff\xfe 1\nkernel 1 2\nkernel -1 0 0 0 0\n" * 2000)
    assert path.stat().st_size > LONGEST_BYTES
    counts = UseCounts(path)
    counts.add("graph", UseCount(hits=1))
    assert path.stat().st_size < 100 and os.listdir(tmp_path) == ["counts"]
    assert counts.read() == {
        "kernel": UseCount(hits=2000, misses=4000, puts=6000),
        "graph": UseCount(hits=1),
    }


def test_a_folder_that_is_gone_costs_the_counts_alone(tmp_path: Path) -> None:
    counts = UseCounts(tmp_path / "gone" / "counts")
    counts.add("graph", UseCount(hits=1))
    assert counts.read() == {}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_count_for_its_parent(tmp_path: Path) -> None:
    counts = UseCounts(tmp_path / "counts")
    counts.add("graph", UseCount(hits=1))
    counts.add("graph", UseCount(hits=10))  # not due yet
    child = os.fork()
    if child == 0:
        counts.flush()
        os._exit(0)
    os.waitpid(child, 0)
    assert counts.read() == {"graph": UseCount(hits=11)}
