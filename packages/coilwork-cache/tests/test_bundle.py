"""Bundles: exact, complete, and never outside the folder they are extracted to."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import Bundle, BundleCodec, CodecError, extract

NAME = st.lists(st.sampled_from(["a", "b.so", "kernel", "Ä", "c d"]), min_size=1, max_size=3).map("/".join)
BUNDLE = st.builds(
    Bundle,
    records=st.dictionaries(NAME, st.binary(max_size=20), max_size=4),
    metadata=st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.text(max_size=3)), max_size=3),
)
CODEC = BundleCodec()
EXAMPLE = Bundle(
    records={"program": b"prog", "kernel/k0.so": b"\x7fELF", "empty": b""}, metadata={"arch": "sm_90"}
)


def raw(header: object, rest: bytes = b"") -> bytes:
    """An encoded bundle with an arbitrary header."""
    text = json.dumps(header).encode()
    return struct.pack("<8sIQ", b"COILBNDL", 1, len(text)) + text + rest


@given(BUNDLE)
def test_round_trip_and_order_does_not_matter(bundle: Bundle) -> None:
    data = CODEC.encode(bundle)
    assert CODEC.decode(data) == bundle
    turned = Bundle(
        records=dict(reversed(list(bundle.records.items()))),
        metadata=dict(reversed(list(bundle.metadata.items()))),
    )
    assert CODEC.encode(turned) == data


def test_every_truncation_and_extension_is_refused() -> None:
    whole = CODEC.encode(EXAMPLE)
    for data in [whole[:length] for length in range(len(whole))] + [whole + b"\0"]:
        with pytest.raises(CodecError):
            CODEC.decode(data)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(data)


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_raises_nothing_but_codec_error(position: int, change: int) -> None:
    data = bytearray(CODEC.encode(EXAMPLE))
    data[position % len(data)] ^= change
    try:
        decoded = CODEC.decode(bytes(data))
    except CodecError:
        return
    assert decoded != EXAMPLE


@pytest.mark.parametrize(
    "data",
    [
        raw({"records": []}),
        raw({"metadata": [], "records": []}),
        raw({"metadata": {}}),
        raw({"metadata": {}, "records": [["a"]]}),
        raw({"metadata": {}, "records": [["a", -1]]}),
        raw({"metadata": {}, "records": [["a", True]]}, b"x"),
        raw({"metadata": {}, "records": [["a", 1], ["a", 1]]}, b"xy"),
        raw({"metadata": {}, "records": [["../a", 1]]}, b"x"),
        raw({"metadata": {}, "records": [["a", 10**30]]}, b"x"),
        raw([]),
    ],
)
def test_malformed_headers_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        CODEC.decode(data)


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".", "c:x", "a\\b", "a\0"]
)
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(CodecError, match="plain relative path"):
        Bundle(records={name: b""})


def test_metadata_must_be_json() -> None:
    with pytest.raises(CodecError):
        CODEC.encode(Bundle(records={}, metadata={"x": float("nan")}))


def test_extract_writes_private_files(tmp_path: Path) -> None:
    paths = extract(EXAMPLE, tmp_path / "out", prefix="kernel/")
    assert paths == {"kernel/k0.so": tmp_path / "out" / "kernel" / "k0.so"}
    (path,) = paths.values()
    assert path.read_bytes() == b"\x7fELF" and path.stat().st_mode & 0o777 == 0o600
    assert [found for found in (tmp_path / "out").rglob("*") if found.is_file()] == [path]
    extract(Bundle(records={"kernel/k0.so": b"new"}), tmp_path / "out")
    assert path.read_bytes() == b"new"
