"""Loop IR: one node per operation of the captured graph, no fusion decision taken.

A graph lists nodes in an order that respects their dependences. Each node defines buffers; a buffer is
defined once. Views do not compute: a consumer reads the viewed buffer through its index map. Only where
memory itself must be reinterpreted (an external call's operand, a returned view) is there a `View` node.

Memory that is overwritten is never renamed silently: a node that writes into existing memory defines a *new*
buffer `into` an old one. From there on the old name, and every other name for that memory, may not be read.

`attention_nodes.py` has attention and its gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from coilwork_ir.buffers import Argument, Buffer, Constant, GraphInput, GraphOutput, ResultPath, SymbolOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops.attention_nodes import BLOCK_SIDES as BLOCK_SIDES
from coilwork_ir.loops.attention_nodes import STATE_LAYOUTS as STATE_LAYOUTS
from coilwork_ir.loops.attention_nodes import Attention as Attention
from coilwork_ir.loops.attention_nodes import AttentionGradient as AttentionGradient
from coilwork_ir.loops.attention_nodes import BlockList as BlockList
from coilwork_ir.loops.attention_nodes import BlockLists as BlockLists
from coilwork_ir.loops.attention_nodes import BlockSide as BlockSide
from coilwork_ir.loops.attention_nodes import LogsumexpForm as LogsumexpForm
from coilwork_ir.loops.attention_nodes import Saved as Saved
from coilwork_ir.loops.attention_nodes import StateForm as StateForm
from coilwork_ir.loops.attention_nodes import StateLayout as StateLayout
from coilwork_ir.loops.attention_nodes import Weights as Weights
from coilwork_ir.loops.attention_nodes import list_saved_bodies as list_saved_bodies
from coilwork_ir.loops.attention_nodes import read_saved_bodies as read_saved_bodies
from coilwork_ir.ops import ReduceKind, StoreMode
from coilwork_ir.scalar import Combining, Scalar
from coilwork_ir.scalar.nodes import Check as Check
from coilwork_ir.scalar.nodes import CheckError as CheckError

# ---- Nodes ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise:
    """`output[ranges] = body(ranges)`.

    Invariants: `ranges` are distinct symbols whose extents are `output.shape`; `body.dtype` is
    `output.dtype`; with `into`, `output` has exactly the layout of the buffer `into` and takes over its
    memory.
    """

    output: Buffer
    ranges: tuple[Expr, ...]
    body: Scalar
    into: str | None = None
    checks: tuple[Check, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """`outputs[k][ranges] = result k of combining body(ranges, axes) along axes`.

    Invariants: extents of `ranges` are every output's shape (reduced dimensions are gone; a kept dimension of
    size 1 is a view on top); `outputs` are as many as the kind's results, `None` for those not wanted.
    """

    outputs: tuple[Buffer | None, ...]
    kind: ReduceKind
    ranges: tuple[Expr, ...]
    axes: tuple[Expr, ...]
    body: Scalar
    checks: tuple[Check, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """`outputs[k][ranges] = running result k of body along axis`, inclusive; `axis` is one of `ranges`.

    A `Combine` combines `body` together with `others`, and has a result for each of them; other kinds combine
    `body` alone.

    `split` is advice: with more than 1, so many programs share each row, and each starts with what those
    before it say of their pieces.
    """

    outputs: tuple[Buffer | None, ...]
    kind: Combining
    ranges: tuple[Expr, ...]
    axis: Expr
    body: Scalar
    others: tuple[Scalar, ...] = ()
    reverse: bool = False
    split: int = 1
    checks: tuple[Check, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """Sort `body` along `axis`, one of `ranges`: `outputs` are the values and the `i64` positions, or `None`.

    The order is that of the scalar `Sort`. With `count`, the outputs hold only that many of each row, the
    first in order: their shape is that of `ranges` with `count` for the extent of `axis`. Without `stable`,
    positions of equal values may come in any order. With `as_topk`, they come as `torch.topk` of `count`
    elements has them on CPUs; `count` is a number then.
    """

    outputs: tuple[Buffer | None, Buffer | None]
    ranges: tuple[Expr, ...]
    axis: Expr
    body: Scalar
    count: Expr | None = None
    descending: bool = False
    stable: bool = True
    as_topk: bool = False
    checks: tuple[Check, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN

    @property
    def topk(self) -> int:
        """`count` where equal values come as `torch.topk` has them, else 0: `topk` of the scalar `Sort`."""
        count = as_int(self.count) if self.as_topk and self.count is not None else None
        return 0 if count is None else count


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Combine `value` into `output[index]` at every point of `ranges`.

    `output` takes over the memory of the buffer `into`; elements not hit keep their values. `indirect[k]`
    stands for `placeholder(k)` in `index`. With mode `store` and repeated targets any one of the values wins;
    other modes combine all of them, in any order. Where `mask` is false nothing is written.

    Without `into`, `output` is memory of its own, of which the node fills one box and the rest holds nothing
    yet. Further scatters into it fill further boxes. Until these are all of it, nobody may read it:
    `coilwork_ir.loops.verify_compute`.

    `covers` promises that the points store every element of `output`, each once, wherever looked-up positions
    are: the box is all of it. With a mask, elements that it leaves out hold nothing: who reads them may not
    depend on what is there. That is for memory which data at run time say whether it is needed.

    `sparse` says that nobody depends on elements of `output` that no point stores, as where a program stores
    into memory that it left uninitialised: they hold anything. Such a node stores into memory of its own, and
    counts as filling it.
    """

    output: Buffer
    into: str | None = None
    ranges: tuple[Expr, ...]
    index: tuple[Expr, ...]
    indirect: tuple[Scalar, ...]
    value: Scalar
    mode: StoreMode
    mask: Scalar | None = None
    covers: bool = False
    sparse: bool = False
    checks: tuple[Check, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of unequal size, one behind the other along a range or an axis of a contraction.

    Group `g` holds the points from `ends[g - 1]`, or from 0 for the first, up to `ends[g]`, which is not one
    of them. Ends do not fall, and are not behind the last point.

    Attributes:
        index: the range symbol that stands for a group's number.
        along: the range or axis that is cut into groups.
        ends: a buffer of integers, one for each group.
    """

    index: Expr
    along: Expr
    ends: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """`output[ranges] = epilogue(ranges, sum of left * right along axes)`: a product of matrices, batched or
    not.

    `left` and `right`, the factors, are bodies over `ranges` and `axes`: loads at index maps, and what is
    computed from these before they are multiplied. Both are widened to `accumulate`, the type of products and
    sums. `epilogue` is a body over `ranges` in which `parameter(0, accumulate)` stands for the sum; it rounds
    to the output's type.

    The ranges that `left` alone varies along are rows, those of `right` alone columns, those of both the
    batch. How it is computed, by a library or by a kernel, the scheduler decides:
    `coilwork_scheduler.contractions`.

    `approximate` allows sums in fewer bits than `accumulate` has, as matrix units for floats of 8 bits add
    them quickest.

    With `groups` it is several products of unequal size in one. Where they lie along a range, their `index`
    stands in all bodies for the number of the group that a point is in, so that a factor is another matrix
    for each group; points behind the last group hold anything. Where they lie along an axis, `index` is a
    range, and what is summed are the points of its group alone.

    Invariants: extents of `ranges` are `output.shape`; each range is one of a factor, and each axis of both.
    """

    output: Buffer
    ranges: tuple[Expr, ...]
    axes: tuple[Expr, ...]
    left: Scalar
    right: Scalar
    accumulate: DType
    epilogue: Scalar
    groups: Groups | None = None
    approximate: bool = False
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Stride, padding and dilation of windows along one dimension of space.

    Tap `k` of window `p` is at `stride * p + dilation * k - padding` of the image. `extra` elements at the
    end of an image that is a result lie behind the last window: ATen's output padding.
    """

    stride: int = 1
    padding: int = 0
    dilation: int = 1
    extra: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """A value at each point of `ranges`: an operand with its prologue, or a result with its epilogue."""

    ranges: tuple[Expr, ...]
    value: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A contraction over windows, or its gradients.

    `coilwork_ir.loops.convolutions` writes it as contractions, which define it. It relates an image
    `[batch, channels, space...]`, a weight `[features, channels of a group, taps...]` and features
    `[batch, features, windows...]`:

        features[n, f, p] = sum over c, k of image[n, first(f) + c, at(p, k)] * weight[f, c, k]

    where `first(f)` is the first channel of the group of `f` and `at(p, k)` the element that `windows` give
    tap `k` of window `p`. Images are 0 outside. `value` is the image and the result the features;
    `transposed`, `value` is the features and the result the image, as in the gradient. Operands are widened
    to `accumulate`, the type of products and sums.

    Without `gradient`, the one output is `epilogue`, in which `parameter(0, accumulate)` stands for the sum.
    With `gradient`, that of the result, the outputs are the gradients of `value`, of `weight`, and of a bias
    that was added to each of the result's channels, `None` for those not wanted; there is no epilogue. One
    node holds all of them, because libraries compute them in one call, which asks how `value` lies even where
    only its gradient is wanted.

    How it is computed, by a library or by a kernel, the scheduler decides: `coilwork_scheduler.contractions`.
    """

    outputs: tuple[Buffer | None, ...]
    value: Body
    weight: Body
    gradient: Body | None = None
    epilogue: Body | None = None
    windows: tuple[Window, ...]
    groups: int
    transposed: bool = False
    accumulate: DType
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """`output` is the memory of `source` under another layout, starting `offset` elements after its first.

    With `output.dtype` other than the source's, bits are reinterpreted and `offset` counts elements of the
    output.
    """

    output: Buffer
    source: str
    offset: Expr
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """An external call or a loop overwrites `source`; afterwards that memory is called `output` (same
    layout).
    """

    output: Buffer
    source: str


ExternFamily: TypeAlias = Literal["aten", "collective", "custom"]
USER_LAUNCH: Final = "user launch"
"""What a call implements that launches a kernel of the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extern:
    """A call of a torch operator.

    Attributes:
        target: qualified overload, e.g. `"aten.mm.default"`, `"mylib.op.default"`.
        args, kwargs: arguments; buffers appear as `Ref`.
        outputs: results in order: new buffers, bound symbols, or `None` for results that nobody uses or that
            are the operator's mutated arguments.
        single: the operator returns one bare value, not a tuple.
        paths: of an operator that returns lists beside other results, where each of `outputs` lies; else
            empty.
        out_overload: the overload that writes into given memory (`"aten.mm.out"`) taking every output as an
            `out=` keyword in `out_names` order, or `""` when the operator allocates its results itself.
        out_names: keyword names of the out overload, one per output.
        mutates: memory that the call overwrites, an argument's or that of which an argument is a view.
        aliases: pairs (output number, source buffer) where the result shares an argument's memory.
        fresh: the results lie in memory of their own, each in one that nothing else has a part in, so that
            others may have it when they are dead.
        binds: symbols that results define: (symbol, output number, dimension).
        family: whose operator it is.
        implements: the kind of node that the call computes, as `"convolution"` or `"product"`, or
            `USER_LAUNCH`; empty if it is none. Who looks for such calls reads this, not `target`.
        random: it draws from a generator: never duplicated, removed or reordered among its kind.
        effect: it must run even if nobody uses its results, in order with other effects.
        in_flight: operands and results that the operator goes on reading or writing after the call has
            returned.
        until: those of `in_flight` that a later call waits for: when each was waited for, all are at rest.
            None: never.
        waits: memory for which the call waits until it is at rest.
        retains: the operator may keep references to operands, and read them after the call: others never get
            their memory.
        barrier: it runs after all that stands before it in the graph, and before all that stands behind it.
    """

    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    outputs: tuple[Buffer | SymbolOutput | None, ...]
    single: bool = True
    paths: tuple[ResultPath, ...] = ()
    out_overload: str = ""
    out_names: tuple[str, ...] = ()
    mutates: tuple[Mutation, ...] = ()
    aliases: tuple[tuple[int, str], ...] = ()
    binds: tuple[tuple[Expr, int, int], ...] = ()
    family: ExternFamily = "aten"
    implements: str = ""
    random: bool = False
    effect: bool = False
    fresh: bool = False
    in_flight: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    retains: bool = False
    barrier: bool = False
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Cond:
    """`outputs = then(operands) if predicate else otherwise(operands)`; `predicate` is a one-element bool
    buffer.
    """

    predicate: str
    then: Graph
    otherwise: Graph
    operands: tuple[Argument, ...]
    outputs: tuple[Buffer, ...]
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Repeat `carried = body(carried, extra)`; `outputs` are the last `carried`.

    Either as long as `condition(carried, extra)` holds; or `rounds` times, and the last input of `body` is
    the number of the round, from 0.

    `mutates`: operands among `extra` that the body overwrites, a row of stacked results for one; it
    overwrites no others.
    """

    body: Graph
    condition: Graph | None = None
    rounds: Expr | None = None
    carried: tuple[Argument, ...]
    extra: tuple[Argument, ...]
    outputs: tuple[Buffer, ...]
    mutates: tuple[Mutation, ...] = ()
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertSize:
    """A fact about sizes that only run time can settle (`aten._assert_scalar`): `lhs relation rhs`, else
    `message`.
    """

    lhs: Expr
    relation: Literal["eq", "ne", "lt", "le"]
    rhs: Expr
    message: str
    origins: tuple[Origin, ...] = UNKNOWN


# ---- Graphs ----


Node: TypeAlias = (
    Pointwise
    | Reduce
    | Scan
    | Sort
    | Scatter
    | Contraction
    | Attention
    | AttentionGradient
    | Convolution
    | View
    | Extern
    | Cond
    | Loop
    | AssertSize
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A function over tensors and sizes.

    Attributes:
        name: identifier.
        symbols: size symbols known on entry, with their bounds. Each is either an input or bound by the shape
            or stride of an input buffer in which it stands alone.
        inputs: parameters in order.
        constants: tensors known at compile time.
        nodes: in dependence order.
        outputs: results in order.
        free_results: names of results that nobody outside depends on the strides of: who takes them asks how
            they lie. Each is the one result in its memory.
    """

    name: str
    symbols: tuple[Expr, ...] = ()
    inputs: tuple[GraphInput, ...]
    constants: tuple[Constant, ...] = ()
    nodes: tuple[Node, ...]
    outputs: tuple[GraphOutput, ...]
    free_results: tuple[str, ...] = ()
