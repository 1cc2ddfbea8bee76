"""Kernel IR: what one launch does, with no target syntax.

A kernel is a set of stores over one iteration space. The space is a product of named ranges, some of them
reduced. The value of a store is a scalar graph; a `Reduce` in it combines along reduction ranges, and code
generators derive the passes over the data from the graph: a value that needs a `Reduce`'s result and varies
along a reduction range belongs to a later pass than that `Reduce`. Whether all passes share one tile in
registers, go through rows block by block, or have programs share rows is not a part of the kernel: a
`coilwork_ir.mapping.Mapping` says it.

Where rows and columns of one matrix are reduced together, a third kind of range is `walked`: one program
takes its points one after the other, and at each of them the reduced ranges. A `Reduce` is then over all of
the reduced ranges, once per walked point, or over all of the walked ones, which may use the former but not
the other way round: rows of a matrix, and sums of its columns over a group of rows.

A kernel whose value is a `Contraction` multiplies blocks of two factors, and combines nothing else. One with
a core (`coilwork_ir.kernels.cores`) computes a convolution or attention, and its stores are the epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coilwork_ir.buffers import Buffer, Constant, GraphInput, GraphOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, extent_of
from coilwork_ir.kernels.core_nodes import Core
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops.nodes import AssertSize, Check, Cond, Extern, View, While
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Scalar
from coilwork_ir.streams import OWN, StreamInstruction

RangeKind = Literal["parallel", "walked", "reduction"]
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
        return extent_of(self.symbol)


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
    """One of the computations of a combined launch: what the names of `Combined.body` stand for in it.

    `args` are arguments of the kernel, one for each of the body's; `sizes` are what the body's size symbols
    are, over the kernel's own.
    """

    args: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
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
        ranges: the iteration space, outermost first: parallel ranges, then walked ones, then reduced ones.
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
    combined: Combined | None = None
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
    """How a template wants `kernel` to run: `candidates`, best guess first.

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


Step: TypeAlias = KernelCall | Extern | View | Cond | While | AssertSize | StreamInstruction


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
