"""Kernel IR: what one launch does, with no target syntax.

A kernel is a set of stores over one iteration space. The space is a product of named ranges, some of them
reduced. The value of a store is a scalar graph; a `Reduce` in it combines along reduction ranges, and code
generators derive the passes over the data from the graph: a value that needs a `Reduce`'s result and varies
along a reduction range belongs to a later pass than that `Reduce`. Whether all passes share one tile in
registers, go through rows block by block, or have programs share rows is not a part of the kernel: a
`coilwork_ir.mapping.Mapping` says it.

Where rows and columns of one matrix are reduced together, a third kind of range is `sequential`: one program
takes its points one after the other, and at each of them the reduced ranges. A `Reduce` is then over all of
the reduced ranges, once per sequential point, or over all of the sequential ones: rows of a matrix, and sums
of its columns over a group of rows. The sums of columns may use the rows' results, and not the other way
round.

A kernel whose values are `Contraction`s multiplies blocks of factors, and combines nothing else. Two of them
have the same rows, columns and batch.

A kernel with a core computes a convolution, attention or its gradient over the core's own ranges. The core's
operands have bodies, prologues included, which load at flat offsets like everything in a kernel. The stores
are its epilogue: in them `parameter k` is result number k of the core. Nothing is rounded on the way. The
loop IR has the same three nodes. There they relate buffers, and one node may hold several gradients; here a
core is what one launch computes, over memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from coilwork_ir.buffers import Buffer, Constant, GraphInput, GraphOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, get_extent, get_extents
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops.convolutions import Role, Roles
from coilwork_ir.loops.nodes import (
    AssertSize,
    Body,
    Check,
    Cond,
    Extern,
    Loop,
    View,
    Weights,
    Window,
    list_saved_bodies,
    read_saved_bodies,
)
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Scalar
from coilwork_ir.streams import OWN, StreamInstruction

# ---- Kernels and schedules ----


RangeKind = Literal["parallel", "sequential", "reduction"]
ArgRole = Literal["in", "out", "inout"]
Numerics = Literal["fast", "eager", "strict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """One dimension of the iteration space: `symbol` runs from 0 to `symbol.extent - 1`.

    Which ranges share a tile is not a part of the kernel: a mapping says it.
    """

    symbol: Expr
    kind: RangeKind

    @property
    def extent(self) -> Expr:
        """Its number of points."""
        return get_extent(self.symbol)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorArg:
    """A buffer the kernel touches.

    Attributes:
        name: what loads and stores call it (canonical: `in0`, `out0`, `io0`, …).
        dtype: element type in memory.
        role: read, written, or both. What is only written may be written in part; the rest of its memory
            stays.
        span: elements from the first to one past the last that may be touched; decides 32- or 64-bit offsets.
        aligned: its address is known to be a multiple of 16 bytes.
    """

    name: str
    dtype: DType
    role: ArgRole
    span: Expr
    aligned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """`buffer[index] = value`, or combined with what is there by `mode`: after the reductions that it needs.

    A plain store happens at each point of the ranges that `index`, `value` and `mask` vary along, and no two
    points store one element. A combining one
    happens once per point of the parallel ranges, whether or not its operands vary along them (adding 1 under
    a range of 8 adds 8), and of the reduced ranges that they vary along. `index` is one flat offset in
    elements; `indirect[k]` stands for `placeholder(k)` in it.
    """

    buffer: str
    index: Expr
    value: Scalar
    indirect: tuple[Scalar, ...] = ()
    mode: StoreMode = "store"
    mask: Scalar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of the computations of a combined launch: what the names of `ComboKernel.body` stand for in it.

    `args` are arguments of the kernel, one for each of the body's; `sizes` are what the body's size symbols
    are, over the kernel's own.
    """

    args: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComboKernel:
    """Several computations of one kind in one launch: `body`, once for each of `members`.

    The kernel's `numerics` are those of the body too. No member writes what another one reads or writes, so
    they may happen in any order, or at the same time.
    """

    body: Kernel
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch.

    Attributes:
        name: identifier derived from what it computes; not part of the cache key.
        ranges: the iteration space, outermost first: parallel ranges, sequential ones, reduced ones.
        args: tensors in call order.
        sizes: size symbols that ranges, indices and values use, passed as integers after the tensors.
        aliasing: pairs (output, input) that a call may give the same memory: each element is read before the
            same point of the iteration space writes it. All other arguments that are written have memory of
            their own.
        workspace: an argument in which programs that share rows tell each other what their pieces combine to;
            "" if there is none. It is zero before a launch and may be anything after it, and nothing that the
            kernel computes is loaded from it or stored to it. How much room it has says into how many pieces
            a row may be cut (`coilwork_ir.kernels.workspace`); a generator may leave it alone.
        core: a convolution, attention or its gradient, whose results are the parameters of the stores; None
            if these say all that is computed.
        stores: what it computes.
        checks: run-time checks, over the same space.
        combined: what it does if it is several computations of one kind: then ranges, stores and checks are
            the body's, and it has none itself.
        numerics: rounding contract; see docs.
        origins: operations it implements, in order.
    """

    name: str
    ranges: tuple[Range, ...]
    args: tuple[TensorArg, ...]
    sizes: tuple[Expr, ...] = ()
    aliasing: tuple[tuple[str, str], ...] = ()
    workspace: str = ""
    core: Core | None = None
    stores: tuple[Store, ...]
    checks: tuple[Check, ...] = ()
    combined: ComboKernel | None = None
    numerics: Numerics = "fast"
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way to run a kernel: `directives` is a mapping's text that names what matters, and `reason` says why.

    A generator adds what is left open.
    """

    directives: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The ways in which a template wants `kernel` to run: `candidates`, best guess first.

    It is no part of the kernel, whose results are the same whichever is taken. It is text, as mappings that
    users give are, since generators take options that are plain data.
    """

    kernel: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """Run kernel `kernel` on `stream`, on `args` (one buffer per `TensorArg`) with `sizes` (one per size
    symbol).

    `into` pairs (new buffer, old buffer) are outputs that take over older memory. `origins` are those of this
    call; a kernel that several calls share keeps the first call's.
    """

    kernel: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()
    into: tuple[tuple[str, str], ...] = ()
    stream: str = OWN
    origins: tuple[Origin, ...] = UNKNOWN


Step: TypeAlias = KernelCall | Extern | View | Cond | Loop | AssertSize | StreamInstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Why the scheduler did something, as data.

    `rule` is a stable identifier (`fuse-vertical`, `reject-bytes`, `inline`, `tile`, …), `subjects` the
    buffers it is about, `reason` a sentence, `numbers` the figures it rests on (bytes unless the name says
    otherwise).
    """

    rule: str
    subjects: tuple[str, ...]
    accepted: bool
    reason: str
    numbers: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Kernels and external calls in the order they run.

    Attributes:
        name, symbols, inputs, constants, outputs: as in the loop graph.
        kernels: each distinct kernel once.
        proposals: how templates want some of them to run.
        buffers: every buffer that a step defines.
        steps: in order.
        decisions: the record of choices; not part of the schedule's identity.
    """

    name: str
    symbols: tuple[Expr, ...] = ()
    inputs: tuple[GraphInput, ...]
    constants: tuple[Constant, ...] = ()
    kernels: tuple[Kernel, ...]
    proposals: tuple[Proposal, ...] = ()
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[GraphOutput, ...]
    decisions: tuple[Decision, ...] = ()


# ---- Cores ----


CoreKind: TypeAlias = Literal["convolution", "attention", "attention-gradient"]
"""Kinds of cores, by which generators declare what they take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCore:
    """A contraction over windows: two of an image, a weight and features, and what they make of the third.

    `coilwork_ir.loops.convolutions` defines how the three relate. A transposed convolution, and the gradient
    of an image, make the image; the gradient of a weight makes the weight.

    Attributes:
        makes: what the result, parameter 0 of the stores, is.
        ranges: the kernel's parallel ranges, one for each dimension of the result, outermost first.
        axes: its reduced ranges, along which products are summed:
            `coilwork_ir.loops.convolutions.list_summed_extents`.
        operands: the other two and what each is, over ranges of their own. Images are 0 outside, whatever
            their body makes of 0.
        windows, groups: as of a `Convolution` of the loop IR.
        accumulate: the type of products and sums.
    """

    makes: Role
    ranges: tuple[Expr, ...]
    axes: tuple[Expr, ...]
    operands: tuple[tuple[Role, Body], tuple[Role, Body]]
    windows: tuple[Window, ...]
    groups: int
    accumulate: DType

    @property
    def kind(self) -> CoreKind:
        """`convolution`."""
        return "convolution"

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Bodies of the operands."""
        return tuple(body.value for _, body in self.operands)

    @property
    def roles(self) -> Roles:
        """Extents of image, weight and features."""
        extents: Mapping[Role, tuple[Expr, ...]] = {
            self.makes: get_extents(self.ranges),
            **{role: get_extents(body.ranges) for role, body in self.operands},
        }
        image, weight, features = extents["image"], extents["weight"], extents["features"]
        return Roles(
            batch=image[0],
            channels=image[1],
            space=image[2:],
            features=weight[0],
            group_channels=weight[1],
            taps=weight[2:],
            windows=features[2:],
        )

    def replace_bodies(self, bodies: Sequence[Scalar]) -> ConvolutionCore:
        """Return this core with other `bodies`, in order."""
        (first, left), (second, right) = self.operands
        left, right = (replace(body, value=value) for body, value in zip((left, right), bodies, strict=True))
        return replace(self, operands=((first, left), (second, right)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCore:
    """Two contractions with a score, a mask and a softmax between them, as `Attention` of the loop IR.

    In the stores parameter 0 is the weighted sum of values, over the parallel ranges, which are those of the
    `weights`; parameter 1 is the logsumexp of each row, over all of these but the last. The reduced ranges
    are the weights' axes. Scores are never in memory: a generator goes through the keys block by block, with
    an online softmax.
    """

    weights: Weights

    @property
    def kind(self) -> CoreKind:
        """`attention`."""
        return "attention"

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Bodies of the weights."""
        return self.weights.bodies

    def replace_bodies(self, bodies: Sequence[Scalar]) -> AttentionCore:
        """Return this core with other `bodies`, in order."""
        return AttentionCore(weights=self.weights.replace_bodies(bodies))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGradientCore:
    """The gradients of an attention's operands, as `AttentionGradient` of the loop IR.

    In the stores parameters 0, 1 and 2 are the gradients of query, key and value, parameter 3 that of a bias.
    Each store knows one of them: its index says which points belong to one element, whose gradient is the sum
    of what these points add. What it stores is made of the parameter alone.

    Attributes:
        weights: those of the attention, computed again.
        output, logsumexp, gradient: what the attention has left, and the gradient of its output.
        inner: what all weights of a row pass on; it takes the place of `output`.
        slope: the gradient of a raw score, given that and what passes through the softmax as parameters 0 and
            1.
        bias: what a score adds to the gradient of a bias, given the same; None if no such gradient is wanted.
    """

    weights: Weights
    output: Scalar | None = None
    inner: Scalar | None = None
    logsumexp: Scalar
    gradient: Scalar
    slope: Scalar
    bias: Scalar | None = None

    @property
    def kind(self) -> CoreKind:
        """`attention-gradient`."""
        return "attention-gradient"

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Bodies of the weights, then the others."""
        return (*self.weights.bodies, *list_saved_bodies(self))

    def replace_bodies(self, bodies: Sequence[Scalar]) -> AttentionGradientCore:
        """Return this core with other `bodies`, in order."""
        count = len(self.weights.bodies)
        own = read_saved_bodies(self, bodies[count:])
        return AttentionGradientCore(weights=self.weights.replace_bodies(bodies[:count]), **own)


Core: TypeAlias = ConvolutionCore | AttentionCore | AttentionGradientCore


def get_ranges(core: Core) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """Return the parallel and the reduced ranges of a kernel with `core`, in the core's order."""
    if isinstance(core, ConvolutionCore):
        return core.ranges, core.axes
    return core.weights.ranges, core.weights.axes


def list_result_ranges(core: Core) -> tuple[frozenset[Expr], ...]:
    """Return the ranges that each result of `core` may vary along."""
    if isinstance(core, ConvolutionCore):
        return (frozenset(core.ranges),)
    weights = core.weights
    rows, (keys, length) = weights.rows, weights.axes
    if isinstance(core, AttentionCore):
        return (frozenset(weights.ranges), frozenset(rows))
    of_bias = (frozenset((*rows, keys)),) if core.bias is not None else ()
    return (
        frozenset((*rows, keys, length)),
        frozenset((*rows, keys, length)),
        frozenset((*weights.ranges, keys)),
        *of_bias,
    )


def get_factors(core: Core) -> tuple[Scalar, ...]:
    """Return the bodies of `core` that are multiplied."""
    if isinstance(core, ConvolutionCore):
        return core.bodies
    weights = core.weights
    gradient = (core.gradient,) if isinstance(core, AttentionGradientCore) else ()
    return (weights.query, weights.key, weights.value, *gradient)


def accumulate_of(core: Core) -> DType:
    """Return the type of the results of `core`."""
    return core.accumulate if isinstance(core, ConvolutionCore) else core.weights.accumulate
