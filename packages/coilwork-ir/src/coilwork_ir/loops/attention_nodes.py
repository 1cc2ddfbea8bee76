"""Attention and its gradient: two contractions with a softmax between them, without scores in memory.

For each point of the rows, which are all ranges but the last, and each key:

    raw    = sum of query * key along the axis that both know
    score  = the body `score` of `raw`; minus infinity where `mask` does not hold
    weight = exp(score - logsumexp of the row's scores); 0 where the score is minus infinity
    output = the body `epilogue` of the sum of weight * value along the keys

A row of which nothing is left, because there is no key or every score is minus infinity, has zeros for its
output and 0 for its logsumexp, as eager's kernel for CPUs leaves it. Nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from coilwork_ir.buffers import Argument, Buffer, SymbolOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.scalar import Scalar

StateForm: TypeAlias = Literal["plain", "flash", "efficient", "cudnn"]
"""Kinds of what attention leaves for its gradient besides output and logsumexp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """The places of one kind of state, most of which only the kernels that use it understand.

    Attributes:
        count: places.
        rows, keys: those that hold the extent of the last of the rows and of the keys, where these are sizes.
        seed: the one that draws of dropped weights are made from.
    """

    count: int
    rows: int | None = None
    keys: int | None = None
    seed: int | None = None


STATE_LAYOUTS: Final[Mapping[StateForm, StateLayout]] = MappingProxyType(
    {
        "plain": StateLayout(count=0),
        "flash": StateLayout(count=7, rows=2, keys=3, seed=4),
        "efficient": StateLayout(count=2, seed=0),
        "cudnn": StateLayout(count=7, rows=2, keys=3, seed=4),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weights of an attention, which it and its gradient compute alike.

    Attributes:
        ranges: those of the output. The last runs along the columns of `value`, all others along rows of
            scores.
        axes: the keys, then what products of queries and keys are summed along.
        query: a body over rows and the second axis.
        key: a body over rows and both axes. Heads that share keys say so in its index:
            `load %k[i0, i1 // 4, r0, r1]`.
        value: a body over `ranges` and the keys.
        accumulate: the type of all that is computed.
        score: a body over rows and keys, given the raw score as parameter 0: a scale, a bias, a cap.
        mask: a truth value over rows and keys, false where a key does not count; None if all do.
        dropout: the share of weights that are left out, each by chance; the others are divided by what is
            left of 1.
        form: the kind of state.
    """

    ranges: tuple[Expr, ...]
    axes: tuple[Expr, ...]
    query: Scalar
    key: Scalar
    value: Scalar
    accumulate: DType
    score: Scalar
    mask: Scalar | None = None
    dropout: float = 0.0
    form: StateForm = "plain"

    @property
    def rows(self) -> tuple[Expr, ...]:
        """The ranges that rows of scores run along."""
        return self.ranges[:-1]

    @property
    def keys(self) -> Expr:
        """The axis that weights are summed along."""
        return self.axes[0]

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """All bodies that weights and their sum are computed from."""
        mask = () if self.mask is None else (self.mask,)
        return (self.query, self.key, self.value, self.score, *mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """`output[ranges] = epilogue(sum of weight * value along the keys)`: see the module.

    How it is computed, by a library or by kernels, the scheduler decides:
    `coilwork_scheduler.contractions.attention`.

    Attributes:
        weights: the weights, and the values that they are for.
        output: the weighted sums, or what the epilogue makes of them.
        epilogue: a body over `ranges`, given the weighted sum as parameter 0; None if that is rounded to the
            output's type and no more.
        logsumexp: the logarithm of each row's sum of exponentials, at `logsumexp_at`; what no row is stored
            at holds anything. None if nobody wants it.
        logsumexp_at: an index over rows; None if nothing is stored.
        state: what the gradient is given besides, laid out as `form` says; None for what is no tensor.
    """

    weights: Weights
    output: Buffer
    epilogue: Scalar | None = None
    logsumexp: Buffer | None = None
    logsumexp_at: tuple[Expr, ...] | None = None
    state: tuple[Buffer | SymbolOutput | None, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN

    @property
    def outputs(self) -> tuple[Buffer | SymbolOutput | None, ...]:
        """All results in order."""
        return (self.output, self.logsumexp, *self.state)

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """All bodies."""
        return (*self.weights.bodies, *(() if self.epilogue is None else (self.epilogue,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGradient:
    """The gradients of an attention's operands, from what it has left: its output and its logsumexp.

    Weights are `exp(score - logsumexp)`. With the gradient `g` of the output, and `e` for what a weight
    passes on, `sum of g * value` along the columns:

        of the value at a key      sum of weight * g
        of a score                 weight * (e - sum of g * output along the columns), called `passed`
        of a raw score             the body `slope`, given the raw score and `passed` as parameters 0 and 1
        of the query and the key   sums of that times the key and the query

    A weight that was dropped passes nothing on, the others what they were divided by.

    `query`, `key` and `value` are loads. What the points of one element contribute to is summed: their
    gradients have the shapes of the buffers loaded from.

    Attributes:
        weights: those of the attention, computed again.
        of_query, of_key, of_value: the gradients.
        of_bias: the sum of `bias`, given the same parameters as `slope`, at the index `bias_at`, which knows
            rows and keys; None if the gradient of no bias is wanted.
        output, logsumexp, gradient: what the attention has left, and the gradient of its output: bodies over
            `ranges`, rows, and `ranges`.
        state: the attention's, as arguments of a call.
    """

    weights: Weights
    of_query: Buffer
    of_key: Buffer
    of_value: Buffer
    of_bias: Buffer | None = None
    output: Scalar
    logsumexp: Scalar
    gradient: Scalar
    slope: Scalar
    bias: Scalar | None = None
    bias_at: tuple[Expr, ...] = ()
    state: tuple[Argument, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN

    @property
    def outputs(self) -> tuple[Buffer | None, ...]:
        """All results in order."""
        return (self.of_query, self.of_key, self.of_value, self.of_bias)

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """All bodies."""
        bias = () if self.bias is None else (self.bias,)
        return (*self.weights.bodies, self.output, self.logsumexp, self.gradient, self.slope, *bias)
