"""Codecs: exact round trips, and CodecError for everything else."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import BytesCodec, CodecError, JsonCodec, JsonValue, MappedCodec
from coilwork_cache.codec import dump_json

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
