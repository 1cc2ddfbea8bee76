"""How values become bytes: codecs, bundles, frames."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import (
    Bundle,
    BundleCodec,
    BytesCodec,
    CodecError,
    JsonCodec,
    JsonValue,
    MappedCodec,
    extract,
)
from coilwork_cache.codec import MAX_FRAME_BYTES, dump_json, make_frame_head, peek_kind, strip_head

JSON: st.SearchStrategy[JsonValue] = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_json_round_trip_is_exact_and_canonical(value: dict[str, JsonValue]) -> None:
    codec = JsonCodec()
    data = codec.encode(value)
    assert codec.decode(data) == value
    assert codec.encode(dict(reversed(value.items()))) == data
    assert codec.encode(codec.decode(data)) == data


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1: "x"}, [{"a": {2: 3}}], b"bytes"])
def test_json_refuses_what_would_come_back_different(value: object) -> None:
    with pytest.raises(CodecError, match="codec"):
        dump_json({"key": value})


def test_json_refuses_cycles_and_abysses() -> None:
    cycle: dict[str, JsonValue] = {}
    cycle["self"] = cycle
    with pytest.raises(CodecError):
        JsonCodec().encode(cycle)
    with pytest.raises(CodecError):
        JsonCodec().decode(b'{"a":' * 100_000)
    with pytest.raises(CodecError):
        JsonCodec().decode(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"1", b"null", b'{"a":NaN}', b'{"a":-Infinity}', b"\xff", b"{}x"]
)
def test_json_refuses_other_bytes(data: bytes) -> None:
    with pytest.raises(CodecError):
        JsonCodec().decode(data)


@given(st.binary())
def test_json_raises_nothing_but_codec_error(data: bytes) -> None:
    try:
        value = JsonCodec().decode(data)
    except CodecError:
        return
    assert JsonCodec().decode(JsonCodec().encode(value)) == value


@given(st.binary())
def test_bytes_round_trip(data: bytes) -> None:
    assert BytesCodec().decode(BytesCodec().encode(data)) == data


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    config: str
    time_us: float


def revive(data: dict[str, JsonValue]) -> Choice:
    config, time_us = data["config"], data["time_us"]
    if not isinstance(config, str) or not isinstance(time_us, float):
        raise TypeError("wrong field")
    return Choice(config=config, time_us=time_us)


CHOICES = MappedCodec(JsonCodec(), name="choice-1", flatten=asdict, revive=revive)


def test_mapped_round_trip() -> None:
    assert CHOICES.name == "choice-1/json-1"
    choice = Choice(config="128x64", time_us=12.5)
    assert CHOICES.decode(CHOICES.encode(choice)) == choice


@pytest.mark.parametrize("data", [b"{}", b'{"config":1,"time_us":1.0}', b"rubbish"])
def test_mapped_refuses_other_objects(data: bytes) -> None:
    with pytest.raises(CodecError):
        CHOICES.decode(data)


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


KIND_AND_CODEC = st.text("abc-1", min_size=1, max_size=255)


@given(KIND_AND_CODEC, KIND_AND_CODEC, st.binary(max_size=20))
def test_a_frame_gives_back_its_kind_and_payload(kind: str, codec: str, payload: bytes) -> None:
    data = make_frame_head(kind, codec) + payload
    assert strip_head(data, kind, codec) == payload
    assert peek_kind(data[:MAX_FRAME_BYTES]) == kind


def test_another_kind_or_codec_is_refused() -> None:
    data = make_frame_head("kernel", "bundle-1")
    for kind, codec in (("graph", "bundle-1"), ("kernel", "bundle-2"), ("kernelbundle", "-1")):
        with pytest.raises(CodecError):
            strip_head(data, kind, codec)


@given(st.binary(max_size=40))
def test_other_bytes_are_raw(data: bytes) -> None:
    assert peek_kind(data) == "raw"


def test_a_truncated_head_has_some_kind() -> None:
    head = make_frame_head("kernel", "bundle-1")
    assert {peek_kind(head[:length]) for length in range(10)} == {"raw"}
