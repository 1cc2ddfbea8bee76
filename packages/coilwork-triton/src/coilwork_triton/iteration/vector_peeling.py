"""Rows that begin or end within 16 bytes, accessed 16 bytes at a time with peeled ends.

A row of 50,257 elements begins anywhere, and no vector of Triton's may: an access that is not aligned, or
whose mask may change within 16 bytes, goes element by element. So lanes stand on the multiples of a vector:
the first one on the last multiple that is not behind the row's beginning, and positions are lanes less that
`shift`.

    row = x0 * n // 8 * 8
    shift = x0 * n & 7
    lane = offset + tl.arange(0, R0_BLOCK)
    r0 = lane - shift
    tl.load(in0 + (row + lane), lane // 8 < (n + shift + 7) // 8)

Loads take whole vectors, as far as one has an element of the row. The rest of a vector lies in the same
aligned 16 bytes, so it may be read, and masks keep it out of what lanes combine. Stores write whole vectors
in one instruction, and the ends in another. Lines that begin at a multiple and end anywhere have a shift of
0.

`choose_peeled_vectors` decides, `VectorLanes` writes these lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    find_stride,
    floordiv,
    provably_divisible,
    provably_le,
    provably_nonneg,
    substitute,
)
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Load, Scalar, Scan, Sort, iterate_postorder
from coilwork_ir.syntax.python import Assign, Binary, Expression, Name, Number, Statement
from coilwork_triton.facts.kernel_analysis import is_segmented_reduction
from coilwork_triton.facts.vectorization import Access
from coilwork_triton.iteration.shape import AccessPlace, PeeledVectors, Shape, Tile, VectorRow
from coilwork_triton.text.language import tl

# Analysis


_ZERO: Final = as_expr(0)
_ONE: Final = as_expr(1)


def choose_peeled_vectors(
    kernel: Kernel, shape: Shape, roots: Iterable[Scalar], least_block: int
) -> PeeledVectors | None:
    """Return the vectors that `kernel`, which stores or checks `roots`, is to have along rows in `shape`;
    None for none.

    Its smallest block along rows has `least_block` lanes.
    """
    vectors = find_peeled_vectors(kernel, shape, roots)
    if vectors is None or not has_room_for_shift(shape, vectors, least_block):
        return None
    if shape.scalar_access and not vectors.shifted and not _covers_all_accesses(kernel, vectors, roots):
        return None
    return vectors


def _covers_all_accesses(kernel: Kernel, vectors: PeeledVectors, roots: Iterable[Scalar]) -> bool:
    """Tell if all accesses along the tile are in vectors; else the others are why no access is to be wide."""
    along = {vectors.tile.index, *(part for part, _ in vectors.tile.parts)}
    looked_up = any(isinstance(node, Load) and node.indirect for node in iterate_postorder(tuple(roots)))
    known = all(place in vectors.rows for place in _places(kernel, roots) if along & place[1].free_symbols)
    return known and not looked_up


def should_loop(kernel: Kernel, shape: Shape, roots: Iterable[Scalar], least_block: int) -> bool:
    """Tell if long rows of `kernel`, which begin anywhere, are too long for their block by a vector."""
    long = shape.reduced is not None and provably_le(shape.grids.long_shifted_row, shape.reduced.numel)
    return long and count_lacking_lanes(kernel, shape, roots, least_block) > 0


def count_lacking_lanes(kernel: Kernel, shape: Shape, roots: Iterable[Scalar], least_block: int) -> int:
    """Lanes that a row needs before its first element and its block of `least_block` may not have; else 0."""
    if shape.walk != "persistent":
        return 0
    vectors = find_peeled_vectors(kernel, shape, roots)
    return 0 if vectors is None or has_room_for_shift(shape, vectors, least_block) else vectors.lanes - 1


def find_peeled_vectors(kernel: Kernel, shape: Shape, roots: Iterable[Scalar]) -> PeeledVectors | None:
    """Return the accesses of `kernel` in `shape` that may be of whole vectors along rows that begin or end
    anywhere.

    None where blocks have several axes, where accesses are wide in any case, and where some of what
    comes from memory lies elsewhere within vectors than the rest.
    """
    tile = _find_single_axis(shape)
    if tile is None or (tile.numel.is_const and not provably_le(shape.grids.least_row, tile.numel)):
        return None
    roots = tuple(roots)
    if is_segmented_reduction(roots) or any(
        isinstance(node, Scan | Sort) for node in iterate_postorder(roots)
    ):
        # lanes are counted from a row's first element on: by the end that data give it, and by what is
        # carried from block to block
        return None
    aligned = {a.name for a in kernel.args if a.aligned}
    itemsize = {a.name: a.dtype.itemsize for a in kernel.args}
    flattened = {part: value for t in shape.tiles for part, value in t.parts}
    found: dict[AccessPlace, tuple[Access, Expr]] = {}
    for buffer, index in _places(kernel, roots):
        flat = substitute(index, flattened) if flattened else index
        if find_stride(flat, tile.index) is _ONE:
            access = Access(index=flat, itemsize=itemsize[buffer])
            found[buffer, index] = (access, substitute(flat, {tile.index: _ZERO}))
    outer = {part for t in shape.parallel if t is not tile for part in (t.index, *(p for p, _ in t.parts))}
    # what all rows read, as weights, comes from a cache
    own = [place for place, (_, start) in found.items() if not outer or outer & start.free_symbols]
    if not own:
        return None
    usable = {p: part for p, part in found.items() if p[0] in aligned and part[0].lanes > 1}
    astray = [access for access, begin in map(found.__getitem__, own) if not _is_at_vector(access, begin)]
    share = sum(a.itemsize for a in astray) / sum(found[p][0].itemsize for p in own)
    if share < shape.grids.shifted_share:
        rows = {
            p: VectorRow(lanes=a.lanes, apart=_ZERO)
            for p, (a, begin) in usable.items()
            if _is_at_vector(a, begin)
        }
        ends = any(not provably_divisible(tile.numel, row.lanes) for row in rows.values())
        return PeeledVectors(tile=tile, start=_ZERO, lanes=1, shifted=False, rows=rows) if ends else None
    start = found[own[0]][1]
    lanes = max((access.lanes for access, _ in usable.values()), default=1)
    rows = {
        place: VectorRow(lanes=access.lanes, apart=begin - start)
        for place, (access, begin) in usable.items()
        # vectors then begin where the first of a buffer does, or behind
        if provably_divisible(begin - start, lanes) and provably_nonneg(begin)
    }
    if tile.letter != "r" or any(place not in rows for place in own):
        return None
    if len(own) < len(found):
        # a thread's neighbours would lie within a vector of weights, which all rows read, and none of those
        # loads be wide
        return None
    return PeeledVectors(tile=tile, start=start, lanes=lanes, shifted=True, rows=rows)


def _is_at_vector(access: Access, begin: Expr) -> bool:
    """Tell if a row of `access` that begins at `begin` begins with a whole vector."""
    return provably_divisible(begin, access.lanes)


def _find_single_axis(shape: Shape) -> Tile | None:
    """Return the tile that is the only dimension of blocks, if lanes may stand elsewhere along it."""
    axes = [tile for tile in shape.tiles if tile.axis is not None]
    plain = shape.sharing is None and shape.topk is None and shape.sequential is None
    if len(axes) != 1 or not plain or shape.has_thread_runs or shape.step > 1 or shape.zeros or shape.program:
        return None
    (tile,) = axes
    rows = tile.letter == "r" and shape.walk in ("persistent", "looped")
    lines = tile.letter == "x" and shape.walk == "pointwise"
    return tile if (rows or lines) and tile.has_mask and tile.column is None else None


def _places(kernel: Kernel, roots: Iterable[Scalar]) -> list[AccessPlace]:
    """Return the direct loads and stores of `kernel`; stores come last."""
    loads = [
        (node.buffer, node.index[0])
        for node in iterate_postorder(tuple(roots))
        if isinstance(node, Load) and not node.indirect
    ]
    stores = [(s.buffer, s.index) for s in kernel.stores if s.mode == "store" and not s.indirect]
    return [*loads, *stores]


def has_room_for_shift(shape: Shape, vectors: PeeledVectors, least_block: int) -> bool:
    """Tell if a row that is shifted fits its block of `least_block` lanes, where that is all there is."""
    if shape.walk != "persistent" or not vectors.shifted:
        return True
    return provably_le(vectors.tile.numel + (vectors.lanes - 1), as_expr(least_block))


# Text


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAccess:
    """One access along a row, as it is written."""

    lanes: VectorLanes
    buffer: str
    row: VectorRow

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
    def near_mask(self) -> Name:
        """The mask of vectors that hold a point."""
        return self.lanes.use_near_mask(self.row.lanes)

    @property
    def whole_mask(self) -> Name:
        """The mask of vectors all of which are points."""
        return self.lanes.use_whole_mask(self.row.lanes)


class VectorLanes:
    """Hands out addresses and masks of whole vectors, and remembers which masks were used.

    Args:
        vectors: what is accessed that way.
        index: the text of an offset.
        numel: the text of the tile's number of points.
    """

    def __init__(
        self, vectors: PeeledVectors, index: Callable[[Expr], Expression], numel: Expression
    ) -> None:
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

    def access(self, place: AccessPlace) -> RowAccess | None:
        """Return the access at `place`, if it is one of whole vectors."""
        row = self.vectors.rows.get(place)
        return None if row is None else RowAccess(lanes=self, buffer=place[0], row=row)

    def address(self, buffer: str, row: VectorRow) -> Expression | None:
        """Return the pointers of an access; None if they are its offset's."""
        if not self.vectors.shifted:
            return None
        self._note()
        start: Expression = self._row
        if row.apart is not _ZERO:
            start = Binary("+", start, self._index(row.apart))
        return Binary("+", Name(buffer), Binary("+", start, self.lane))

    def use_near_mask(self, lanes: int) -> Name:
        """Return the mask of vectors of `lanes` that hold a point; the kernel computes it from now on."""
        self._note()
        self._near.add(lanes)
        return Name(f"{self.vectors.tile.letter}near{lanes}")

    def use_whole_mask(self, lanes: int) -> Name:
        """Return the mask of vectors of `lanes` that are all points; the kernel computes it from now on."""
        self._note()
        self._whole.add(lanes)
        return Name(f"{self.vectors.tile.letter}whole{lanes}")

    def prologue(self) -> list[Statement]:
        """Return the lines that find where the program's row begins, if anything asked for it."""
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
        """Return the lanes' definition, and that of positions, by which lanes there are."""
        return [
            Assign((self.lane.id,), lanes),
            Assign((self.vectors.tile.index.name,), Binary("-", self.lane, self.shift)),
        ]

    def is_inside(self) -> Expression:
        """True for positions that are points."""
        index = Name(self.vectors.tile.index.name)
        return Binary("&", Binary(">=", index, Number(0)), Binary("<", index, self._numel))

    def masks(self) -> list[Statement]:
        """Return the statements that compute the masks asked for since the last call."""
        letter = self.vectors.tile.letter
        lines: list[Statement] = []
        for lanes in sorted(self._near):
            mask = Binary("<", self._vector(lanes), self._count_vectors(lanes, up=True))
            lines.append(Assign((f"{letter}near{lanes}",), mask))
        for lanes in sorted(self._whole):
            mask = Binary("<", self._vector(lanes), self._count_vectors(lanes, up=False))
            if self.vectors.shifted:
                first = Binary("//", Binary("+", self.shift, Number(lanes - 1)), Number(lanes))
                mask = Binary("&", Binary(">=", self._vector(lanes), first), mask)
            lines.append(Assign((f"{letter}whole{lanes}",), mask))
        self._near.clear()
        self._whole.clear()
        return lines

    def first_lane(self, lane: Expression, block: Expression) -> Expression:
        """Return the first position of each lane that is a point, in blocks of `block`."""
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

    def _count_vectors(self, lanes: int, *, up: bool) -> Expression:
        """Return how many vectors there are up to the end."""
        exact = None if self.vectors.shifted else as_int(self.vectors.tile.numel)
        if exact is not None:
            return Number(
                as_int(ceildiv(as_expr(exact), lanes) if up else floordiv(as_expr(exact), lanes)) or 0
            )
        end = Binary("+", self.end, Number(lanes - 1)) if up else self.end
        return Binary("//", end, Number(lanes))
