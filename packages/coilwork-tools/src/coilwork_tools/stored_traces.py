"""The records of traced graphs in a store, and what `torch.compiler.save_cache_artifacts` is told of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coilwork_cache import Entry, LocalStore, Store, TieredStore, TraceCache
from coilwork_frontend.torch_compat.cache_artifacts import record_artifacts
from coilwork_tools.explain.report import CompiledGraph

log = logging.getLogger("coilwork")


def record_used(store: Store) -> None:
    """Let `torch.compiler.save_cache_artifacts` write the entries of `store` that this process has used."""
    local = store.fast if isinstance(store, TieredStore) else store
    if isinstance(local, LocalStore):
        record_artifacts(local.list_used_keys(), local)


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """The place of one record in the cache."""

    entry: Entry[dict[str, Any]]

    def read(self) -> dict[str, Any] | None:
        """Return the record; None if there is none."""
        return self.entry.read()

    def write(self, value: dict[str, Any]) -> None:
        """Keep `value`."""
        self.entry.write(value)
        record_used(self.entry.cache.store)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTraces:
    """Records of the graphs that earlier processes traced.

    Attributes:
        store: has them.
        list_parts: makes the parts of a record's key of the text of a captured graph.
        load_graph: loads a compiled graph by its record, naming source lines; None if it cannot be had.
        keys: those of the records that were asked for.
    """

    store: Store
    list_parts: Callable[[str], Iterable[str]]
    load_graph: Callable[[Mapping[str, Any], Sequence[str]], CompiledGraph | None]
    keys: list[str] = field(default_factory=list)

    def open(self, text: str) -> TraceEntry:
        """Return the place of the record whose key is made of `text`."""
        cache = TraceCache(self.store)
        self.keys.append(cache.key(*self.list_parts(text)))
        return TraceEntry(Entry(cache, self.keys[-1]))

    def note_restored(self) -> None:
        """Log that a graph was restored."""
        log.info("a captured graph is not traced: an earlier process did")

    def note_traced(self, reason: str) -> None:
        """Log why a graph is traced."""
        log.info("a captured graph is traced: %s", reason)

    def load(self, record: Mapping[str, Any], lines: Sequence[str]) -> CompiledGraph | None:
        """Return the compiled graph of a record, naming source `lines`; None if it cannot be had."""
        loaded = self.load_graph(record, lines)
        record_used(self.store)
        return loaded
