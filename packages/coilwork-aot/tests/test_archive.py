"""Every damaged or hostile file is refused by a code of its own, and nothing else happens."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aot_samples import make_package, make_records, verify

from coilwork_aot import PackageError, read_manifest
from coilwork_aot.archive import encode_archive, write_archive
from coilwork_aot.errors import CODES
from coilwork_aot.manifest import MANIFEST, encode_manifest

SEED = 7


def code_of(data: bytes) -> str:
    with pytest.raises(PackageError) as caught:
        verify(data)
    assert caught.value.code in CODES
    return caught.value.code


def test_equal_contents_are_equal_bytes_that_zip_tools_read() -> None:
    data = make_package()
    assert data == make_package()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert all(one.header_offset % 64 == 0 or one.file_size for one in archive.infolist())
    assert verify(data).name == "sample"


def test_every_damaged_byte_is_noticed() -> None:
    """Flips of all bits of headers, and of random ones elsewhere: thousands of files."""
    data = make_package()
    chance = random.Random(SEED)
    places = [chance.randrange(len(data) * 8) for _ in range(2500)]
    seen = set()
    for place in places:
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        seen.add(code_of(bytes(damaged)))
    assert {"wrong-hash", "damaged-header"} <= seen


def test_every_cut_and_every_addition_is_noticed() -> None:
    data = make_package()
    chance = random.Random(SEED)
    cuts = {0, 1, 3, 4, 97, 98, *(chance.randrange(len(data)) for _ in range(500))}
    assert {code_of(data[:size]) for size in cuts} <= {"truncated", "not-a-package"}
    for _ in range(200):
        at, size = chance.randrange(len(data) + 1), chance.randrange(1, 100)
        code_of(data[:at] + chance.randbytes(size) + data[at:])


def test_mixtures_of_packages_are_noticed() -> None:
    one, other = make_package(), make_package(records=make_records() | {"kernels/x.so": b"machine code"})
    chance = random.Random(SEED)
    for _ in range(1000):
        at, to = sorted(chance.randrange(len(one)) for _ in range(2))
        mixed = one[:at] + other[at:to] + one[to:]
        if mixed != one:
            code_of(mixed)
    for _ in range(300):
        code_of(chance.randbytes(chance.randrange(400)))


def zipped(
    name: str = "x", data: bytes = b"x", *, method: int = zipfile.ZIP_STORED, mode: int = 0o100644
) -> bytes:
    """A package with one more record, as Python's zipfile writes it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, data, compress_type=method)
    return file.getvalue()


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new) and old in data
    return data.replace(old, new)


def with_field(at: int, value: bytes) -> bytes:
    """A package of which the first entry of the directory has other bytes `at` a place."""
    data = bytearray(make_package())
    start = data.index(b"PK\x01\x02")
    data[start + at : start + at + len(value)] = value
    return bytes(data)


def with_dtypes(*, of_input: str, of_state: str) -> bytes:
    """A package whose input and state have these element types, with right hashes."""
    manifest = json.loads(encode_manifest(verify(make_package())))
    manifest["entries"]["forward"][0]["inputs"][0]["dtype"] = of_input
    for entry in manifest["state"]:
        entry["place"]["dtype"] = of_state
    return make_package(manifest=json.dumps(manifest).encode())


HOSTILE = (
    ("unsafe-path", patched(make_package(), b"programs/a.bin", b"../../../a.bin")),
    ("unsafe-path", patched(make_package(), b"programs/a.bin", b"/rograms/a.bin")),
    ("unsafe-path", patched(make_package(), b"programs/a.bin", b"programs\\a.bin")),
    ("unsafe-path", patched(make_package(), b"programs/a.bin", b"programs/a.bi\0")),
    ("compressed-record", with_field(10, b"\x08\0")),
    ("compressed-record", with_field(8, b"\x01\0")),
    ("symlink-record", with_field(38, ((stat.S_IFLNK | 0o777) << 16).to_bytes(4, "little"))),
    ("symlink-record", with_field(38, ((stat.S_IFDIR | 0o755) << 16).to_bytes(4, "little"))),
    ("oversized-record", with_field(46 + 13 + 4, (1 << 60).to_bytes(8, "little") * 2)),
    ("overlapping-records", with_field(46 + 13 + 20, (1).to_bytes(8, "little"))),
    ("damaged-header", with_field(46 + 13 + 4, (5).to_bytes(8, "little") * 2)),
    ("truncated", zipped()),
    ("truncated", zipped(data=bytes(1 << 20), method=zipfile.ZIP_DEFLATED)),
    ("not-a-package", encode_archive({"a": (b"a",), "b": (b"b",)})),
    ("not-a-package", b""),
    ("unknown-record", make_package(records=make_records() | {"x": b""})),
    ("missing-record", make_package(records={"programs/a.bin": b"a program"})),
    ("wrong-hash", make_package(records=make_records() | {"programs/a.bin": b"b program"})),
    ("damaged-manifest", make_package(manifest=b"[]")),
    ("damaged-manifest", make_package(manifest=b"{" * 2000)),
    ("damaged-manifest", with_dtypes(of_input="", of_state="f32")),
    ("damaged-manifest", with_dtypes(of_input="f32", of_state="f99")),
)


def test_every_element_type_has_a_name() -> None:
    for name in ("f32", "f8e8m0", "bits8"):
        assert verify(with_dtypes(of_input=name, of_state=name)).state[0].place.dtype == name


@pytest.mark.parametrize(("code", "data"), HOSTILE)
def test_hostile_files_are_refused_by_their_codes(code: str, data: bytes) -> None:
    assert code_of(data) == code


def test_two_records_of_one_name_are_refused() -> None:
    data = make_package(records={"programs/a.bin": b"1", "programs/b.bin": b"2"})
    assert code_of(patched(data, b"programs/b.bin", b"programs/a.bin")) == "duplicate-record"


def test_manifests_with_other_fields_are_refused() -> None:
    """Each value of a manifest in turn is replaced by one of another kind, with right hashes."""
    manifest = json.loads(encode_manifest(verify(make_package())))
    paths = list(walk(manifest, ()))
    assert len(paths) > 60
    for path in paths:
        for value in json.loads('[null, -1, "?", [], {}, [[]], 1.5, true]'):
            changed = json.loads(json.dumps(manifest))
            inner = changed
            for step in path[:-1]:
                inner = inner[step]
            if inner[path[-1]] == value:
                continue
            inner[path[-1]] = value
            # some values fit their fields; any other error than a package's fails the test
            with contextlib.suppress(PackageError):
                verify(make_package(manifest=json.dumps(changed).encode()))


def walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from walk(item, (*path, key))


def test_a_later_schema_is_refused() -> None:
    manifest = json.loads(encode_manifest(verify(make_package())))
    assert code_of(make_package(manifest=json.dumps(manifest | {"schema": 4}).encode())) == "schema-version"


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(PackageError) as caught:
            read_manifest(path)
        assert caught.value.code == "unreadable"


def test_a_package_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(PackageError) as caught:
        write_archive(tmp_path / "no" / "x", {MANIFEST: (b"x",)})
    assert caught.value.code == "unwritable"
    (tmp_path / "x").write_bytes(make_package())
    assert read_manifest(tmp_path / "x").name == "sample"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
