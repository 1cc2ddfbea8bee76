"""What a code generator can do for a target, and how its kernels run as far as costs depend on it.

A generator declares it (`Codegen.capabilities`), and decides by the same value itself; schedulers and
lowerings read it. So a threshold stands in one place: where the kernels are written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TURNED_SHARE: Final = 0.1
"""Share of a kernel's bytes at unit stride along a range, and not along the innermost one, from which on it
has blocks with points of both: schedulers order ranges for that. Of a sliding window both its place and its
elements are at unit stride, and one of them will do.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWalks:
    """How the kernels of a generator go through the rows that they reduce.

    A row is `across` if neighbours in memory are of different rows: those of a reduction of columns.

    Attributes:
        kept_bytes: the longest row that a program keeps on chip from one pass over it to the next, in bytes
            of f32 values. Two values per element fit beside their sum; more of them shorten the row that
            fits.
        kept_across: points of the longest row across memory that is kept so.
        columns: rows across memory that one program reduces side by side.
        crossed_share: share of what lies across that is enough for rows to be reduced side by side, where
            the rest lies along them; None: they are if most does.
        loop_row: points of the longest row that a program keeps beside sums of its columns, while it goes
            from row to row.
        loop_threads: threads that share such a row.
        loop_elements: elements of it that each of them has at least: of shorter rows, several at a time.
        loop_sums: registers of a thread for sums of columns.
        loop_values: registers of a thread for these and what is read of a row.
    """

    kept_bytes: int = 0
    kept_across: int = 0
    columns: int = 1
    crossed_share: float | None = None
    loop_row: int = 0
    loop_threads: int = 1
    loop_elements: int = 1
    loop_sums: int = 0
    loop_values: int = 0

    @property
    def kept_points(self) -> int:
        """Points of the longest row along memory that is kept, if little of each is."""
        return self.kept_bytes // 4

    def are_across(self, *, across: float, along: float) -> bool:
        """True if rows are reduced in blocks of neighbours, if so many bytes lie across them and along them.

        A program that has a row to itself fetches a sector for each element that lies across it. A block
        reads whole sectors of both.
        """
        if self.crossed_share is not None and across > self.crossed_share * (across + along):
            return True
        return across > along

    def keeps(self, length: int, *, across: bool = False, values: int = 1) -> bool:
        """True if rows of `length` points, of each of which a program has `values` values, are kept from pass
        to pass.
        """
        if across and length > self.kept_across:
            return False
        return length <= self.kept_points // max(1, values // 2)

    def keeps_beside_sums(self, length: int, *, sums: int, reads: int) -> bool:
        """True if a row of `length` points of `reads` buffers is kept beside `sums` sums of every column."""
        padded = 1 << max(0, (length - 1).bit_length())
        each = max(padded // self.loop_threads, self.loop_elements)
        fits = sums * each <= self.loop_sums and (sums + reads) * each <= self.loop_values
        return length <= self.loop_row and fits

    def count_programs(self, rows: int, *, across: bool) -> int:
        """Programs of a reduction to `rows` results: one per result, or a block of columns each."""
        return max(1, rows // self.columns) if across else rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting:
    """Which rows the kernels of a generator sort.

    Attributes:
        longest: elements of the longest row; None if rows of any length are sorted, in memory.
        most_bytes: size of the widest type.
        longest_whole: elements of the longest row that is best sorted so if all of it is wanted.
        short: elements of the longest row that is best sorted so even if rows are few.
        many: rows from which on they are not few.
    """

    longest: int | None
    most_bytes: int
    longest_whole: int | None = None
    short: int | None = None
    many: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a generator can do for one target. A generator that declares nothing can do the least.

    Attributes:
        rows: how its kernels go through rows.
        sorting: which rows its kernels sort; None: none.
        scans: its kernels scan rows.
        shares_rows: programs share a row of a scan through a workspace (`coilwork_ir.kernels.workspace`).
        cuts_rows: few long rows occupy the device whole: kernels cut them by themselves, if that pays.
        contracts: its kernels compute contractions by units for them.
        combines: it takes kernels that are several computations of one kind in one launch.
        opens_extents: a kernel is as fast if its extents, strides and offsets are arguments.
        versions_by_size: its kernels of open sizes have versions for some of them. It takes an option
            `likely`, per kernel, for the sizes that calls will likely have: a number for each of the kernel's
            size symbols, 0 if nothing is known of it.
        takes_candidates: it runs kernels as templates propose (`coilwork_ir.kernels.Proposal`). It takes an
            option `candidates`, per kernel: texts of directives, best guess first.
        cores: kinds of cores that it has templates for (`coilwork_ir.kernels.core_nodes.CoreKind`). It
            refuses kernels with others by name.
    """

    rows: RowWalks = RowWalks()
    sorting: Sorting | None = None
    scans: bool = True
    shares_rows: bool = False
    cuts_rows: bool = False
    contracts: bool = False
    combines: bool = False
    opens_extents: bool = False
    versions_by_size: bool = False
    takes_candidates: bool = False
    cores: frozenset[str] = frozenset()


LEAST = Capabilities()
"""What is expected of a generator of which nothing is known."""
