"""Keys: injective, stable, and nothing else passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import InvalidKeyError, content_key
from coilwork_cache.key import check_key

GOLDEN = "9f96e6e4452f90aa886de5ad747201e26232305a1b91c3b43379217fb40a84c6"
PART = st.one_of(st.text(max_size=4), st.binary(max_size=4))
PARTS = st.lists(PART, max_size=4)


def test_is_64_hex_digits() -> None:
    key = content_key("kernel", "text", b"bytes")
    assert check_key(key) == key
    assert len(key) == 64


def test_is_the_same_in_every_process_and_release() -> None:
    # Changing this value empties every user's cache: raise KEY_FORMAT, and say so in the changelog.
    assert content_key("kernel", "a", b"b") == GOLDEN


@given(PARTS, PARTS)
def test_different_parts_give_different_keys(one: list[str | bytes], other: list[str | bytes]) -> None:
    assert (content_key("k", *one) == content_key("k", *other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [(("ab", "c"), ("a", "bc")), (("a",), (b"a",)), ((), ("",)), (("a", ""), ("", "a")), (("",), ("", ""))],
)
def test_boundaries_and_types_count(one: tuple[str | bytes, ...], other: tuple[str | bytes, ...]) -> None:
    assert content_key("k", *one) != content_key("k", *other)


def test_kind_counts_and_differs_from_a_part() -> None:
    assert content_key("graph", "x") != content_key("kernel", "x")
    assert content_key("a", "b") != content_key("ab")


def test_takes_file_names_with_undecodable_bytes() -> None:
    assert content_key("k", b"\xff.py".decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("kind", ["", "Kernel", "../x", "a b", "1a", "k" * 64, "k\n"])
def test_refuses_other_kinds(kind: str) -> None:
    with pytest.raises(InvalidKeyError, match="invalid-key"):
        content_key(kind)


@pytest.mark.parametrize(
    "key", ["", "0" * 63, "0" * 65, "A" * 64, "../" + "0" * 61, "0" * 64 + "\n", "g" * 64]
)
def test_refuses_other_keys(key: str) -> None:
    with pytest.raises(InvalidKeyError, match="content_key"):
        check_key(key)
