"""Write when each stage of a compilation ran, as a Chrome trace: chrome://tracing and Perfetto show it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import NamedTuple


class Phase(NamedTuple):
    """One stage: `began_ns` since the epoch, for `taken_ns`, in the thread whose number the system has."""

    name: str
    began_ns: int
    taken_ns: int
    thread: int


def format_phases(graph: str, phases: Sequence[Phase]) -> str:
    """Return a Chrome trace of the `phases` of `graph`, in the JSON object format: times in microseconds."""
    events = [
        {
            "name": one.name,
            "cat": "coilwork",
            "ph": "X",
            "ts": one.began_ns / 1e3,
            "dur": one.taken_ns / 1e3,
            "pid": os.getpid(),
            "tid": one.thread,
            "args": {"graph": graph},
        }
        for one in phases
    ]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
