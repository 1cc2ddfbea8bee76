"""Stage dumps: with `COILWORK_TRACE=dir` every stage's text is written to `dir/<graph id>/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Trace:
    """Where one graph's dumps go; `None` for nowhere."""

    folder: Path | None

    def write(self, name: str, text: str) -> None:
        """Write `text` to file `name` (which may contain folders) of this graph's dump."""
        if self.folder is None:
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    @property
    def wanted(self) -> bool:
        """True if dumps are written: rendering text that nobody reads costs time."""
        return self.folder is not None


def open_trace(root: str, graph_id: str) -> Trace:
    """The trace of one graph below folder `root`; writes nothing when `root` is empty."""
    return Trace(Path(root) / graph_id if root else None)
