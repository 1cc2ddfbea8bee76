"""Work that is the same in call after call, handed to the GPU's driver as graphs instead of piece by piece.

The native executor listens to a program's calls (native/replay/replay.hpp): stretches of launches, products
and convolutions in its capture regions that did not change become graphs, which the driver takes in about the
time of two launches. Each call still works out all of it; what is not word for word the same is done as if
there were no graphs. So graphs need no fixed sizes, inputs or memory, and hold none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGraphs:
    """Where graphs come from.

    Attributes:
        path: of the driver's library; empty for the one that is loaded.
    """

    path: str = ""

    def open(self, extension: Any) -> int:
        """The address that the extension knows them by; 0 if they are not to be had."""
        try:
            address: int = extension.graphs(self.path)
        except ImportError:
            return 0
        return address
