"""The names and lines of `coilwork_triton.iteration.shape` in a kernel's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, ceildiv, floordiv
from coilwork_ir.syntax.python import Assign, Binary, Expression, Name, Number, Statement
from coilwork_triton.iteration.shape import Place, Row, WholeVectors
from coilwork_triton.text.language import tl

_ZERO: Final = as_expr(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAccess:
    """How one access along a row is written."""

    lanes: VectorLanes
    buffer: str
    row: Row

    @property
    def letter(self) -> str:
        """The tile along which the row lies."""
        return self.lanes.vectors.tile.letter

    @property
    def last_program(self) -> Expression | None:
        """True for the program that has the end; None where every program has one."""
        tile = self.lanes.vectors.tile
        if tile.letter == "r":
            return None
        end = Binary("+", Name(f"{tile.letter}offset"), Name(tile.block))
        return Binary(">", end, self.lanes.end)

    @property
    def pointer(self) -> Expression | None:
        """Its pointers; None if they are its offset's."""
        return self.lanes.address(self.buffer, self.row)

    @property
    def near(self) -> Name:
        """The mask of vectors that hold a point."""
        return self.lanes.near(self.row.lanes)

    @property
    def whole(self) -> Name:
        """The mask of vectors all of which are points."""
        return self.lanes.whole(self.row.lanes)


class VectorLanes:
    """Hands out addresses and masks of whole vectors, and remembers which masks were used.

    Args:
        vectors: what is accessed that way.
        index: the text of an offset.
        numel: the text of the tile's number of points.
    """

    def __init__(self, vectors: WholeVectors, index: Callable[[Expr], Expression], numel: Expression) -> None:
        self.vectors = vectors
        self._index = index
        self._numel = numel
        letter = vectors.tile.letter
        self.shift = Name(f"{letter}shift")
        self.end = Name(f"{letter}end") if vectors.shifted else numel
        self._row = Name(f"{letter}row")
        self.lane = Name(f"{letter}lane") if vectors.shifted else Name(vectors.tile.index.name)
        self._start: Expression | None = None
        self._near: set[int] = set()
        self._whole: set[int] = set()

    def access(self, place: Place) -> RowAccess | None:
        """The access at `place`, if it is one of whole vectors."""
        row = self.vectors.rows.get(place)
        return None if row is None else RowAccess(lanes=self, buffer=place[0], row=row)

    def address(self, buffer: str, row: Row) -> Expression | None:
        """The pointers of an access; None if they are its offset's."""
        if not self.vectors.shifted:
            return None
        self._note()
        start: Expression = self._row
        if row.apart is not _ZERO:
            start = Binary("+", start, self._index(row.apart))
        return Binary("+", Name(buffer), Binary("+", start, self.lane))

    def near(self, lanes: int) -> Name:
        """True for vectors of `lanes` that hold a point."""
        self._note()
        self._near.add(lanes)
        return Name(f"{self.vectors.tile.letter}near{lanes}")

    def whole(self, lanes: int) -> Name:
        """True for vectors of `lanes` all of which are points."""
        self._note()
        self._whole.add(lanes)
        return Name(f"{self.vectors.tile.letter}whole{lanes}")

    def prologue(self) -> list[Statement]:
        """Return where the program's row begins, if anything asked for it."""
        if self._start is None or not self.vectors.shifted:
            return []
        lanes = Number(self.vectors.lanes)
        start = Name(f"{self.vectors.tile.letter}start")
        return [
            Assign((start.id,), self._start),
            Assign((self._row.id,), Binary("*", Binary("//", start, lanes), lanes)),
            # of a number below 8 ptxas knows which lanes it leaves idle, of a difference it does not
            Assign((self.shift.id,), Binary("&", start, Number(self.vectors.lanes - 1))),
            Assign((f"{self.vectors.tile.letter}end",), Binary("+", self._numel, self.shift)),
        ]

    def positions(self, lanes: Expression) -> list[Statement]:
        """The lanes' definition, and that of positions, by which lanes there are."""
        return [
            Assign((self.lane.id,), lanes),
            Assign((self.vectors.tile.index.name,), Binary("-", self.lane, self.shift)),
        ]

    def inside(self) -> Expression:
        """True for positions that are points."""
        index = Name(self.vectors.tile.index.name)
        return Binary("&", Binary(">=", index, Number(0)), Binary("<", index, self._numel))

    def masks(self) -> list[Statement]:
        """The masks that were asked for."""
        letter = self.vectors.tile.letter
        lines: list[Statement] = []
        for lanes in sorted(self._near):
            mask = Binary("<", self._vector(lanes), self._divided(lanes, up=True))
            lines.append(Assign((f"{letter}near{lanes}",), mask))
        for lanes in sorted(self._whole):
            mask = Binary("<", self._vector(lanes), self._divided(lanes, up=False))
            if self.vectors.shifted:
                first = Binary("//", Binary("+", self.shift, Number(lanes - 1)), Number(lanes))
                mask = Binary("&", Binary(">=", self._vector(lanes), first), mask)
            lines.append(Assign((f"{letter}whole{lanes}",), mask))
        self._near.clear()
        self._whole.clear()
        return lines

    def first_lane(self, lane: Expression, block: Expression) -> Expression:
        """The first position of each lane that is a point, in blocks of `block`."""
        if not self.vectors.shifted:
            return lane
        self._note()
        behind = tl("where", Binary("<", lane, self.shift), Binary("+", lane, block), lane)
        return Binary("-", behind, self.shift)

    def _note(self) -> None:
        if self._start is None:
            self._start = self._index(self.vectors.start)

    def _vector(self, lanes: int) -> Expression:
        return Binary("//", self.lane, Number(lanes))

    def _divided(self, lanes: int, *, up: bool) -> Expression:
        """How many vectors there are up to the end."""
        exact = None if self.vectors.shifted else as_int(self.vectors.tile.numel)
        if exact is not None:
            return Number(
                as_int(ceildiv(as_expr(exact), lanes) if up else floordiv(as_expr(exact), lanes)) or 0
            )
        end = Binary("+", self.end, Number(lanes - 1)) if up else self.end
        return Binary("//", end, Number(lanes))
