"""Nodes of attention and its gradient.

`Attention` is two contractions with a softmax between them, without scores in memory. For each point of the
rows, which are all ranges but the last, and each key:

    raw    = sum of query * key along the axis that both know
    score  = the body `score` of `raw`; minus infinity where `mask` does not hold
    weight = exp(score - logsumexp of the row's scores); 0 where the score is minus infinity
    output = the body `epilogue` of the sum of weight * value along the keys

A row without keys, or whose scores are all minus infinity, has zeros for its output and 0 for its logsumexp,
as eager's kernel for CPUs leaves it. Nothing is rounded on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol, TypeAlias

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


LogsumexpForm: TypeAlias = Literal["natural", "binary"]
"""How the logsumexp of a row is written: as a natural logarithm, 0 where no key counts, or as one to the base
2, minus infinity there.
"""


@dataclass(frozen=True, slots=True)
class BlockList:
    """A list of blocks for each block of the other side.

    `count` is how many there are, and `index` the number of the block at a place of the list. A place is
    where the axis that is listed would have its block: the third block of keys stands for the third place.
    """

    count: Scalar
    index: Scalar


BlockSide: TypeAlias = Literal["keys", "full_keys", "rows", "full_rows"]
BLOCK_SIDES: Final[tuple[BlockSide, ...]] = ("keys", "full_keys", "rows", "full_rows")
"""Kinds of lists: blocks of keys for each block of rows, and blocks of rows for each block of keys. In full
blocks all keys count for all rows.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLists:
    """A promise about a mask: it holds everywhere in blocks that are listed as full, in some places of others
    that are listed, and nowhere else. Kernels may skip what is not listed. The mask remains the definition.

    Attributes:
        row_block, key_block: points of a block along the last of the rows, and along the keys.
        lists: the lists that there are, by kind. The count of `keys` is a body over rows, its index one over
            rows and keys, whose place is that of the key's own block: `load %index[i0, 0, i2 // 128,
            r0 // 128]`. Those of `rows` are the same with rows and keys exchanged.
    """

    row_block: int
    key_block: int
    lists: tuple[tuple[BlockSide, BlockList], ...]

    def find(self, side: BlockSide) -> BlockList | None:
        """Return the list of this kind, if there is one."""
        return next((one for kind, one in self.lists if kind == side), None)

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Counts and indices in order."""
        return tuple(body for _, one in self.lists for body in (one.count, one.index))

    def replace_bodies(self, bodies: Sequence[Scalar]) -> BlockLists:
        """Return these lists with other `bodies`, in order."""
        pairs = zip(bodies[::2], bodies[1::2], strict=True)
        lists = tuple(
            (kind, BlockList(count, index))
            for (kind, _), (count, index) in zip(self.lists, pairs, strict=True)
        )
        return BlockLists(row_block=self.row_block, key_block=self.key_block, lists=lists)


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
        logsumexp: how the logsumexp is written.
        blocks: which blocks of keys count for which blocks of rows; None if that is not known.
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
    logsumexp: LogsumexpForm = "natural"
    blocks: BlockLists | None = None

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
        blocks = () if self.blocks is None else self.blocks.bodies
        return (self.query, self.key, self.value, self.score, *mask, *blocks)

    def replace_bodies(self, bodies: Sequence[Scalar]) -> Weights:
        """Return these weights with other `bodies`, in order."""
        query, key, value, score, *rest = bodies
        mask = None if self.mask is None else rest.pop(0)
        blocks = None if self.blocks is None else self.blocks.replace_bodies(rest)
        return replace(self, query=query, key=key, value=value, score=score, mask=mask, blocks=blocks)


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
        of a score                 weight * (e - inner), called `passed`, where `inner` is the sum of
                                   g * output along the columns, less the gradient of the logsumexp
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
            `ranges`, rows, and `ranges`. There is no output where `inner` is given.
        inner: a body over rows, what is passed on by all weights of a row; None if `output` tells, and the
            logsumexp has no gradient.
        state: the attention's, as arguments of a call.
    """

    weights: Weights
    of_query: Buffer
    of_key: Buffer
    of_value: Buffer
    of_bias: Buffer | None = None
    output: Scalar | None = None
    inner: Scalar | None = None
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
        return (*self.weights.bodies, *list_saved_bodies(self))

    def replace_bodies(self, bodies: Sequence[Scalar]) -> AttentionGradient:
        """Return this node with other `bodies`, in order."""
        count = len(self.weights.bodies)
        own = read_saved_bodies(self, bodies[count:])
        return replace(self, weights=self.weights.replace_bodies(bodies[:count]), **own)


class Saved(Protocol):
    """The bodies that a gradient starts from, and its derivatives, in graphs or kernels."""

    @property
    def output(self) -> Scalar | None:
        """The attention's output."""

    @property
    def inner(self) -> Scalar | None:
        """The sum over a row of output times its gradient, as a body; None if the output gives it."""

    @property
    def logsumexp(self) -> Scalar:
        """Its logsumexp."""

    @property
    def gradient(self) -> Scalar:
        """The gradient of its output."""

    @property
    def slope(self) -> Scalar:
        """The gradient of a raw score."""

    @property
    def bias(self) -> Scalar | None:
        """The term that a score adds to the gradient of a bias."""


_SAVED: Final = ("output", "inner", "logsumexp", "gradient", "slope", "bias")


def _list_saved(saved: Saved) -> tuple[tuple[str, Scalar | None], ...]:
    values = (saved.output, saved.inner, saved.logsumexp, saved.gradient, saved.slope, saved.bias)
    return tuple(zip(_SAVED, values, strict=True))


def list_saved_bodies(saved: Saved) -> tuple[Scalar, ...]:
    """Return the bodies of `saved` that there are."""
    return tuple(body for _, body in _list_saved(saved) if body is not None)


def read_saved_bodies(saved: Saved, bodies: Sequence[Scalar]) -> dict[str, Any]:
    """Return the fields of `saved` by name, with `bodies` for those that there are, in order."""
    rest = iter(bodies)
    return {name: None if body is None else next(rest) for name, body in _list_saved(saved)}
