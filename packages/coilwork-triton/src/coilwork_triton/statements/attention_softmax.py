"""One block of an online softmax in powers of 2: a block of raw scores becomes weights.

`most` is each row's greatest score so far, times a factor: `power(most)` of it is what weights are relative
to, and `total` is the sum of weights. What was summed before is multiplied by `kept` when `most` grows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Parameter, iterate_postorder, parameter
from coilwork_ir.syntax.python import Binary, Expression, Name, Number
from coilwork_triton.statements.attention_blocks import (
    LOG2_E,
    NOWHERE,
    AttentionBranch,
    hide,
    insert_column,
    scale_of,
)
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.language import Writer, tl


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A block of weights, and each row's new greatest score and share of earlier sums that is kept."""

    weight: Expression
    kept: Expression
    most: Expression


class OnlineSoftmax(AttentionBranch):
    """A block of rows, and the keys that it goes through."""

    @cached_property
    def factor(self) -> float:
        """The factor that turns scores into exponents of 2."""
        scale = scale_of(self.weights.score, 0)
        return LOG2_E * (1.0 if scale is None else scale)

    @cached_property
    def is_far(self) -> bool:
        """True if scores are so large that products with the factor may be infinite."""
        return self.has_far_scores()

    def find_maximum(self, score: Expression) -> Expression:
        """Return the greatest score of each row of a block."""
        return tl("max", score, Number(1))

    def spread(self, score: Expression, raw: Expression) -> Expression:
        """`score`, which is the same for all rows, as a block like `raw`."""
        return Binary("+", score, tl("zeros_like", raw))

    def compute_weights(
        self, raw: Expression, most: Expression, writer: Writer, *, has_mask: bool, ragged: bool
    ) -> Weights:
        """Return the weights of the block of scores `raw`, where no score was above `most` before."""
        weights = self.weights
        tiles = (self.tile("y", 0), replace(self.tile("r", 0, ragged=ragged), axis=1))
        mask = weights.mask if has_mask else None
        scale = scale_of(weights.score, 0)
        roots = (*(() if scale is not None else (weights.score,)), *(() if mask is None else (mask,)))
        values = self.values(tiles, roots)
        outer = self.outer.setdefault(weights.score, Scope(writer=self.writer))
        order = values.find_pending(outer, roots)
        given = parameter(0, DType.F32)
        values.compute(outer, [n for n in order if n is not given and not self._is_changing(n)])
        inner = Scope(writer=writer.inner(), parent=outer, bound={given: raw})
        values.compute(inner, values.find_pending(inner, roots))
        score: Expression = raw if scale is not None else values.expression(inner, weights.score)
        hidden = hide(values, inner, mask, ragged)
        if hidden is not None:
            score = inner.writer.bind("score", tl("where", hidden, score, NOWHERE))
        elif not isinstance(score, Name):
            score = inner.writer.bind("score", score)
        self._close_scope(values, inner, writer)
        if scale is None and self.levels.varies[weights.score].isdisjoint((self.fixed.symbol,)):
            score = writer.bind("score", self.spread(score, raw))
        top = self.find_maximum(score)
        new = writer.bind("new_most", tl("maximum", most, top if self.is_far else self._times(top)))
        base: Expression = new
        if hidden is not None or self.is_hiding():
            base = writer.bind("base", tl("where", Binary("==", new, NOWHERE), Number(0.0), new))
        if self.is_far:
            power = self._times(Binary("-", score, insert_column(base)))
            shrunk = self._times(Binary("-", most, base))
        else:
            power = Binary("-", self._times(score), insert_column(base))
            shrunk = Binary("-", most, base)
        return Weights(weight=tl("exp2", power), kept=tl("exp2", shrunk), most=new)

    def stores_logarithms(self) -> bool:
        """Tell if somebody asks for the logarithms of rows' sums."""
        return any(
            isinstance(value, Parameter) and value.position == 1
            for store in self.kernel.stores
            for value in iterate_postorder((store.value,))
        )

    def find_logarithms(self, most: Expression, total: Expression, writer: Writer) -> Expression:
        """Return the logarithms of rows' sums, as a column."""
        scaled = self._times(most) if self.is_far else most
        logs: Expression = Binary("+", scaled, tl("log2", total))
        if self.weights.logsumexp == "natural":
            natural = Binary("*", logs, Number(log(2)))
            logs = tl("where", Binary("==", most, NOWHERE), Number(0.0), natural)
        return writer.bind("logsumexp", insert_column(writer.bind("logarithm", logs)))

    def _times(self, value: Expression) -> Expression:
        return Binary("*", value, Number(self.factor))
