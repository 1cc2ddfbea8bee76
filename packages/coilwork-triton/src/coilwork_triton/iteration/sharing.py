"""Rows of scans that programs share: which piece of which row a program has."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.index import as_int, product
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.workspace import find_piece_length, scans_of
from coilwork_ir.scalar import Scalar
from coilwork_ir.syntax.python import Assign, Binary, Expression, Name, Number, Statement, Text, method
from coilwork_ir.target import Target
from coilwork_triton.text.language import tl, tl_name

# The variables in which a program has its row, and its piece of it in the order of the scan.
ROW = Name("row")
PIECE = Name("piece")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """`count` pieces of `length` points of each of `rows`; programs tell each other of them in the argument
    `workspace`.

    With `reverse` the last piece comes first. No program has more than `most_threads`.
    """

    workspace: str
    rows: int
    count: int
    length: int
    reverse: bool
    most_threads: int

    @property
    def programs(self) -> int:
        """All of them."""
        return self.rows * self.count

    def start(self, offset: str, block: str) -> tuple[Statement, ...]:
        """Takes a number; `offset` is then where the program's piece, of `block` points, begins.

        Programs with neighbouring numbers have pieces of different rows: few wait for each other. Who runs
        the kernel again, to time it, gets the numbers behind the last one.
        """
        number = tl("atomic_add", Name(self.workspace), Number(1), sem=Text("relaxed"))
        ticket = Name("ticket")
        place: Expression = PIECE
        if self.reverse:
            place = Binary("-", Number(self.count - 1), PIECE)
        return (
            Assign((ticket.id,), method(Binary("%", number, Number(self.programs)), "to", tl_name("int32"))),
            Assign((ROW.id,), Binary("%", ticket, Number(self.rows))),
            Assign((PIECE.id,), Binary("//", ticket, Number(self.rows))),
            Assign((offset,), Binary("*", place, Name(block))),
        )

    def word(self, number: int) -> Expression:
        """Return where the words with this `number` of the first piece of the program's row lies."""
        row = ROW if number == 0 else Binary("+", Number(number * self.rows), ROW)
        return Binary("+", Binary("+", Name(self.workspace), Number(1)), Binary("*", row, Number(self.count)))


def sharing_of(kernel: Kernel, values: tuple[Scalar, ...], target: Target) -> Sharing | None:
    """How the programs of `kernel`, which computes `values`, share rows on `target`; `None` if each has its
    own.
    """
    length = find_piece_length(kernel)
    rows = as_int(product(r.extent for r in kernel.ranges if r.kind == "parallel"))
    points = as_int(product(r.extent for r in kernel.ranges if r.kind == "reduction"))
    scans = scans_of(values)
    if length is None or rows is None or points is None or not scans:
        return None
    return Sharing(
        workspace=kernel.workspace,
        rows=rows,
        count=-(-points // length),
        length=length,
        reverse=scans[0].reverse,
        most_threads=target.max_threads_per_block,
    )
