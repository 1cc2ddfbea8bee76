"""Traces: every stage's text in `COILWORK_TRACE=dir`, and searches for kernels in the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coilwork_frontend.errors import OptionError
from coilwork_runtime.executor.choice import Loadable
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import Trial

log = logging.getLogger("coilwork")

# How files end that tell how a kernel runs; the option `mappings` reads them.
MAPPING_SUFFIX: Final = ".mapping.txt"


@dataclass(frozen=True, slots=True)
class Trace:
    """The folder of one graph's dumps; `None` for nowhere."""

    folder: Path | None

    def write(self, name: str, text: str) -> None:
        """Write `text` to file `name` (which may contain folders) of this graph's dump; where that fails, the
        log says so."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Do as `write`."""
        if self.folder is None:
            return
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        except OSError as error:
            log.warning("%s is not written: %s", path, error)

    def write_graph(self, graph: Loadable) -> None:
        """Write the module of a compiled graph, and its program and its kernels as bytes."""
        self.write("module.py", graph.module)
        self.write_bytes("kernels.bin", graph.kernels)
        self.write_bytes("program.bin", graph.program)

    @property
    def is_wanted(self) -> bool:
        """True if dumps are written: rendering text that nobody reads costs time."""
        return self.folder is not None


def open_trace(root: str, graph_id: str) -> Trace:
    """Return the trace of one graph below folder `root`; writes nothing when `root` is empty.

    Raises:
        OptionError: the folder can neither be found nor made.
    """
    if not root:
        return Trace(None)
    folder = Path(root) / graph_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(
            "bad-option",
            f"trace: no folder {str(folder)!r} can be made",
            reason=str(error),
            remedy="a folder that this user may write to, or no trace",
        ) from error
    return Trace(folder)


# ---- searches ----


def log_search(graph_id: str, kernel: str, trials: int, best: Trial) -> None:
    """Log the best configuration of a kernel after some trials."""
    log.info(
        "graph %s: kernel %s: %.4g us after %d configurations: %s",
        graph_id,
        kernel,
        1e3 * (best.milliseconds or 0.0),
        trials,
        ", ".join(f"{name}={value}" for name, value in best.config.items()),
    )
