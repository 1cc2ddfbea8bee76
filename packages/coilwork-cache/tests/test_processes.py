"""The local store between processes: concurrent writers, and writers killed half-way."""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from pathlib import Path

from coilwork_cache import CacheWarning, LocalStore, content_key

KEYS = [content_key("k", str(i)) for i in range(4)]
SIZE_BYTES = 200_000

# Writes values of one repeated byte, a different one each round, so that a mixture of two shows.
WRITER = """
import sys
from pathlib import Path
from coilwork_cache import LocalStore, content_key
root, first, rounds, size_bytes, max_bytes = Path(sys.argv[1]), *map(int, sys.argv[2:])
store = LocalStore(root, max_bytes=max_bytes)
keys = [content_key("k", str(i)) for i in range(4)]
print("ready", flush=True)
for i in range(rounds):
    store.put(keys[i % 4], bytes([(first + 2 * i) % 256]) * size_bytes)
    data = store.get(keys[(i + 1) % 4])
    assert data is None or data == data[:1] * size_bytes, "torn"
assert store.stats().corrupt == 0 and store.stats().failures == 0, store.stats()
"""

# Stops for ever in the middle of the payload.
STUCK_WRITER = """
import os, sys, time
from pathlib import Path
from coilwork_cache import LocalStore, content_key
store = LocalStore(Path(sys.argv[1]))
real = os.write
def half(handle, data):
    if len(data) < 1000:
        return real(handle, data)
    real(handle, data[:len(data) // 2])
    print("ready", flush=True)
    time.sleep(600)
os.write = half
store.put(content_key("k", "0"), b"new" * 50_000)
"""

# Makes an entry under a claim, slowly, unless it is there; says which of the two.
CLAIMER = """
import sys, time
from pathlib import Path
from coilwork_cache import LocalStore, content_key
store, key = LocalStore(Path(sys.argv[1])), content_key("k", "0")
print("ready", flush=True)
sys.stdin.readline()
with store.claim(key):
    if store.contains(key):
        print("found", flush=True)
    else:
        print("making", flush=True)
        time.sleep(float(sys.argv[2]))
        store.put(key, b"made")
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(process.communicate()[1])
    return process


def test_two_processes_write_the_same_keys(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    writers = [start(WRITER, root, first, 150, SIZE_BYTES, 1 << 30) for first in (0, 1)]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    store = LocalStore(root)
    for key in KEYS:
        data = store.get(key)
        assert data is not None and data == data[:1] * SIZE_BYTES
    assert list((root / "v1" / "tmp").iterdir()) == []


def test_two_processes_write_while_both_evict(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    writers = [start(WRITER, root, first, 150, 20_000, 50_000) for first in (0, 1)]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    store = LocalStore(root, max_bytes=50_000)
    store.put(KEYS[0], b"last")
    assert sum(entry.size_bytes for entry in store.entries()) <= 50_000


def test_killed_in_the_middle_of_a_write(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    store = LocalStore(root)
    store.put(KEYS[0], b"old")
    writer = start(STUCK_WRITER, root)
    writer.kill()
    writer.communicate()
    (left,) = (root / "v1" / "tmp").iterdir()
    assert left.stat().st_size > 50_000
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        assert LocalStore(root).get(KEYS[0]) == b"old"
        store.put(KEYS[0], b"newer")
        assert store.get(KEYS[0]) == b"newer"


def test_killed_at_arbitrary_moments(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    for attempt in range(6):
        writer = start(WRITER, root, attempt, 1_000_000, SIZE_BYTES, 700_000)
        time.sleep(0.013 * attempt)
        writer.kill()
        writer.communicate()
        store = LocalStore(root, max_bytes=700_000)
        with warnings.catch_warnings():
            warnings.simplefilter("error", CacheWarning)
            for key in KEYS:
                data = store.get(key)
                assert data is None or data == data[:1] * SIZE_BYTES
            store.put(KEYS[0], b"\1" * SIZE_BYTES)
            assert store.get(KEYS[0]) == b"\1" * SIZE_BYTES


def test_one_of_several_processes_makes_an_entry(tmp_path: Path) -> None:
    claimers = [start(CLAIMER, tmp_path / "cache", 0.2) for _ in range(3)]
    for claimer in claimers:
        assert claimer.stdin is not None
        claimer.stdin.write("go\n")
        claimer.stdin.flush()
    said = sorted(claimer.communicate(timeout=60)[0] for claimer in claimers)
    assert said == ["found\n", "found\n", "making\n"]


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    first, second = (start(CLAIMER, tmp_path / "cache", seconds) for seconds in (600, 0))
    assert first.stdin is not None and first.stdout is not None
    first.stdin.write("go\n")
    first.stdin.flush()
    assert first.stdout.readline() == "making\n"
    first.kill()
    first.communicate()
    assert second.communicate("go\n", timeout=60)[0] == "making\n"
