"""The head of a typed entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import CodecError
from coilwork_cache.codec import MAX_FRAME_BYTES, frame_head, peek_kind, strip_head

NAME = st.text("abc-1", min_size=1, max_size=255)


@given(NAME, NAME, st.binary(max_size=20))
def test_round_trip(kind: str, codec: str, payload: bytes) -> None:
    data = frame_head(kind, codec) + payload
    assert strip_head(data, kind, codec) == payload
    assert peek_kind(data[:MAX_FRAME_BYTES]) == kind


def test_another_kind_or_codec_is_refused() -> None:
    data = frame_head("kernel", "bundle-1")
    for kind, codec in (("graph", "bundle-1"), ("kernel", "bundle-2"), ("kernelbundle", "-1")):
        with pytest.raises(CodecError):
            strip_head(data, kind, codec)


@given(st.binary(max_size=40))
def test_other_bytes_are_raw(data: bytes) -> None:
    assert peek_kind(data) == "raw"


def test_a_truncated_head_has_some_kind() -> None:
    head = frame_head("kernel", "bundle-1")
    assert {peek_kind(head[:length]) for length in range(10)} == {"raw"}
