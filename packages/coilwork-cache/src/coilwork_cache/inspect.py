"""What is in a store, as data: the command line prints it, tests compare it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from coilwork_cache.errors import CacheWarning
from coilwork_cache.store import EntryInfo, InspectableStore, StoreStats


@dataclass(frozen=True, slots=True, kw_only=True)
class KindTotal:
    """All entries of one kind together."""

    kind: str
    entries: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """A store at one moment. `stats` are the counters of the store object that was asked."""

    entries: tuple[EntryInfo, ...]
    kinds: tuple[KindTotal, ...]  # sorted by name
    size_bytes: int
    stats: StoreStats


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Outcome of reading every entry. `problems` holds one message per entry that was not intact."""

    intact: int
    problems: tuple[str, ...]


def describe(store: InspectableStore) -> StoreReport:
    """List `store` without touching the order of eviction."""
    entries = tuple(store.entries())
    kinds = tuple(
        KindTotal(
            kind=kind,
            entries=sum(entry.kind == kind for entry in entries),
            size_bytes=sum(entry.size_bytes for entry in entries if entry.kind == kind),
        )
        for kind in sorted({entry.kind for entry in entries})
    )
    size_bytes = sum(entry.size_bytes for entry in entries)
    return StoreReport(entries=entries, kinds=kinds, size_bytes=size_bytes, stats=store.stats())


def clear(store: InspectableStore, *, kind: str | None = None) -> int:
    """Remove the entries of `kind`, or all; how many went."""
    if kind is None:
        return store.clear()
    chosen = [entry.key for entry in store.entries() if entry.kind == kind]
    for key in chosen:
        store.delete(key)
    return len(chosen)


def verify(store: InspectableStore) -> VerifyReport:
    """Read every entry. Damaged ones are removed, as any `get` would. Counts as a use of each entry.

    Not for use while other threads change the warning filters (Python keeps those per process).
    """
    intact = 0
    problems: list[str] = []
    for entry in list(store.entries()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CacheWarning)
            data = store.get(entry.key)
        if data is not None:
            intact += 1
        problems.extend(str(warning.message) for warning in caught)
    return VerifyReport(intact=intact, problems=tuple(problems))
