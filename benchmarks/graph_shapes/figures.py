"""Results of the benchmark, as data and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one run. `limit`: processor seconds for a graph."""

    backends: tuple[str, ...]
    shapes: tuple[str, ...]
    sizes: tuple[int, ...]
    limit: int

    def describe(self, shapes: int) -> str:
        """The options as one would type them; all of the `shapes` there are need none."""
        named = "" if len(self.shapes) == shapes else f"--shapes {' '.join(self.shapes)} "
        return (
            f"{named}--backends {' '.join(self.backends)} --sizes {' '.join(map(str, self.sizes))} "
            f"--limit {self.limit}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of one back end for one graph; no stages: it did not compile it, for the reason that `failure`
    says.

    Without a `failure`, that is the limit.
    """

    backend: str
    shape: str
    size: int
    nodes: int
    stages: dict[str, float]
    failure: str = ""

    @property
    def seconds(self) -> float:
        """The seconds of all stages."""
        return sum(self.stages.values())

    @property
    def key(self) -> tuple[str, str, int]:
        """Return what was compiled, and by whom."""
        return self.backend, self.shape, self.size


@dataclass(frozen=True, slots=True)
class Figures:
    """The results of one run or of several on one machine, with their options.

    `machine` is a line per fact.
    """

    options: tuple[Options, ...]
    measured: tuple[Measured, ...]
    machine: tuple[str, ...] = ()


def growth(smaller: Measured, larger: Measured) -> float:
    """The exponent of nodes by which seconds grow from one size to the next, n log n being 1."""

    def scale(measured: Measured) -> float:
        return measured.nodes * math.log(measured.nodes)

    return math.log(larger.seconds / smaller.seconds) / math.log(scale(larger) / scale(smaller))


def write_figures(figures: Figures, path: Path) -> None:
    """Write them as JSON; who interrupts it finds the file as it was."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(asdict(figures), indent=1) + "\n")
    part.replace(path)


def read_figures(path: Path) -> Figures:
    """Read what `write_figures` wrote."""
    data = json.loads(path.read_text())

    def read_options(items: dict[str, Any]) -> Options:
        return Options(
            backends=tuple(items["backends"]),
            shapes=tuple(items["shapes"]),
            sizes=tuple(items["sizes"]),
            limit=items["limit"],
        )

    options = tuple(map(read_options, data["options"]))
    return Figures(options, tuple(Measured(**items) for items in data["measured"]), tuple(data["machine"]))
