"""A captured graph without some of its equal layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import fx

from coilwork_ir.repetition import Repetition

# Equal layers that stay: what is decided about one may depend on those before and behind it.
KEPT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ShorterCapture:
    """A captured graph without some of its equal layers.

    Attributes:
        whole: the graph that it was made of.
        gm: the shorter graph, with all inputs.
        nodes: calls of `whole` by name.
        owners: the layer of each call by name, -1 for none.
        repetition: the layers of `whole`.
    """

    whole: fx.GraphModule
    gm: fx.GraphModule
    nodes: Mapping[str, fx.Node]
    owners: Mapping[str, int]
    repetition: Repetition

    @property
    def omitted_count(self) -> int:
        """The number of layers that were left out."""
        return self.repetition.last - self.repetition.first - KEPT

    @property
    def end(self) -> int:
        """The number of the first layer that was left out."""
        return self.repetition.first + KEPT

    def find(self, name: str) -> tuple[int, int] | None:
        """Return the slot and the copy of a value, copies numbered as in the shorter graph."""
        place = self.repetition.places.get(name)
        if place is None or place[1] < self.end:
            return place
        return place[0], place[1] - self.omitted_count

    def name(self, slot: int, copy: int) -> str:
        """Return the name of a value in the whole graph; empty if there is none."""
        names = self.repetition.slots[slot]
        return names[copy] if 0 <= copy < len(names) else ""
