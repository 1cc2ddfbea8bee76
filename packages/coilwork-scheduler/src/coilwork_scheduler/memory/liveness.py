"""Find which names are one piece of memory, when each is needed, and the predicted peak of memory.

Live ranges are those of linear-scan register allocation (Poletto and Sarkar 1999), over storages instead of
names: views, overwritten buffers and aliasing results share the storage of the buffer they come from.
`PeakMeter` follows allocations and frees, with symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from coilwork_ir.buffers import Buffer, Ref, SymbolOutput, list_references
from coilwork_ir.index import (
    Expr,
    IndexArithmeticError,
    as_expr,
    evaluate,
    find_bounds,
    maximum,
    multiply_all,
    provably_le,
)
from coilwork_ir.inflight_memory import InFlight
from coilwork_ir.kernels.nodes import KernelCall, Schedule, Step
from coilwork_ir.loops.nodes import AssertSize, Cond, Extern, Loop, View
from coilwork_ir.streams import OWN, ForkStream, JoinStream, RecordEvent, WaitEvent, is_host

# ---- Storages ----


Owner = Literal["input", "donated", "constant", "planned", "fresh", "callee"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One piece of memory.

    Attributes:
        root: the buffer that first names it.
        names: every name for it, in order of definition, the root first.
        owner: who provides it: the caller, who wants it back (`input`) or not (`donated`), the artifact
            (`constant`), an `Alloc` of ours (`planned`), or an operator, whose result alone has it (`fresh`)
            or of which nothing is known (`callee`).
        first: step that defines the root; -1 for inputs and constants.
        begin: step before which the memory is allocated: `first`, or of what a stream defines, the last one
            that the stream is behind, since what had the memory before may run until then.
        last: last step that touches any name, or that waits for an operator which goes on using the memory
            after its call, or for a stream; the number of steps for returned memory, and for what is in use
            when the program ends.
        retained: an operator was given it that may keep a reference and read it at any time: nobody else gets
            the memory.
    """

    root: Buffer
    names: tuple[str, ...]
    owner: Owner
    first: int
    begin: int
    last: int
    retained: bool = False

    @property
    def reusable(self) -> bool:
        """Other buffers may have the memory when this one is dead."""
        if self.retained:
            return False
        # an operator may have woven results with gaps into each other
        return self.owner in ("planned", "donated") or (
            self.owner == "fresh" and self.root.span is multiply_all(self.root.shape)
        )

    @property
    def size_bytes(self) -> Expr:
        """Bytes from the first element of the root to the end of its last."""
        return self.root.span * self.root.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageTable:
    """All storages of a schedule, and the storage of each name."""

    storages: tuple[Storage, ...]
    positions: Mapping[str, int]
    buffers: Mapping[str, Buffer]

    def storage(self, name: str) -> Storage:
        """Return the storage that `name` is a name for."""
        return self.storages[self.positions[name]]


def list_step_definitions(step: Step, schedule_roles: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Names that `step` defines; `schedule_roles` gives each kernel's argument roles."""
    match step:
        case KernelCall():
            roles = schedule_roles[step.kernel]
            into = {old: new for new, old in step.into}
            written = tuple(into.get(a, a) for a, role in zip(step.args, roles, strict=True) if role != "in")
            return tuple(dict.fromkeys((*written, *(new for new, _ in step.into))))
        case View():
            return (step.output.name,)
        case Extern():
            fresh = tuple(o.name for o in step.outputs if isinstance(o, Buffer))
            return fresh + tuple(m.output.name for m in step.mutates)
        case Cond():
            return tuple(b.name for b in step.outputs)
        case Loop():
            return tuple(b.name for b in step.outputs) + tuple(m.output.name for m in step.mutates)
        case AssertSize() | ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
            return ()


def list_step_uses(step: Step) -> tuple[str, ...]:
    """Names that must be alive while `step` runs, those it defines aside."""
    match step:
        case KernelCall():
            return (*step.args, *(old for _, old in step.into))
        case View():
            return (step.source,)
        case Extern():
            values = (*step.args, *(value for _, value in step.kwargs))
            named = tuple(name for value in values for name in list_references(value))
            return named + tuple(m.source for m in step.mutates)
        case Cond():
            return (step.predicate, *(name for value in step.operands for name in list_references(value)))
        case Loop():
            return tuple(name for value in (*step.carried, *step.extra) for name in list_references(value))
        case AssertSize() | ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
            return ()


class _Begins:
    """Finds where memory that streams use may be allocated."""

    def __init__(self, schedule: Schedule, in_flight: InFlight[int]) -> None:
        self._in_flight = in_flight
        # the step of each use that is counted; nothing without streams
        self._steps: list[int] | None = None
        if any(isinstance(step, ForkStream) for step in schedule.steps):
            in_flight.open_streams()
            self._steps = [0]

    def pass_step(self, number: int) -> None:
        """Step `number` comes next."""
        if self._steps is not None:
            self._in_flight.use(OWN, (), ())
            self._steps.append(number)

    def find(self, number: int, step: Step) -> int:
        """Find the step before which to allocate what `step` defines."""
        if self._steps is None or not isinstance(step, KernelCall) or step.stream == OWN:
            return number
        return self._steps[self._in_flight.reach(step.stream)]


def analyse_liveness(schedule: Schedule, donated: Collection[str] = ()) -> StorageTable:
    """Storages and live ranges of `schedule`, whose caller gives the inputs `donated` away. Linear in its
    size.
    """
    roles = {kernel.name: tuple(arg.role for arg in kernel.args) for kernel in schedule.kernels}
    buffers = {b.name: b for b in schedule.buffers}
    of: dict[str, int] = {}
    roots: list[Buffer] = []
    owners: list[Owner] = []
    firsts: list[int] = []
    names: list[list[str]] = []
    lasts: list[int] = []
    begins: list[int] = []
    in_flight: InFlight[int] = InFlight()
    steps = _Begins(schedule, in_flight)
    retained: set[int] = set()
    switches = any(isinstance(step, Extern) and step.barrier for step in schedule.steps)

    def fresh(buffer: Buffer, owner: Owner, step: int, begin: int) -> None:
        of[buffer.name] = len(roots)
        begins.append(begin)
        if is_host(buffer.device):
            in_flight.place_on_host(len(roots))
        roots.append(buffer)
        owners.append(owner)
        firsts.append(step)
        names.append([buffer.name])
        lasts.append(step)

    def share(name: str, source: str, step: int) -> None:
        position = of[source]
        of[name] = position
        names[position].append(name)
        lasts[position] = max(lasts[position], step)

    for entry in schedule.inputs:
        if isinstance(entry, Buffer):
            buffers[entry.name] = entry
            fresh(entry, "donated" if entry.name in donated else "input", -1, -1)
    for constant in schedule.constants:
        buffers[constant.buffer.name] = constant.buffer
        fresh(constant.buffer, "constant", -1, -1)

    for number, step in enumerate(schedule.steps):
        steps.pass_step(number)
        for name in list_step_uses(step):
            if name in of:
                lasts[of[name]] = number
        for name, source in _find_shared_names(step):
            share(name, source, number)
        for name in list_step_definitions(step, roles):
            if name not in of:
                fresh(buffers[name], _owner(step), number, steps.find(number, step))
        match step:
            case KernelCall() if step.stream != OWN:
                in_flight.use(step.stream, (of[name] for name in list_step_uses(step)), ())
            case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
                for position in in_flight.follow(step):
                    lasts[position] = max(lasts[position], number)
        if isinstance(step, Extern):
            if step.retains:
                retained.update(of[name] for name in list_step_uses(step))
            if step.waits:
                ended = in_flight.wait(of[name] for name in step.waits)
                for position in ended or _list_donated(owners):
                    lasts[position] = max(lasts[position], number)
            if step.in_flight:
                in_flight.start((of[name] for name in step.in_flight), (of[name] for name in step.until))

    end = len(schedule.steps)
    # on whatever stream: what one has used, another may only have when all is joined
    for position in range(len(roots)) if switches else in_flight.memory():
        lasts[position] = end
    for output in schedule.outputs:
        if isinstance(output, Ref):
            lasts[of[output.name]] = end
    storages = tuple(
        Storage(
            root=root,
            names=tuple(group),
            owner=owner,
            first=first,
            begin=begin,
            last=last,
            retained=position in retained,
        )
        for position, (root, group, owner, first, begin, last) in enumerate(
            zip(roots, names, owners, firsts, begins, lasts, strict=True)
        )
    )
    return StorageTable(storages=storages, positions=of, buffers=buffers)


def _list_donated(owners: Sequence[Owner]) -> tuple[int, ...]:
    """Return the memory that the caller gives away: what a call in another program left in flight may read it
    until a wait in this one.
    """
    return tuple(position for position, owner in enumerate(owners) if owner == "donated")


def _owner(step: Step) -> Owner:
    match step:
        case KernelCall():
            return "planned"
        case Extern() if can_take_out(step):
            return "planned"
        case Extern() if step.fresh and not step.aliases:
            return "fresh"
        case _:
            return "callee"


def can_take_out(step: Extern) -> bool:
    """Tell if `step` can write its results into memory of ours: tensors whose sizes are known before."""
    return (
        bool(step.out_overload)
        and not step.binds
        and not step.aliases
        and len(step.out_names) == len(step.outputs)
        and all(isinstance(o, Buffer) for o in step.outputs)
        and not any(isinstance(o, SymbolOutput) for o in step.outputs)
    )


def _find_shared_names(step: Step) -> tuple[tuple[str, str], ...]:
    match step:
        case KernelCall():
            return step.into
        case View():
            return ((step.output.name, step.source),)
        case Extern():
            pairs = [(m.output.name, m.source) for m in step.mutates]
            for number, source in step.aliases:
                result = step.outputs[number]
                if isinstance(result, Buffer):
                    pairs.append((result.name, source))
            return tuple(pairs)
        case Loop():
            return tuple((m.output.name, m.source) for m in step.mutates)
        case _:
            return ()


# ---- Peak ----


MOST_CANDIDATES = 16
"""More incomparable symbolic peaks than this, and the prediction is given up: nobody could read it."""

_BITS: Final = 3
# Where totals are compared by their values: how far above its least a size is whose number, counted from 1,
# is given. All at their least, all a little and all far above it, each by its own multiple; then those far
# above whose number has a bit, or lacks it, for each of `_BITS` bits: of any two of the first sizes, each is
# somewhere large while the other is small.
_PLACES: Final[tuple[Callable[[int], int], ...]] = (
    lambda number: 0,
    lambda number: number,
    lambda number: 1000 * number,
    *(lambda number, bit=bit: 1000 * number if number >> bit & 1 else 1 for bit in range(_BITS)),
    *(lambda number, bit=bit: 1 if number >> bit & 1 else 1000 * number for bit in range(_BITS)),
)


@dataclass(frozen=True, slots=True)
class _Total:
    """An amount of memory in bytes, and its value at each of `_PLACES`; none where it divides by a size that
    is 0.
    """

    size_bytes: Expr
    values: tuple[int | None, ...]

    def is_at_most(self, other: _Total) -> bool:
        """Tell if it is provably no more than `other`. Values that say otherwise spare the proof."""
        for own, others in zip(self.values, other.values, strict=True):
            if own is not None and others is not None and own > others:
                return False
        return provably_le(self.size_bytes, other.size_bytes)


class PeakMeter:
    """Follows allocations and frees, in bytes, and keeps the largest totals seen.

    A total counts when memory is given back after some was allocated: those on the way there are no larger.
    """

    def __init__(self) -> None:
        self._live = as_expr(0)
        self._rising = True
        self._candidates: list[_Total] = []
        self._numbers: dict[Expr, int] = {}
        self._gave_up = False

    def grow(self, size_bytes: Expr) -> None:
        """Memory was allocated."""
        self._live = self._live + size_bytes
        self._rising = True

    def shrink(self, size_bytes: Expr) -> None:
        """Memory was given back."""
        self._settle()
        self._live = self._live - size_bytes

    def peak(self) -> Expr | None:
        """Return the largest total, or `None` if it depends on sizes in too many ways."""
        self._settle()
        if self._gave_up:
            return None
        return maximum(*(total.size_bytes for total in self._candidates))

    def _settle(self) -> None:
        """Take the current total into account, if it may be one of the largest."""
        if self._gave_up or not self._rising:
            return
        self._rising = False
        live = _Total(self._live, self._values(self._live))
        if any(live.is_at_most(seen) for seen in self._candidates):
            return
        self._candidates = [seen for seen in self._candidates if not seen.is_at_most(live)]
        self._candidates.append(live)
        self._gave_up = len(self._candidates) > MOST_CANDIDATES

    def _values(self, total: Expr) -> tuple[int | None, ...]:
        """`total` at every place."""
        for size in sorted(total.free_symbols - self._numbers.keys(), key=lambda size: size.name):
            self._numbers[size] = len(self._numbers) + 1
        return tuple(self._value(total, place) for place in _PLACES)

    def _value(self, total: Expr, place: Callable[[int], int]) -> int | None:
        sizes = {}
        for size in total.free_symbols:
            least, most = find_bounds(size).lo or 0, find_bounds(size).hi
            wanted = least + place(self._numbers[size])
            sizes[size.name] = wanted if most is None else min(wanted, most)
        try:
            return evaluate(total, sizes)
        except IndexArithmeticError:
            return None
