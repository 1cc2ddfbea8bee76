"""The C++ reader refuses what Python's does, by the same codes."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aot_samples import make_package, make_records, verify
from cpp_samples import Library, find_or_build
from test_archive import HOSTILE, walk

from coilwork_aot import PackageError
from coilwork_aot.__main__ import PLACES, main
from coilwork_aot.archive import encode_archive
from coilwork_aot.cpp_library import LIBRARY
from coilwork_aot.errors import CODES
from coilwork_aot.manifest import DIGEST, MANIFEST, encode_manifest
from coilwork_aot.record_hashes import PIECE_BYTES, hash_record

SEED = 11


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(find_or_build(tmp_path_factory.mktemp("library")))


def read_code(data: bytes) -> str:
    """Python's code; empty if it takes the file."""
    try:
        verify(data)
    except PackageError as error:
        return error.code
    return ""


def make_damaged(chance: random.Random) -> Iterator[bytes]:
    """Flipped bits, cuts, insertions, mixtures of two packages, and noise."""
    one, other = make_package(), make_package(records=make_records() | {"kernels/x.so": b"machine code"})
    for _ in range(150):
        place = chance.randrange(len(one) * 8)
        damaged = bytearray(one)
        damaged[place // 8] ^= 1 << place % 8
        yield bytes(damaged)
    for size in {0, 1, 3, 4, 97, 98, *(chance.randrange(len(one)) for _ in range(50))}:
        yield one[:size]
    for _ in range(50):
        at, size = chance.randrange(len(one) + 1), chance.randrange(1, 100)
        yield one[:at] + chance.randbytes(size) + one[at:]
    for _ in range(100):
        at, to = sorted(chance.randrange(len(one)) for _ in range(2))
        yield one[:at] + other[at:to] + one[to:]
    for _ in range(20):
        yield chance.randbytes(chance.randrange(400))


def test_damaged_files_have_pythons_codes(library: Library, tmp_path: Path) -> None:
    """An empty file is unreadable, as it cannot be mapped; Python's reader of bytes calls it no package."""
    path, seen = tmp_path / "package", set()
    for data in make_damaged(random.Random(SEED)):
        path.write_bytes(data)
        code, message = library.open(path)
        wanted = read_code(data) if data else "unreadable"
        if not wanted:
            # a mixture that is the package itself: its program is none
            wanted = "damaged-program"
        assert code == wanted, message
        seen.add(code)
    assert {"wrong-hash", "damaged-header", "truncated", "not-a-package"} <= seen
    assert [one.name for one in tmp_path.iterdir()] == ["package"]


def test_hostile_files_have_pythons_codes(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "package"
    for wanted, data in HOSTILE:
        path.write_bytes(data)
        code, message = library.open(path)
        assert code == (wanted if data else "unreadable"), message


def test_manifests_with_other_fields_are_refused(library: Library, tmp_path: Path) -> None:
    """What Python refuses of a manifest, with right hashes, C++ refuses by the same code."""
    manifest = json.loads(encode_manifest(verify(make_package())))
    chance = random.Random(SEED)
    path, refused = tmp_path / "package", 0
    for place in walk(manifest, ()):
        value = chance.choice(json.loads('[null, -1, "?", [], {}, [[]], 1.5, true]'))
        changed = json.loads(json.dumps(manifest))
        inner: Any = changed
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        data = make_package(manifest=json.dumps(changed).encode())
        path.write_bytes(data)
        wanted, (code, message) = read_code(data), library.open(path)
        assert code == wanted if wanted else code in CODES, (place, value, message)
        refused += bool(wanted)
    assert refused > 50


@pytest.mark.parametrize(
    "text",
    [
        b'{"schema":3,"schema":3}',
        b"[" * 100_000,
        b'{"schema":3',
        b'{"schema":99999999999999999999999}',
        b'{"schema":3}x',
        b'{"a":"\\ud800"}',
        b"\xff\xfe",
        b'"',
        b'{"schema": 03}',
        b"nul",
    ],
)
def test_manifests_that_are_no_json_are_refused(text: bytes, library: Library, tmp_path: Path) -> None:
    path = tmp_path / "package"
    records = {MANIFEST: (text,), DIGEST: (hashlib.sha256(text).hexdigest().encode(),)}
    path.write_bytes(encode_archive(records))
    assert library.open(path)[0] in ("damaged-manifest", "schema-version")


def test_hashes_are_those_of_sha_256(library: Library, tmp_path: Path) -> None:
    """Records of all lengths around a block's, and around a piece's: each hash is checked, so a wrong one
    refuses the package.
    """
    path = tmp_path / "package"
    records = make_records() | {f"kernels/{size}": bytes(range(256))[:size] for size in range(130)}
    long = random.Random(SEED).randbytes(2 * PIECE_BYTES + 1)
    for size in (PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1):
        records[f"kernels/{size}"] = long[:size]
    path.write_bytes(make_package(records=records))
    # none is in the manifest, whose own hash is right
    assert library.open(path)[0] == "unknown-record"
    manifest = json.loads(encode_manifest(verify(make_package())))
    manifest["records"] = {
        name: {"size": len(data), "sha256": hash_record(data)} for name, data in records.items()
    }
    path.write_bytes(make_package(manifest=json.dumps(manifest).encode(), records=records))
    assert library.open(path)[0] == "damaged-program"
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rindex(long[-64:]) + 63] ^= 1
    path.write_bytes(damaged)
    assert library.open(path)[0] == "wrong-hash"


def test_files_that_are_none_are_refused(library: Library, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe", Path("/dev/zero")):
        assert library.open(path)[0] == "unreadable"


def test_places_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for word, place in PLACES.items():
        assert main([word]) == (0 if place.exists() else 1)
    assert main(["cmake-path"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert (folder / "coilwork-config.cmake").exists()
    assert main([]) == main(["other"]) == 2
    assert PLACES["library-path"] == LIBRARY
