"""Remedies in the cache: ways around a fault of the compiler's, found once and tried first the next time.

They are no graphs: a graph with a fault is not in the cache, and its faults are met again by each process
that compiles it. So a fault that was the machine's, or that an upgrade mended, leaves nothing behind, and its
warning is repeated while it is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from coilwork.caching.graph_cache import Caches
from coilwork_cache import Bundle
from coilwork_tools.op_fallback.retries import StoredStep

_RECORD = "remedy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyCache:
    """The remedy of one graph. `key` is that of the graph cache, None for a graph that is not cached."""

    caches: Caches
    key: str | None

    def read(self) -> tuple[StoredStep, ...]:
        """The steps found before; none if there are none, or if they do not decode."""
        if self.key is None:
            return ()
        bundle = self.caches.graphs.get(self._place(self.key))
        if bundle is None:
            return ()
        try:
            return tuple(
                StoredStep(
                    positions=tuple(int(position) for position in step["positions"]),
                    apart=bool(step["apart"]),
                    reason=str(step["reason"]),
                )
                for step in json.loads(bundle.records[_RECORD])
            )
        except (KeyError, TypeError, ValueError):
            # it is a hint, and found again
            return ()

    def write(self, steps: tuple[StoredStep, ...]) -> None:
        """Keep `steps`."""
        if self.key is None:
            return
        data = [
            {"positions": list(step.positions), "apart": step.apart, "reason": step.reason} for step in steps
        ]
        self.caches.graphs.put(
            self._place(self.key), Bundle(records={_RECORD: json.dumps(data).encode("utf-8")})
        )

    def _place(self, key: str) -> str:
        return self.caches.graphs.key("remedy", key)
