"""Program: the wrapper IR. A straight line of instructions over named buffers and symbols.

Every name is defined once, used, and freed at most once. No instruction holds Python or C++ text: the native
executor and the Python, FX and C++ emitters are total functions over the same instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coilwork_ir.buffers import Argument, Buffer, Constant, GraphInput, GraphOutput, ResultPath, SymbolOutput
from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import Kernel, Proposal
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.streams import OWN, Copy, ForkStream, JoinStream, RecordEvent, WaitEvent

RegionKind: TypeAlias = Literal["capture", "partition", "nested"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BindSymbol:
    """`symbol` is the size (or stride) of dimension `dim` of `buffer`."""

    symbol: Expr
    buffer: str
    dim: int
    what: Literal["size", "stride"] = "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLayout:
    """`buffer`, an input, has its declared dtype, device, shape and strides, else an error names what
    differs. With `aligned`, one whose address is no multiple of 16 bytes is copied.

    Without `asserted`, the caller promises the layout, and only the address is looked at: it is `aligned`.
    """

    buffer: str
    aligned: bool = False
    asserted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Alloc:
    """Fresh memory for `buffer`, uninitialised, 16-byte aligned."""

    buffer: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocPool:
    """One block of `size_bytes` on `device`, to be carved up by `PoolView`."""

    pool: str
    size_bytes: Expr
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """`buffer` lives in `pool`, `offset_bytes` after its start (a multiple of 64)."""

    buffer: Buffer
    pool: str
    offset_bytes: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """`buffer` takes over the memory of `source`, whose contents are no longer needed; `source` is gone.

    Both have the same size in bytes and device.
    """

    buffer: Buffer
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinterpret:
    """`buffer` is the memory of `source` under another layout, `offset` elements (of `buffer`) after its
    first.

    Both names stay valid; the memory lives until both are freed.
    """

    buffer: Buffer
    source: str
    offset: Expr
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Run a kernel on `stream`: `args` one per tensor argument, `sizes` one per size argument."""

    kernel: str
    args: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()
    stream: str = OWN
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternCall:
    """Call a torch operator.

    With `out`, `target` is an out overload and `out` pairs its keyword names with allocated buffers, and
    `outputs` is empty. Otherwise the operator allocates, `outputs` are its results (with the declared layout;
    one that comes with other strides is copied into it), and `binds` symbols are read off their sizes:
    (symbol, output number, dimension). The outputs whose numbers are in `aligned` start at multiples of 16
    bytes; one that does not is copied. `single`: it returns one bare value rather than a tuple. `paths`:
    where each of `outputs` lies in what it returns, if that holds lists beside other results; else empty, and
    output k is item k.

    `implements`: the kind of node that the call computes, as `"convolution"`, where an implementation of one
    is this call; a runtime may have a library of its own for such nodes. Of a launch of a user's kernel it is
    `USER_LAUNCH`, which a runtime may make itself.

    The operator goes on reading or writing `in_flight`, operands and results, after the call has returned:
    until each of `until`, which are among them, was waited for by a call that names it in `waits`. Without
    any, until the program ends.

    The call puts its work on `stream`. On any but the program's own it returns nothing: what it writes is
    there before.
    """

    target: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    out: tuple[tuple[str, str], ...] = ()
    outputs: tuple[Buffer | SymbolOutput | None, ...] = ()
    single: bool = True
    paths: tuple[ResultPath, ...] = ()
    binds: tuple[tuple[Expr, int, int], ...] = ()
    aligned: tuple[int, ...] = ()
    in_flight: tuple[str, ...] = ()
    until: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()
    implements: str = ""
    stream: str = OWN
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSize:
    """`lhs relation rhs` holds, else `message` is raised."""

    lhs: Expr
    relation: Literal["eq", "ne", "lt", "le"]
    rhs: Expr
    message: str
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class CondCall:
    """Run `then` or `otherwise` on `operands`, by the one-element bool buffer `predicate`."""

    predicate: str
    then: Program
    otherwise: Program
    operands: tuple[Argument, ...]
    outputs: tuple[Buffer, ...]
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCall:
    """Repeat `body`, which turns what is `carried` into what the next round carries; `outputs` are what the
    last one leaves.

    Either `condition` is asked before each round, with the same operands; or there are `rounds` of them, and
    the last input of `body` is the number of the round, from 0. The body may write its `extra` operands.
    """

    body: Program
    condition: Program | None = None
    rounds: Expr | None = None
    carried: tuple[Argument, ...]
    extra: tuple[Argument, ...]
    outputs: tuple[Buffer, ...]
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SubprogramCall:
    """Run `body` as a function of `operands`; `outputs` are its results.

    The body uses nothing of its surroundings but its operands, and its results are memory of its own: no
    operand, no constant, and no two the same. It may write its operands. Calls may share one body, which
    drivers then have once. A driver may run something else in place of a body, by its name.
    """

    body: Program
    operands: tuple[Argument, ...]
    outputs: tuple[Buffer, ...]
    origins: tuple[Origin, ...] = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A stretch of instructions that somebody takes as one, with the names of its surroundings.

    Attributes:
        kind: `capture`, what a driver may replay as graphs: no host takes part. `partition`, what one
            executor owns, and may run otherwise: a part that Python drives, a module that the user marked.
            `nested`, a part that runs as a function of its inputs, once for all that are alike. Drivers run
            both of these as calls of subprograms (`outline_regions`); branches and loops hold programs,
            whose inputs are bound anew in each run.
        name: what drivers call a part; empty: a number.
        inputs: names from outside that the body uses, in the order of their first use.
        outputs: names that it defines and leaves alive, in order.
        symbols: sizes from outside that it uses, in order.
        why: why it is one, and ends where it does.
    """

    kind: RegionKind
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    symbols: tuple[Expr, ...]
    body: tuple[Instruction, ...]
    why: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """These names are dead; memory that no other name holds goes back to the allocator."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """Words for the reader of the emitted code."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The last instruction: results in order."""

    values: tuple[GraphOutput, ...]


Instruction: TypeAlias = (
    BindSymbol
    | CheckLayout
    | Alloc
    | AllocPool
    | PoolView
    | Reuse
    | Reinterpret
    | Launch
    | ExternCall
    | CheckSize
    | CondCall
    | LoopCall
    | SubprogramCall
    | Copy
    | ForkStream
    | RecordEvent
    | WaitEvent
    | JoinStream
    | Region
    | Free
    | Comment
    | Return
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The instructions of the generated wrapper, in order.

    Attributes:
        name: identifier.
        symbols: size symbols with bounds, known on entry or bound by the first instructions.
        inputs: parameters in order.
        constants: tensors known at compile time; defined on entry.
        kernels: the kernels that `Launch` names.
        proposals: how templates want some of them to run.
        instructions: the last one is `Return`.
        peak_bytes: predicted peak of memory allocated by the program on its main device, where sizes are
            static; over symbols otherwise; `None` when data-dependent. Inputs and constants are not counted.
    """

    name: str
    symbols: tuple[Expr, ...] = ()
    inputs: tuple[GraphInput, ...]
    constants: tuple[Constant, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    proposals: tuple[Proposal, ...] = ()
    instructions: tuple[Instruction, ...]
    peak_bytes: Expr | None = None
