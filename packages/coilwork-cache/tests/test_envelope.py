"""The entry format: every truncation, extension and bit flip is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import content_key
from coilwork_cache.local_store import HEADER_BYTES, DamagedEntry, seal, unseal

KEY = content_key("k", "one")
OTHER = content_key("k", "two")


def reopen(data: bytes, key: str = KEY) -> bytes:
    return unseal(key, data[:HEADER_BYTES], data[HEADER_BYTES:])


@given(st.binary(max_size=200))
def test_round_trip(payload: bytes) -> None:
    assert reopen(seal(KEY, payload) + payload) == payload


@given(st.binary(max_size=60))
def test_every_prefix_is_damaged(payload: bytes) -> None:
    whole = seal(KEY, payload) + payload
    for length in range(len(whole)):
        with pytest.raises(DamagedEntry):
            reopen(whole[:length])


def test_every_bit_flip_is_damaged() -> None:
    whole = seal(KEY, b"payload") + b"payload"
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedEntry):
            reopen(bytes(flipped))


def test_appended_bytes_and_another_key_are_damaged() -> None:
    whole = seal(KEY, b"payload") + b"payload"
    with pytest.raises(DamagedEntry, match="extended"):
        reopen(whole + b"\0")
    with pytest.raises(DamagedEntry, match="checksum"):
        reopen(whole, OTHER)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_damaged(data: bytes) -> None:
    with pytest.raises(DamagedEntry):
        reopen(data)
