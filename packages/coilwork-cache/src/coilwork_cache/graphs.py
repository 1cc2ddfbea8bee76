"""Compiled graphs in a store: the program, its kernels' manifests, the readable module and the report, by
graph key.

The kernels' binaries lie beside them, each under a key of its own. Ways around a fault of the compiler's lie
in a cache of their own: a graph with a fault is not kept, so that each process meets the fault again, warns
of it while it is there, and tries first what helped before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Generic, TypeVar

from coilwork_cache.bundle import Bundle, BundleCodec
from coilwork_cache.codec import JsonCodec, JsonValue, MappedCodec
from coilwork_cache.store import Store
from coilwork_cache.typed import TypedCache

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEntry:
    """What is kept of a compiled graph.

    Attributes:
        module: text of the Python module, which people read.
        kernels: manifests and texts of its kernels, as bytes.
        program: the program as bytes.
        refusal: why the native executor refuses it, if it does.
        roles: of its inputs and results, as text.
        constant_keys: names of the tensors that the program needs. Their contents are part of the key, and
            they are taken from the graph at hand.
        report: what the compiler says of the graph.
    """

    module: str
    kernels: bytes = b""
    program: bytes = b""
    refusal: str = ""
    roles: str = ""
    constant_keys: tuple[str, ...] = ()
    report: dict[str, JsonValue]


def _write_records(entry: GraphEntry) -> Bundle:
    records = {
        "module.py": entry.module.encode(),
        "kernels.bin": entry.kernels,
        "program.bin": entry.program,
        "refusal.txt": entry.refusal.encode(),
        "roles.txt": entry.roles.encode(),
        "report.json": json.dumps(entry.report).encode(),
        "constants.json": json.dumps(list(entry.constant_keys)).encode(),
    }
    return Bundle(records=records)


def _read_records(bundle: Bundle) -> GraphEntry:
    records = bundle.records
    report = json.loads(records["report.json"])
    if not isinstance(report, dict):
        raise TypeError("its report is no JSON object")
    return GraphEntry(
        module=records["module.py"].decode(),
        kernels=records["kernels.bin"],
        program=records["program.bin"],
        refusal=records["refusal.txt"].decode(),
        roles=records["roles.txt"].decode(),
        constant_keys=tuple(str(key) for key in json.loads(records["constants.json"])),
        report=report,
    )


class GraphCache(TypedCache[GraphEntry]):
    """Whole compiled graphs, by canonical graph, targets, options and versions.

    Targets belong in the key, for caches that machines share, and so does the compiler's identity, so that an
    upgrade never meets old entries.
    """

    def __init__(self, store: Store) -> None:
        codec = MappedCodec(BundleCodec(), name="graph-3", flatten=_write_records, revive=_read_records)
        super().__init__(store, kind="graph", codec=codec)


class RemedyCache(TypedCache[dict[str, JsonValue]]):
    """Ways around faults, as JSON objects, by the graph's key in the graph cache."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, kind="remedy", codec=JsonCodec())


@dataclass(frozen=True, slots=True)
class Entry(Generic[_T]):
    """One entry of a cache; without a key, of something that is not cached, nothing is read or kept."""

    cache: TypedCache[_T]
    key: str | None

    def read(self) -> _T | None:
        """The value, or None."""
        return None if self.key is None else self.cache.get(self.key)

    def write(self, value: _T) -> None:
        """Keep `value`."""
        if self.key is not None:
            self.cache.put(self.key, value)
