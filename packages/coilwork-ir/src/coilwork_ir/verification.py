"""Shared parts of the verifiers of the three IRs.

A `Rule` is a sentence and a remedy; a `Place` raises the error that names it. A scope knows the names that
exist at one point of a graph, schedule or program, the memory they share, and which boxes of a buffer have
been filled. Behind it stand the checks of an external call's results, of scalar graphs against the buffers
and symbols around them, and of streams and events: they exist where they are named, and all streams are
joined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NoReturn, Protocol

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    Constant,
    GraphInput,
    ListValue,
    Ref,
    ResultPath,
    SymbolOutput,
    list_references,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import Expr, as_expr, provably_eq
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.scalar import IndexValue, Load, Parameter, Scalar, placeholder
from coilwork_ir.streams import (
    OWN,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
    is_host,
)

# ---- Rules ----


@dataclass(frozen=True, slots=True)
class Rule:
    """An invariant: the sentence that is true of a correct value, and what to do when it is not."""

    sentence: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The node that a verifier looks at: how to print it (done only when a rule is broken), and where it came
    from.
    """

    describe: Callable[[], str]
    origins: tuple[Origin, ...] = UNKNOWN
    rules: Mapping[str, Rule]

    def fail(self, code: str, reason: str) -> NoReturn:
        """Raise the VerifyError of rule `code` for this place."""
        rule = self.rules[code]
        raise VerifyError(
            code,
            rule.sentence,
            node=self._text(),
            origins=self.origins,
            reason=reason,
            remedy=rule.remedy,
        )

    def _text(self) -> str:
        try:
            return self.describe()
        except (ValueError, StopIteration) as error:
            return f"(a node too broken to print: {error})"


def get_first_line(text: str) -> str:
    """Return the first line of `text`, without the brace that opens a body."""
    return text.strip().split("\n", 1)[0].removesuffix("{").strip()


# ---- Boxes ----


@dataclass(frozen=True, slots=True)
class Box:
    """Elements from `starts[k]` to `starts[k] + extents[k] - 1` along each dimension `k`."""

    starts: tuple[Expr, ...]
    extents: tuple[Expr, ...]


def make_whole_box(shape: Sequence[Expr]) -> Box:
    """Return all elements of a buffer of `shape`."""
    return Box((as_expr(0),) * len(shape), tuple(shape))


def add_box(boxes: Sequence[Box], added: Box) -> tuple[Box, ...]:
    """`boxes` and `added`, those that are one box together as one.

    Two are one if they lie side by side along one dimension and agree in the others. Boxes that overlap stay
    apart.
    """
    rest = list(boxes)
    position = 0
    while position < len(rest):
        both = _join(rest[position], added)
        if both is None:
            position += 1
        else:
            del rest[position]
            added, position = both, 0
    return (*rest, added)


def is_whole(boxes: Sequence[Box], shape: Sequence[Expr]) -> bool:
    """Tell if one of `boxes` is provably all of a buffer of `shape`."""
    everything = make_whole_box(shape)
    return any(_equal(box, everything) for box in boxes)


def _join(a: Box, b: Box) -> Box | None:
    apart = [
        k
        for k in range(len(a.starts))
        if not (_is_equal(a.starts[k], b.starts[k]) and _is_equal(a.extents[k], b.extents[k]))
    ]
    if len(apart) != 1:
        return a if not apart else None
    (k,) = apart
    for first, second in ((a, b), (b, a)):
        if _is_equal(first.starts[k] + first.extents[k], second.starts[k]):
            extents = list(first.extents)
            extents[k] = first.extents[k] + second.extents[k]
            return Box(first.starts, tuple(extents))
    return None


def _equal(one: Box, two: Box) -> bool:
    mine, theirs = (*one.starts, *one.extents), (*two.starts, *two.extents)
    return all(_is_equal(a, b) for a, b in zip(mine, theirs, strict=True))


def _is_equal(a: Expr, b: Expr) -> bool:
    return a is b or provably_eq(a, b)


# ---- Scopes ----


SCOPE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "unique-name": Rule(
            "every buffer is defined once", "give the second buffer a name that is not in use yet"
        ),
        "defined-before-use": Rule(
            "a buffer is defined before it is used",
            "move the definition up, or declare the buffer as an input",
        ),
        "overwritten": Rule(
            "memory that was overwritten is not read under an older name",
            "read the buffer that took over the memory, or copy the old contents before they are overwritten",
        ),
        "unique-symbol": Rule(
            "in one scope a symbol's name stands for one symbol",
            "rename one of the symbols, or give both the same bounds",
        ),
        "symbol-declared": Rule(
            "index expressions use declared symbols and the ranges around them only",
            "declare the symbol, or make the range part of the node",
        ),
        "symbol-bound": Rule(
            "every declared symbol is an input, or stands alone in the shape or strides of an input",
            "pass the symbol as an integer input",
        ),
        "layout-rank": Rule(
            "a buffer has one stride per dimension", "give as many strides as there are dimensions"
        ),
    }
)


class Scope:
    """Definitions seen so far. Verifiers move one scope forward through the nodes; each name costs O(1)."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.symbols: dict[str, Expr] = {} if outer is None else dict(outer.symbols)
        self._gone: dict[str, str] = {}
        self._memory: dict[str, list[str]] = {}  # names for the memory of a name, shared between those names
        self._filled: dict[str, tuple[Box, ...]] = {}  # of buffers that are not full yet

    def declare(self, value: Expr, place: Place) -> None:
        """A size symbol that has a value from here on."""
        if not value.is_symbol:
            place.fail("symbol-declared", f"{value!r} is not a symbol")
        known = self.symbols.setdefault(value.name, value)
        if known is not value:
            place.fail("unique-symbol", f"{value.name} was declared before, with other bounds")

    def define(self, buffer: Buffer, place: Place, *, shares: str | None = None) -> None:
        """`buffer` exists from here on; it is memory of the buffer `shares`, or memory of its own."""
        if buffer.name in self.buffers:
            place.fail("unique-name", f"%{buffer.name} is defined a second time")
        if len(buffer.shape) != len(buffer.strides):
            place.fail(
                "layout-rank",
                f"%{buffer.name} has {len(buffer.shape)} dimensions and {len(buffer.strides)} strides",
            )
        for expr in (*buffer.shape, *buffer.strides):
            self.check_symbols(expr, (), place)
        self.buffers[buffer.name] = buffer
        group = [] if shares is None else self._memory[shares]
        group.append(buffer.name)
        self._memory[buffer.name] = group

    def use(self, name: str, place: Place) -> Buffer:
        """Return the buffer `name`, which must be defined and hold what it is said to hold."""
        if name in self._filled:
            place.fail("unfilled", f"parts of %{name} hold nothing yet")
        return self.store_into(name, place)

    def fill(self, buffer: Buffer, before: str | None, box: Box | None) -> None:
        """`box` of `buffer` has been filled: the first part of it, or more of the memory called `before` so
        far.
        """
        known = () if before is None else self._filled.get(before)
        if known is None:
            return
        boxes = known if box is None else add_box(known, box)
        if not is_whole(boxes, buffer.shape):
            self._filled[buffer.name] = boxes

    def is_full(self, name: str) -> bool:
        """Tell if all elements of buffer `name` have values."""
        return name not in self._filled

    def store_into(self, name: str, place: Place) -> Buffer:
        """Return the buffer `name`, which must be defined, not overwritten, but need not be full."""
        buffer = self.buffers.get(name)
        if buffer is None:
            place.fail("defined-before-use", f"%{name} is not defined above")
        why = self._gone.get(name)
        if why is not None:
            place.fail("overwritten", f"the memory of %{name} {why}")
        return buffer

    def overwrite(self, old: Iterable[str], new: Iterable[Buffer], place: Place) -> None:
        """The memory of each `old` is from here on called by the matching buffer `new`, and by
        nothing else.
        """
        pairs = list(zip(old, new, strict=True))
        for source, buffer in pairs:
            for name in self._memory[source]:
                self._gone.setdefault(name, f"was taken over by %{buffer.name}")
            self._memory[source].clear()
        for source, buffer in pairs:
            self.define(buffer, place, shares=source)

    def shares(self, first: str, second: str) -> bool:
        """Tell if the two names are known to be names of one piece of memory."""
        return self._memory[first] is self._memory[second]

    def check_symbols(self, expr: Expr, local: Collection[Expr], place: Place) -> None:
        """`expr` uses only declared symbols and those in `local`."""
        for symbol in expr.free_symbols:
            if symbol in local:
                continue
            known = self.symbols.get(symbol.name)
            if known is None:
                place.fail("symbol-declared", f"{symbol.name} in {expr!r} is not declared")
            if known is not symbol:
                place.fail(
                    "unique-symbol",
                    f"{symbol.name} in {expr!r} has other bounds than the declared {symbol.name}",
                )

    def check_argument(self, argument: Argument, place: Place) -> None:
        """Buffers and symbols that a call's argument mentions exist."""
        for name in list_references(argument):
            self.use(name, place)
        for expr in _list_argument_expressions(argument):
            self.check_symbols(expr, (), place)


def open_scope(
    symbols: Iterable[Expr],
    inputs: Iterable[GraphInput],
    constants: Iterable[Constant],
    place: Place,
    outer: Scope | None,
) -> Scope:
    """Return the scope on entry: declared symbols, inputs and constants. Shared with `outer` are its
    symbols only.
    """
    scope = Scope(outer)
    bound = set(scope.symbols.values())
    declared = tuple(symbols)
    for value in declared:
        scope.declare(value, place)
    for entry in inputs:
        if isinstance(entry, Expr):
            bound.update([entry] if entry.is_symbol else [])
        else:
            bound.update(e for e in (*entry.shape, *entry.strides) if e.is_symbol)
    for value in declared:
        if value not in bound:
            place.fail("symbol-bound", f"{value.name} stands alone in no input")
    for entry in inputs:
        if isinstance(entry, Expr):
            scope.check_symbols(entry, (), place)
        else:
            scope.define(entry, place)
    for constant in constants:
        scope.define(constant.buffer, place)
    return scope


def _list_argument_expressions(argument: Argument) -> tuple[Expr, ...]:
    match argument:
        case Expr():
            return (argument,)
        case ListValue(items):
            return tuple(expr for item in items for expr in _list_argument_expressions(item))
        case _:
            return ()


def find_buffer(value: object) -> str | None:
    """Return the buffer that a graph result names, or None for sizes and nothing."""
    return value.name if isinstance(value, Ref) else None


# ---- Results of external calls ----


def check_paths(paths: Sequence[ResultPath], count: int, place: Place, *, single: bool) -> None:
    """Each of `count` results has a place of its own, if `paths` says where they lie."""
    if not paths:
        return
    if single:
        place.fail("extern-results", "one bare value is returned, and there are paths into it")
    if len(paths) != count:
        place.fail("extern-results", f"{len(paths)} paths for {count} results")
    for number, path in enumerate(paths):
        if not path or any(step < 0 for step in path):
            place.fail("extern-results", f"{list(path)} is no path to a result")
        for other in paths[:number]:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                place.fail("extern-results", f"a result at {list(path)} and one at {list(other)}")


def declare_numbers(outputs: Sequence[object], scope: Scope, place: Place) -> None:
    """The numbers among `outputs` of one call have values from here on, each under a name of its own."""
    numbers = [output.symbol for output in outputs if isinstance(output, SymbolOutput)]
    for earlier, number in enumerate(numbers):
        if number in numbers[:earlier]:
            place.fail("extern-results", f"two results are {number!r}")
        scope.declare(number, place)


FLIGHT_NAMES: Final = Rule(
    "a call leaves in flight what it is given or returns, and what is waited for is in flight",
    "name operands and results of the call",
)


class _Call(Protocol):
    """A call of either IR."""

    @property
    def in_flight(self) -> tuple[str, ...]: ...
    @property
    def until(self) -> tuple[str, ...]: ...
    @property
    def waits(self) -> tuple[str, ...]: ...


def check_flight(call: _Call, own: Collection[str], there: Collection[str], place: Place) -> None:
    """Check that memory in flight is named by buffers of `call`, and that what it waits for is there.

    Raises:
        VerifyError: it does not.
    """
    for name in call.in_flight:
        if name not in own:
            place.fail("flight-names", f"%{name} is neither given to the call nor returned by it")
    for name in call.until:
        if name not in call.in_flight:
            place.fail("flight-names", f"%{name} is waited for later and not in flight")
    for name in call.waits:
        if name not in there:
            place.fail("flight-names", f"there is no %{name} to wait for")


# ---- Scalar graphs ----


SCALAR_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "load-dtype": Rule(
            "a load has the element type of its buffer", "load the buffer's own type and cast the value"
        ),
        "index-rank": Rule(
            "a buffer is indexed by one expression per dimension (in kernels: by one flat offset)",
            "give as many index expressions as the buffer has dimensions",
        ),
        "placeholder": Rule(
            "`@k` stands for the k-th computed index value, which is given",
            "list the value after `using`, or use the range symbol itself",
        ),
        "mask-type": Rule("masks and conditions of checks are bool", "compare the value with zero"),
        "parameter": Rule(
            "what a function that combines, or an epilogue, is given is read in that function only",
            "load the value",
        ),
        "index-type": Rule("computed index values are integers", "cast the index to i64"),
    }
)


class SymbolScope(Protocol):
    """A scope that knows the declared symbols."""

    def check_symbols(self, expr: Expr, local: Collection[Expr], place: Place) -> None:
        """Fail at `place` if `expr` uses symbols that are neither declared nor in `local`."""
        ...


def check_index(
    exprs: Sequence[Expr],
    indirect: Sequence[Scalar],
    local: Collection[Expr],
    scope: SymbolScope,
    place: Place,
) -> None:
    """Symbols of index expressions are declared, ranges, or placeholders of the values `indirect`."""
    for value in indirect:
        if not value.dtype.is_integer:
            place.fail("index-type", f"an index value is {value.dtype.text}")
    for expr in exprs:
        symbols = expr.free_symbols
        if not any(s.name.startswith("@") for s in symbols):
            scope.check_symbols(expr, local, place)
            continue
        given = {placeholder(k) for k in range(len(indirect))}
        for symbol in symbols:
            if symbol.name.startswith("@") and symbol not in given:
                place.fail(
                    "placeholder", f"{symbol.name} in {expr!r}: {len(indirect)} index values are given"
                )
        scope.check_symbols(expr, {*local, *given}, place)


def check_load(node: Load, dtype: DType, rank: int, place: Place) -> None:
    """The load fits a buffer of `dtype` that is indexed by `rank` expressions."""
    if node.dtype is not dtype:
        place.fail("load-dtype", f"%{node.buffer} is {dtype.text}, loaded as {node.dtype.text}")
    if len(node.index) != rank:
        place.fail("index-rank", f"%{node.buffer} takes {rank} index expressions, got {len(node.index)}")


def check_symbols_of(node: Scalar, local: Collection[Expr], scope: SymbolScope, place: Place) -> None:
    """Index expressions of `node` itself (not of its operands) use known symbols only; it is no parameter."""
    match node:
        case Load():
            check_index(node.index, node.indirect, local, scope, place)
        case IndexValue():
            check_index((node.expr,), node.operands, local, scope, place)
        case Parameter():
            place.fail("parameter", f"parameter {node.position} of no function")
        case _:
            pass


def check_mask(value: Scalar | None, what: str, place: Place) -> None:
    """A mask or condition, if there is one, is bool."""
    if value is not None and not value.dtype.is_bool:
        place.fail("mask-type", f"{what} is {value.dtype.text}")


# ---- Streams ----


STREAM_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "stream-exists": Rule(
            "a stream is named between its `fork` and its `join`, and forked once", "fork the stream before"
        ),
        "stream-device": Rule(
            "an event or a stream is of the device of the stream that it is made of", "name that device"
        ),
        "stream-joined": Rule("every stream is joined before the end", "join the stream before `return`"),
        "event-recorded": Rule(
            "an event is recorded once, before it is waited for", "record the event before"
        ),
    }
)


class StreamChecker:
    """Follows which streams and events there are."""

    def __init__(self) -> None:
        self._devices: dict[str, str] = {}
        self._forked: set[str] = set()
        self._events: dict[str, str] = {}

    def is_known(self, name: str) -> bool:
        """Tell if `name` is that of a stream or event, or was."""
        return name in self._forked or name in self._events

    def check_stream(self, stream: str, place: Place, device: str | None = None) -> None:
        """Check that `stream` is there, and of `device`.

        Raises:
            VerifyError: it is not.
        """
        if stream == OWN:
            return
        if stream not in self._devices:
            gone = "was joined" if stream in self._forked else "was never forked"
            place.fail("stream-exists", f"%{stream} {gone}")
        if device is not None and self._devices[stream] != device:
            place.fail("stream-device", f"%{stream} is of {self._devices[stream]}, not {device}")

    def _check_kind(self, waiting: str, device: str, place: Place) -> None:
        """A stream of the host is the host itself, which waits by `await … on host` alone."""
        if is_host(self._devices.get(waiting, device)) != is_host(device):
            place.fail(
                "stream-device", f"%{waiting} is of {self._devices[waiting]}, which waits for {device}"
            )

    def follow(self, instruction: StreamInstruction, place: Place) -> None:
        """Take `instruction` into account.

        Raises:
            VerifyError: it breaks one of `STREAM_RULES`.
        """
        match instruction:
            case ForkStream(stream=stream, device=device):
                self.check_stream(instruction.after, place, device)
                if self.is_known(stream) or stream == OWN:
                    place.fail("stream-exists", f"%{stream} is forked a second time")
                self._forked.add(stream)
                self._devices[stream] = device
            case RecordEvent(event=event):
                self.check_stream(instruction.stream, place, instruction.device)
                if self.is_known(event):
                    place.fail("event-recorded", f"%{event} is recorded a second time")
                self._events[event] = instruction.device
            case WaitEvent(event=event, stream=stream):
                if event not in self._events:
                    place.fail("event-recorded", f"%{event} was never recorded")
                if stream is not None:
                    self.check_stream(stream, place)
                    self._check_kind(stream, self._events[event], place)
            case JoinStream(stream=stream):
                self.check_stream(stream, place)
                self.check_stream(instruction.into, place)
                if stream == OWN or stream == instruction.into:
                    place.fail(
                        "stream-exists", "a stream is joined into itself, or the call's own into another"
                    )
                self._check_kind(instruction.into, self._devices[stream], place)
                del self._devices[stream]

    def finish(self, place: Place) -> None:
        """Check that all streams were joined.

        Raises:
            VerifyError: one was not.
        """
        if self._devices:
            place.fail("stream-joined", f"%{next(iter(self._devices))} is still there")
