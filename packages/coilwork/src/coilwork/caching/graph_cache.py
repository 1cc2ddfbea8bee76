"""Compiled graphs on disk: the program, its kernels' manifests, the readable module and the report, by graph key.

The kernels' binaries lie beside them, each under a key of its own. Graphs driven by FX or C++ are not kept whole, only
their kernels and libraries.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from coilwork.caching.shared_cache import shared_store
from coilwork.compile_options import CompileOptions
from coilwork_cache import (
    Bundle,
    CacheCorruptionWarning,
    GraphCache,
    NullStore,
    Store,
    TieredStore,
    open_local_store,
)
from coilwork_tools.explain.report import CompileReport


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedGraph:
    """What the cache keeps of a compiled graph.

    `kernels` are the manifests and texts of its kernels. `program` is for the native executor, empty if it refuses the program, and `refusal` says why. `roles` are those of its inputs and results, as text. `constant_keys` name the tensors that the module needs; their contents are part of the key, and they are taken
    from the graph at hand.
    """

    module: str
    kernels: bytes = b""
    program: bytes = b""
    refusal: str = ""
    roles: str = ""
    constant_keys: tuple[str, ...]
    report: CompileReport


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches of one compilation: `kernels` is the store that the runtime's builder keeps built kernels in."""

    kernels: Store
    graphs: GraphCache

    def graph_key(
        self, graph_text: str, targets_text: str, options: CompileOptions, torch_version: str, identity: str
    ) -> str:
        """The key of a graph.

        Targets are part of it, for caches that machines share, and versions and the compiler's identity, so that an
        upgrade never meets old entries.
        """
        return self.graphs.key(graph_text, targets_text, options.key_text(), torch_version, identity)

    def get_graph(self, key: str) -> CachedGraph | None:
        """The entry under `key`; one that does not decode is dropped with a warning, and counts as a miss."""
        bundle = self.graphs.get(key)
        if bundle is None:
            return None
        try:
            facts = json.loads(bundle.records["report.json"])
            report = replace(CompileReport(graph_id="", role=""), **facts)
            keys = tuple(str(key) for key in json.loads(bundle.records["constants.json"]))
            return CachedGraph(
                module=bundle.records["module.py"].decode(),
                kernels=bundle.records["kernels.bin"],
                program=bundle.records["program.bin"],
                refusal=bundle.records["refusal.txt"].decode(),
                roles=bundle.records["roles.txt"].decode(),
                constant_keys=keys,
                report=report,
            )
        except (KeyError, TypeError, ValueError) as error:
            self.drop_graph(key, f"{type(error).__name__}: {error}")
            return None

    def drop_graph(self, key: str, reason: str) -> None:
        """Remove the entry under `key`, which is damaged, with a warning."""
        self.graphs.delete(key)
        warnings.warn(CacheCorruptionWarning(f"graph entry {key}", reason), stacklevel=2)

    def put_graph(self, key: str, entry: CachedGraph) -> None:
        """Keep `entry` under `key`."""
        records = {
            "module.py": entry.module.encode(),
            "kernels.bin": entry.kernels,
            "program.bin": entry.program,
            "refusal.txt": entry.refusal.encode(),
            "roles.txt": entry.roles.encode(),
            "report.json": entry.report.to_json().encode(),
            "constants.json": json.dumps(list(entry.constant_keys)).encode(),
        }
        self.graphs.put(key, Bundle(records=records))


def open_caches(options: CompileOptions) -> Caches:
    """The caches that `options` ask for. A folder that cannot be used is warned of, and nothing is cached.

    Raises:
        OptionError: as `shared_store`.
    """
    store: Store = NullStore()
    if options.cache:
        local = open_local_store(Path(options.cache_dir) if options.cache_dir else None)
        store = TieredStore(local, shared_store(options.redis_url)) if options.redis_url else local
    return Caches(kernels=store, graphs=GraphCache(store))
