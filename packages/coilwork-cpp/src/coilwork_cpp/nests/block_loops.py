"""The loops of a reduction whose partial results are folded block by block."""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_cpp.nests.nest import Span, close, nested, whole
from coilwork_cpp.planning.plan import Cut
from coilwork_cpp.values.values import Block
from coilwork_ir.index import extent_of
from coilwork_ir.syntax.cpp import ZERO, Binary, Call, Declare, For, Literal, Name


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLoops:
    """Loops that are open.

    Attributes:
        cut: which ranges they walk.
        block: where one block of points begins and ends: what is set before it, and folded after it, goes
            here.
        spans: what a block walks, to be nested in `block`. The first is the block's part of `cut.middle`, if
            there is one.
    """

    cut: Cut
    block: Block
    spans: tuple[Span, ...]
    chain: tuple[Block, ...]
    outer: tuple[Span, ...]

    @property
    def rows(self) -> Span:
        """The block's part of `cut.middle`."""
        assert self.cut.middle is not None
        return self.spans[0]

    def close(self) -> None:
        """Put each loop into what is around it."""
        around, middle = self.chain[-1], self.cut.middle
        if middle is not None:
            limit = around.index(extent_of(middle))
            around.add(For(f"{middle.name}_begin", ZERO, limit, self.block.body(), step=self.cut.size))
        close(self.chain, self.outer)


def open_blocks(block: Block, cut: Cut) -> BlockLoops:
    """The loops of `cut` in `block`."""
    outer = tuple(whole(block, r) for r in cut.outer)
    around, chain = nested(block, outer)
    spans = tuple(whole(around, r) for r in cut.inner)
    holder = around
    if cut.middle is not None:
        # the loop over blocks: its variable is where the block begins
        holder = around.inside()
        begin, end = Name(f"{cut.middle.name}_begin"), Name(f"{cut.middle.name}_end")
        limit = around.index(extent_of(cut.middle))
        next_block = Binary("+", begin, Literal(str(cut.size)))
        holder.add(Declare("const i64", end.text, Call("min_i64", (next_block, limit))))
        spans = (Span(cut.middle, begin, end), *spans)
    return BlockLoops(cut=cut, block=holder, spans=spans, chain=tuple(chain), outer=outer)
