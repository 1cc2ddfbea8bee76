"""The memory store's bound and its order of eviction."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_cache import EntryTooLargeWarning, InvalidSettingError, MemoryStore, content_key

KEYS = [content_key("k", str(i)) for i in range(5)]


def test_least_recently_used_goes_first() -> None:
    store = MemoryStore(max_bytes=30)
    for key in KEYS[:3]:
        store.put(key, b"0123456789")
    store.get(KEYS[0])
    store.put(KEYS[3], b"0123456789")
    assert [store.contains(key) for key in KEYS[:4]] == [True, False, True, True]
    assert store.stats().evicted == 1


def test_too_large_an_entry_warns_once_and_hides_the_older() -> None:
    store = MemoryStore(max_bytes=10)
    store.put(KEYS[0], b"old")
    with pytest.warns(EntryTooLargeWarning, match="max_bytes is 10"):
        store.put(KEYS[0], b"x" * 11)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put(KEYS[1], b"x" * 11)
    assert store.get(KEYS[0]) is None


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=40)))))
def test_never_exceeds_its_bound(steps: list[tuple[str, bytes | None]]) -> None:
    store = MemoryStore(max_bytes=60)
    for key, data in steps:
        if data is None:
            store.delete(key)
        else:
            store.put(key, data)
            assert store.get(key) == data
        assert sum(entry.size_bytes for entry in store.entries()) <= 60


def test_refuses_an_empty_bound() -> None:
    with pytest.raises(InvalidSettingError, match="max_bytes=0"):
        MemoryStore(max_bytes=0)
