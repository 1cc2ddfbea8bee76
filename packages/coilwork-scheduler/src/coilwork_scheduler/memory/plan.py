"""Plan memory: from a schedule to a program of allocations, launches and frees.

Allocations come as late and frees as early as they can. Two kinds of reuse hand memory on, and neither can
raise the peak:

- In place: a kernel's output takes over an input that dies in the same launch, where the kernel says that
  each element is read before the same point writes it.
- Hand-over: a buffer that died in the step before is taken over by an allocation of exactly its size. Nothing
  is allocated between the two, so holding the memory that long costs nothing.

With `pools`, most allocations are then placed in shared blocks (`pools.py`). A program begins by reading
sizes off its inputs, and by checking how these lie in memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coilwork_ir.buffers import Buffer, Ref, SymbolOutput
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all
from coilwork_ir.kernels.nodes import Kernel, KernelCall, Schedule, Step
from coilwork_ir.loops.nodes import AssertSize, Cond, Extern, Graph, Loop, View
from coilwork_ir.operators import find_target_info
from coilwork_ir.program.lazy_conjugation import resolve_marks
from coilwork_ir.program.nodes import (
    Alloc,
    BindSymbol,
    CheckLayout,
    CheckSize,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    LoopCall,
    Program,
    Reinterpret,
    Return,
    Reuse,
)
from coilwork_ir.streams import ForkStream, JoinStream, RecordEvent, WaitEvent
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.memory.liveness import (
    PeakMeter,
    Storage,
    StorageTable,
    analyse_liveness,
    can_take_out,
    list_step_definitions,
    list_step_uses,
)
from coilwork_scheduler.memory.pools import place_in_pools

# ---- How a program begins ----


def make_prologue(schedule: Schedule, *, checked: bool, aligned: Collection[str]) -> Iterator[Instruction]:
    """Bind the symbols of `schedule`, and check its inputs.

    The layouts of all inputs are checked if `checked`, and the addresses of those that must be `aligned`.

    Raises:
        ScheduleError: a symbol is bound by no input.
    """
    bound = {entry for entry in schedule.inputs if isinstance(entry, Expr)}
    for entry in schedule.inputs:
        if isinstance(entry, Buffer):
            yield from _bind_symbols(entry, schedule, bound)
    for symbol in schedule.symbols:
        if symbol not in bound:
            raise ScheduleError(
                "unbound-symbol",
                f"size symbol {symbol.name} of @{schedule.name} stands alone in no input's shape or strides",
                remedy="pass it as an integer input",
            )
    unchecked = _generator_states(schedule) | _find_packed_weights(schedule)
    for entry in schedule.inputs:
        if not isinstance(entry, Buffer) or entry.name in unchecked:
            continue
        if checked or entry.name in aligned:
            yield CheckLayout(buffer=entry.name, aligned=entry.name in aligned, asserted=checked)


def _bind_symbols(buffer: Buffer, schedule: Schedule, bound: set[Expr]) -> Iterator[BindSymbol]:
    """Yield the symbols that stand alone in the layout of `buffer`, added to `bound`."""
    wanted = schedule.symbols
    for dim, extent in enumerate(buffer.shape):
        if extent.is_symbol and extent not in bound and extent in wanted:
            bound.add(extent)
            yield BindSymbol(symbol=extent, buffer=buffer.name, dim=dim)
    for dim, stride in enumerate(buffer.strides):
        if stride.is_symbol and stride not in bound and stride in wanted:
            bound.add(stride)
            yield BindSymbol(symbol=stride, buffer=buffer.name, dim=dim, what="stride")


def _find_packed_weights(schedule: Schedule) -> frozenset[str]:
    """Inputs in a layout of a library's own, which have no strides to check: the weights of its operators."""
    found: set[str] = set()
    for step in schedule.steps:
        place = find_target_info(step.target).packed_argument if isinstance(step, Extern) else None
        if isinstance(step, Extern) and place is not None:
            weight = step.args[place]
            if isinstance(weight, Ref):
                found.add(weight.name)
    return frozenset(found)


def _generator_states(schedule: Schedule) -> frozenset[str]:
    """Inputs that look like the state of a random generator: one or two integers that only operators read.

    Attention hands such a state from its forward to its backward operator. Torch describes it as being on the
    GPU, where its kernels have put it only under CUDA graphs; the operators take it from anywhere, so it is
    not checked.
    """
    passed_on = {
        entry.name
        for entry in schedule.inputs
        if isinstance(entry, Buffer)
        and entry.dtype.is_integer
        and len(entry.shape) <= 1
        and as_int(multiply_all(entry.shape)) in (1, 2)
    }
    by_operators: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, Extern):
            by_operators.update(list_step_uses(step))
        else:
            passed_on.difference_update(list_step_uses(step))
    return frozenset(passed_on & by_operators)


# ---- The planner ----


_ZERO: Final = as_expr(0)

_DeviceAndSize = tuple[str, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Settings of the memory planner.

    Attributes:
        reuse: hand memory on in place and between neighbouring steps. Off, every buffer is allocated and
            freed.
        check_inputs: check the layout of each input tensor. Off, the caller promises them, and only those
            that have to be aligned are looked at.
        aligned_inputs: inputs that kernels take to start at multiples of 16 bytes: one that does not is
            copied first.
        donated_inputs: inputs that the caller gives away, gaps between their elements included, whose memory
            nothing else shares: it is handed on like the program's own.
        pools: place buffers that never leave the program in shared blocks.
        pool_slack_bytes: how much higher the peak may be for that, at most (`place_in_pools`).
        small_pool_slack_bytes: the same of programs of little memory, where it saves most of the allocations.
        marked_results: how many of the first results the caller takes with torch's marks, as an operator gave
            them; `None`: all.
    """

    reuse: bool = True
    check_inputs: bool = True
    aligned_inputs: tuple[str, ...] = ()
    donated_inputs: tuple[str, ...] = ()
    pools: bool = False
    pool_slack_bytes: int = 1 << 16
    small_pool_slack_bytes: int = 1 << 20
    marked_results: int | None = 0


def plan(
    schedule: Schedule,
    options: PlanOptions = PlanOptions(),
    *,
    region: Callable[[Graph], Program] | None = None,
) -> Program:
    """Return the program that runs `schedule`.

    `region` compiles the nested graphs of `Cond` and `Loop` steps.

    Raises:
        ScheduleError: a symbol is bound by no input, or there is a nested graph and no `region`.
    """
    table = analyse_liveness(schedule, frozenset(options.donated_inputs))
    program = _Planner(schedule=schedule, options=options, table=table, region=region).run()
    switches = any(isinstance(step, Extern) and step.barrier for step in schedule.steps)
    if options.pools and not switches:
        program = place_in_pools(
            program,
            table,
            slack_bytes=options.pool_slack_bytes,
            small_slack_bytes=options.small_pool_slack_bytes,
        )
    return resolve_marks(program, kept=options.marked_results)


@dataclass(slots=True, kw_only=True)
class _Planner:
    """The state of one walk over the steps; lives for one call of `plan`."""

    schedule: Schedule
    options: PlanOptions
    table: StorageTable
    region: Callable[[Graph], Program] | None
    kernels: Mapping[str, Kernel] = field(init=False)
    roles: Mapping[str, tuple[str, ...]] = field(init=False)
    out: list[Instruction] = field(default_factory=list)
    # storages that died in the previous step and still hold their memory, by position
    dying: list[int] = field(default_factory=list)
    # position of a storage -> name that now holds its memory, once handed on
    reused: set[int] = field(default_factory=set)
    # storages in memory that the caller allocated, which the peak leaves out
    donated: set[int] = field(default_factory=set)
    # inputs of the launch at hand whose memory its outputs took over
    taken_over: list[str] = field(default_factory=list)
    meter: PeakMeter = field(default_factory=PeakMeter)

    def __post_init__(self) -> None:
        self.kernels = {kernel.name: kernel for kernel in self.schedule.kernels}
        self.roles = {name: tuple(arg.role for arg in kernel.args) for name, kernel in self.kernels.items()}
        self.donated = {p for p, storage in enumerate(self.table.storages) if storage.owner == "donated"}

    def run(self) -> Program:
        schedule = self.schedule
        aligned = frozenset(self.options.aligned_inputs)
        self.out.extend(make_prologue(schedule, checked=self.options.check_inputs, aligned=aligned))
        deaths: list[list[int]] = [[] for _ in range(len(schedule.steps) + 1)]
        for position, storage in enumerate(self.table.storages):
            if storage.owner != "constant":
                deaths[max(storage.last, 0) if schedule.steps else -1].append(position)
        begins = self._begins()
        for number, step in enumerate(schedule.steps):
            self._allocate(number, step, begins.get(number, ()))
            self._perform(step)
            self.dying = [p for p in deaths[number] if p not in self.reused]
        self._release()
        # still in use when the program ends: whoever waits is another program
        returned = {self.table.positions[value.name] for value in schedule.outputs if isinstance(value, Ref)}
        self.dying = [p for p in deaths[-1] if p not in self.reused and p not in returned]
        if schedule.steps:
            self._release()
        self.out.append(Return(values=schedule.outputs))
        kept = tuple(kernel for kernel in schedule.kernels if not _has_no_points(kernel))
        return Program(
            name=schedule.name,
            symbols=schedule.symbols,
            inputs=schedule.inputs,
            constants=schedule.constants,
            kernels=kept,
            proposals=tuple(one for one in schedule.proposals if one.kernel in {k.name for k in kept}),
            instructions=tuple(self.out),
            peak_bytes=self.meter.peak(),
        )

    # Memory

    def _begins(self) -> dict[int, list[Storage]]:
        """Return what is to be allocated before each step."""
        found: dict[int, list[Storage]] = {}
        for number, step in enumerate(self.schedule.steps):
            if not (isinstance(step, KernelCall) or (isinstance(step, Extern) and can_take_out(step))):
                continue
            for name in list_step_definitions(step, self.roles):
                storage = self.table.storage(name)
                if storage.root.name == name and storage.owner == "planned" and storage.first == number:
                    found.setdefault(storage.begin, []).append(storage)
        return found

    def _allocate(self, number: int, step: Step, wanted: Sequence[Storage]) -> None:
        """Provide memory for what is `wanted`, then give back what died before and was not taken over."""
        inplace = self._inplace_candidates(step) if self.options.reuse else {}
        reusable = self._reusable_by_size() if self.options.reuse and wanted else {}
        instructions: list[Instruction] = []
        fresh: list[Storage] = []
        for storage in wanted:
            source = self._take_inplace(storage, inplace, number)
            if source is not None:
                # the kernel is called with both names, so the old one stays valid until after the launch
                instructions.append(Reinterpret(buffer=storage.root, source=source, offset=_ZERO))
                self.taken_over.append(source)
                continue
            source = self._take_dying(storage, reusable)
            if source is not None:
                instructions.append(Reuse(buffer=storage.root, source=source))
            else:
                instructions.append(Alloc(buffer=storage.root))
                fresh.append(storage)
        self._release()
        # what died is given back first, so it does not count beside what is new
        for storage in fresh:
            self.meter.grow(storage.size_bytes)
        self.out.extend(instructions)

    def _release(self) -> None:
        names: list[str] = []
        for position in self.dying:
            if position in self.reused:
                continue
            storage = self.table.storages[position]
            names.extend(storage.names)
            if storage.owner in ("planned", "fresh", "callee") and position not in self.donated:
                self.meter.shrink(storage.size_bytes)
        if names:
            self.out.append(Free(names=tuple(names)))
        self.dying = []

    def _reusable_by_size(self) -> dict[_DeviceAndSize, deque[int]]:
        """Positions of storages that died and may be handed on, by device and size, first one first."""
        found: dict[_DeviceAndSize, deque[int]] = {}
        for position in self.dying:
            dead = self.table.storages[position]
            if dead.reusable:
                found.setdefault(_device_and_size(dead), deque()).append(position)
        return found

    def _take_dying(self, storage: Storage, reusable: Mapping[_DeviceAndSize, deque[int]]) -> str | None:
        positions = reusable.get(_device_and_size(storage))
        if not positions:
            return None
        position = positions.popleft()
        dead = self.table.storages[position]
        self._hand_on(position, storage)
        self._free_views(dead)
        return dead.root.name

    def _take_inplace(
        self, storage: Storage, inplace: Mapping[str, tuple[str, ...]], number: int
    ) -> str | None:
        for source in inplace.get(storage.root.name, ()):
            position = self.table.positions[source]
            dead = self.table.storages[position]
            if (
                dead.reusable
                and dead.last == number
                and dead.root.name == source
                and len(dead.names) == 1
                and position not in self.reused
                and _device_and_size(dead) == _device_and_size(storage)
            ):
                self._hand_on(position, storage)
                return source
        return None

    def _hand_on(self, position: int, to: Storage) -> None:
        """`to` has the memory of the storage at `position` from now on."""
        self.reused.add(position)
        if position in self.donated:
            self.donated.add(self.table.positions[to.root.name])

    def _free_views(self, storage: Storage) -> None:
        others = storage.names[1:]
        if others:
            self.out.append(Free(names=others))

    def _inplace_candidates(self, step: Step) -> dict[str, tuple[str, ...]]:
        if not isinstance(step, KernelCall):
            return {}
        kernel = self.kernels[step.kernel]
        actual = {arg.name: name for arg, name in zip(kernel.args, step.args, strict=True)}
        uses = Counter(step.args)
        found: dict[str, tuple[str, ...]] = {}
        for out_arg, in_arg in kernel.aliasing:
            source = actual[in_arg]
            # a buffer passed twice may be read through the other argument after it was overwritten
            if uses[source] == 1:
                found[actual[out_arg]] = (*found.get(actual[out_arg], ()), source)
        return found

    # Work

    def _perform(self, step: Step) -> None:
        match step:
            case KernelCall():
                # its outputs have no elements; their memory is none, so nothing may be written to it
                if not _has_no_points(self.kernels[step.kernel]):
                    self.out.append(_launch(step))
                if self.taken_over:
                    self.out.append(Free(names=tuple(self.taken_over)))
                    self.taken_over = []
                for new, old in step.into:
                    self._rename(new, old)
            case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
                self.out.append(step)
            case View():
                self.out.append(
                    Reinterpret(
                        buffer=step.output, source=step.source, offset=step.offset, origins=step.origins
                    )
                )
            case Extern():
                self._extern(step)
            case AssertSize():
                self.out.append(
                    CheckSize(
                        lhs=step.lhs,
                        relation=step.relation,
                        rhs=step.rhs,
                        message=step.message,
                        origins=step.origins,
                    )
                )
            case Cond():
                self._grow_callee(step.outputs)
                self.out.append(
                    CondCall(
                        predicate=step.predicate,
                        then=self._compile_region(step.then),
                        otherwise=self._compile_region(step.otherwise),
                        operands=step.operands,
                        outputs=step.outputs,
                        origins=step.origins,
                    )
                )
            case Loop():
                self._grow_callee(step.outputs)
                self.out.append(
                    LoopCall(
                        body=self._compile_region(step.body),
                        condition=None if step.condition is None else self._compile_region(step.condition),
                        rounds=step.rounds,
                        carried=step.carried,
                        extra=step.extra,
                        outputs=step.outputs,
                        origins=step.origins,
                    )
                )
                for mutation in step.mutates:
                    self._rename(mutation.output.name, mutation.source)

    def _extern(self, step: Extern) -> None:
        if can_take_out(step):
            names = tuple(o.name for o in step.outputs if isinstance(o, Buffer))
            call = ExternCall(
                target=step.out_overload,
                args=step.args,
                kwargs=step.kwargs,
                out=tuple(zip(step.out_names, names, strict=True)),
                single=step.single,
                in_flight=step.in_flight,
                until=step.until,
                waits=step.waits,
                implements=step.implements,
                origins=step.origins,
            )
        else:
            shared = {number for number, _ in step.aliases}
            own = tuple(k for k, o in enumerate(step.outputs) if isinstance(o, Buffer) and k not in shared)
            self._grow_callee(tuple(step.outputs[k] for k in own))
            aligned = tuple(k for k in own if _may_be_copied(step.outputs[k], step))
            call = ExternCall(
                target=step.target,
                args=step.args,
                kwargs=step.kwargs,
                outputs=step.outputs,
                single=step.single,
                paths=step.paths,
                binds=step.binds,
                aligned=aligned,
                in_flight=step.in_flight,
                until=step.until,
                waits=step.waits,
                implements=step.implements,
                origins=step.origins,
            )
        self.out.append(call)
        for mutation in step.mutates:
            self._rename(mutation.output.name, mutation.source)

    def _rename(self, new: str, old: str) -> None:
        """After memory was overwritten it goes by a new name: a view of the old one at offset 0."""
        buffer = self.table.buffers[new]
        self.out.append(Reinterpret(buffer=buffer, source=old, offset=_ZERO))

    def _grow_callee(self, outputs: tuple[Buffer | SymbolOutput | None, ...]) -> None:
        for output in outputs:
            if isinstance(output, Buffer):
                self.meter.grow(self.table.storage(output.name).size_bytes)

    def _compile_region(self, graph: Graph) -> Program:
        if self.region is None:
            raise ScheduleError(
                "nested-graph", f"@{graph.name} is a nested graph and plan() was given no `region`"
            )
        return self.region(graph)


def _may_be_copied(output: Buffer | SymbolOutput | None, step: Extern) -> bool:
    """Tell if a kernel can copy the result, should it lie where kernels don't take it."""
    # only operators read quantised tensors, and only operators copy them; what is in flight is not there yet
    return isinstance(output, Buffer) and not output.dtype.is_quantized and output.name not in step.in_flight


def _launch(step: KernelCall) -> Launch:
    """Arguments that are defined by the launch itself as new names for old memory are passed under the old
    name.
    """
    into = dict(step.into)
    args = tuple(into.get(name, name) for name in step.args)
    return Launch(kernel=step.kernel, args=args, sizes=step.sizes, stream=step.stream, origins=step.origins)


def _has_no_points(kernel: Kernel) -> bool:
    return any(r.kind == "parallel" and r.symbol.extent is _ZERO for r in kernel.ranges)


def _device_and_size(storage: Storage) -> _DeviceAndSize:
    """Return the device and the bytes of a storage; expressions of one size are one object."""
    return storage.root.device, storage.size_bytes
