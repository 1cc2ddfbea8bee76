"""What a run found, as data: one row per case, with a figure per backend; JSON to and fro."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.backends import family
from benchmarks.memory_bound.counters import Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One backend on one case. What was not measured is None; `failure` says why.

    Attributes:
        failure: what went wrong: a compiler's error, a wrong result, a crash.
        repeatable: two calls gave the same bits; None if they need not.
        busy_us: GPU-busy microseconds of a call, second-level cache emptied before it (wall time on the CPU).
        host_us: microseconds the host takes to issue it to an idle GPU.
        kernels: launches per call.
        steps: names and GPU microseconds of its kernels and copies, in their order.
        peak_bytes: peak of allocated memory above the inputs, in a call.
        compile_s: first call in a fresh process with empty caches.
    """

    failure: str = ""
    repeatable: bool | None = None
    busy_us: float | None = None
    host_us: float | None = None
    kernels: int | None = None
    steps: tuple[tuple[str, float], ...] = ()
    peak_bytes: int | None = None
    compile_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case.

    Attributes:
        case, set: which, and of which set.
        read_bytes, written_bytes, again_bytes: the fewest that a call moves; `why` something is read again.
        copy_us: GPU-busy microseconds of a copy that moves as many bytes, measured in the same process.
        figures: by backend.
        counters: by backend, each launch of a call with its hardware counters; `uncounted` says why there are
            none.
        searches: by backend, what its searches for configurations found (`choices.searches`); kept apart from
            `to_json`.
    """

    case: str
    set: str
    read_bytes: int = 0
    written_bytes: int = 0
    again_bytes: int = 0
    why: str = ""
    copy_us: float | None = None
    figures: dict[str, Figure] = field(default_factory=dict)
    counters: dict[str, list[Counters]] = field(default_factory=dict)
    uncounted: str = ""
    searches: dict[str, list[dict[str, Any]]] = field(default_factory=dict, compare=False)

    @property
    def fewest_bytes(self) -> int:
        return self.read_bytes + self.written_bytes + self.again_bytes

    def busy_us(self, backend: str) -> float | None:
        """None where it failed or took no part."""
        figure = self.figures.get(backend)
        return None if figure is None or figure.failure else figure.busy_us

    def share(self, backend: str) -> float | None:
        """The share of the bandwidth of a copy, on the fewest bytes."""
        busy = self.busy_us(backend)
        return None if busy is None or self.copy_us is None or not busy else self.copy_us / busy

    def speedup(self, backend: str, over: str) -> float | None:
        """Return how many times as fast `backend` is as `over`."""
        own, other = self.busy_us(backend), self.busy_us(over)
        return None if own is None or other is None or not own else other / own


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRun:
    """Everything that one `python -m benchmarks memory` found."""

    command: str
    when: str
    device: str
    seconds: float
    machine: dict[str, str]
    backends: tuple[str, ...]
    rows: tuple[Row, ...]


def to_json(run: MemoryRun) -> str:
    """The run as JSON, with the derived figures spelled out."""
    data = asdict(run)
    for entry, row in zip(data["rows"], run.rows, strict=True):
        del entry["searches"]
        entry["derived"] = {
            backend: {
                "share_of_copy": row.share(backend),
                "speedup": {o: row.speedup(backend, o) for o in run.backends if o != backend},
            }
            for backend in row.figures
        }
    return json.dumps(data, indent=1) + "\n"


def read_json(path: Path) -> MemoryRun:
    """Read what `to_json` wrote; derived figures are computed again."""
    data = json.loads(path.read_text())
    rows = tuple(_row(entry) for entry in data.pop("rows"))
    return MemoryRun(**data | {"rows": rows, "backends": tuple(data["backends"])})


def _row(entry: dict[str, Any]) -> Row:
    figures = {backend: Figure(**restore_steps(figure)) for backend, figure in entry["figures"].items()}
    counters = {b: [Counters(**one) for one in found] for b, found in entry.get("counters", {}).items()}
    kept = {k: value for k, value in entry.items() if k not in ("derived", "figures", "counters")}
    return Row(**kept, figures=figures, counters=counters)


def restore_steps(figure: dict[str, Any]) -> dict[str, Any]:
    """`figure` as it came from JSON, with pairs where that has lists."""
    return figure | {"steps": tuple((name, us) for name, us in figure.get("steps", ()))}


def rivals(backends: Iterable[str], own: str) -> list[str]:
    """The backends of other families, in order."""
    return [backend for backend in backends if family(backend) != family(own)]
