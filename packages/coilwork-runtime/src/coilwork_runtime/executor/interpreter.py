"""Running a program in Python: each instruction becomes a small function once, and a call goes through them.

It reads the bytes that the native executor reads, and does what the readable module does, without its text.
`frame_layout.py` says where in a call's list an instruction finds things.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_runtime.executor.call_plans import require_operator
from coilwork_runtime.executor.frame_layout import Fetch, Frame, FrameLayout, fetch, is_fixed
from coilwork_runtime.executor.program_reader import (
    CONSTANT,
    Argument,
    Code,
    Item,
    Kind,
    Layout,
    Nested,
    Part,
    RecordedCall,
    Size,
    Slot,
    Step,
    check_replacements,
    read_program,
)
from coilwork_runtime.executor.region_replay import RegionReplay, wrap_launchers
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.layout_checks import (
    ALIGNMENT_BYTES,
    LayoutMemory,
    check_aligned_layout,
    check_layout,
    check_rank,
    empty_pool,
    empty_strided,
    empty_strided_cpu,
    empty_strided_cuda,
    ensure_aligned,
    ensure_aligned_layout,
    ensure_layout,
    find_pool_part,
    pool_view,
    reinterpret,
    reinterpret_dtype,
)
from coilwork_runtime.streams import CallStreams
from coilwork_runtime.torch_compat import get_direct_operator

Action = Callable[[Frame], None]
Call = Callable[[list[Any]], Sequence[Any]]

# By the number of an operation, and of a relation, in the bytes.
_ARITHMETIC: Final[Sequence[Callable[[int, int], int]]] = (
    operator.add,
    operator.mul,
    operator.floordiv,
    operator.mod,
    builtins.min,
    builtins.max,
)
_RELATIONS: Final[Sequence[Callable[[int, int], bool]]] = (operator.eq, operator.ne, operator.lt, operator.le)
# By type of device, what allocates there without asking the dispatcher, and if it takes a number.
_QUICK_ALLOCATIONS: Final[Mapping[str, tuple[Callable[..., torch.Tensor], bool]]] = MappingProxyType(
    {"cpu": (empty_strided_cpu, False), "cuda": (empty_strided_cuda, True)}
)


def load_interpreted(
    data: bytes,
    *,
    launchers: Mapping[str, Callable[..., Any]],
    constants: Mapping[str, torch.Tensor],
    replacements: Mapping[str, Call] = MappingProxyType({}),
    regions: RegionReplay | None = None,
) -> Call:
    """Return the program in `data`, as `coilwork_wrapper.native` writes it: a callable that takes one list,
    which it empties.

    `launchers` has one for each kernel by name, `constants` the tensors by key. `replacements` run in place
    of subprograms, by their names: each takes one list, of the operands and then the sizes that the part is
    given, empties it, and returns the results. Launches in capture regions go to `regions`.

    Raises:
        ProgramBytesError: the bytes are damaged, of another version, or call an operator that there is not.
        KeyError: a kernel or constant is missing.
        ValueError: a replacement is for no part of the program.
    """
    tables, parts = read_program(data)
    check_replacements(replacements, parts)
    bound = wrap_launchers(launchers, regions)
    calls = {name: one.call if isinstance(one, Launcher) else one for name, one in bound.items()}
    tensors = [constants[key] for key in tables.keys]
    runs: list[Call] = []
    for number, part in enumerate(parts):
        run = _Maker(part, calls, tensors, runs, is_nested=number > 0, regions=regions).make()
        runs.append(replacements.get(part.name, run))
    return runs[0]


class _Maker:
    """Makes the functions of one part. `runs` are those of all parts, once they are made."""

    def __init__(
        self,
        part: Part,
        launchers: Mapping[str, Callable[..., Any]],
        constants: Sequence[torch.Tensor],
        runs: Sequence[Call],
        *,
        is_nested: bool,
        regions: RegionReplay | None,
    ) -> None:
        self._part = part
        has_regions = any(step.code is Code.REGION for step in part.steps)
        self._regions = regions if has_regions else None
        self._launchers = launchers
        self._runs = runs
        self._frame = FrameLayout(part, constants, is_nested=is_nested)
        self._slots, self._registers = self._frame.slots, self._frame.registers
        self._ranked: set[int] = set()

    def make(self) -> Call:
        """Return the callable of the part: takes one list, which it empties."""
        *steps, last = self._part.steps
        # what alone is freed at the end goes with the frame; several are freed in their order
        if steps and steps[-1].code is Code.FREE and len(steps[-1].operands[0]) == 1:
            if len(steps) == 1 or steps[-2].code is not Code.FREE:
                steps.pop()
        first = len(list(takewhile(self._is_fixed_check, steps)))
        actions = [self._check_at_once(steps[:first])] if first else []
        places = ["check inputs"] if first else []
        rest = deque(steps[first:])
        while rest:
            step = rest.popleft()
            action = self._action(step, rest)
            if action is not None:
                actions.append(action)
                places.append(step.place)
        results = fetch([self._frame.find(*value) for value in last.operands[0]])
        call = self._call(tuple(actions), places, results)
        if self._regions is not None:
            call = self._end_regions(call, self._regions)
        return self._give_streams(call) if self._frame.has_streams else call

    def _call(self, actions: Sequence[Action], places: Sequence[str], results: Fetch) -> Call:
        kept, given, name = self._frame.kept, self._frame.first_kept, self._part.name

        def call(args: list[Any]) -> Sequence[Any]:
            frame = [*args, *kept]
            if len(args) != given:
                raise ValueError(f"program {name} takes {given} inputs, and is given {len(args)}")
            args.clear()
            left = iter(actions)
            try:
                for action in left:
                    action(frame)
            except BaseException as error:
                done = len(actions) - operator.length_hint(left) - 1
                error.add_note(f"step {done} of program {name}: {places[done]}")
                raise
            return results(frame)

        return call

    def _give_streams(self, call: Call) -> Call:
        """`call` with a table of the streams of each call, which is closed behind it."""

        def call_with_streams(args: list[Any]) -> Sequence[Any]:
            streams = CallStreams()
            args.append(streams)
            try:
                return call(args)
            finally:
                streams.close()

        return call_with_streams

    def _end_regions(self, call: Call, regions: RegionReplay) -> Call:
        """`call`, behind which nothing is put off, whatever happens in it."""

        def call_with_regions(args: list[Any]) -> Sequence[Any]:
            try:
                return call(args)
            finally:
                regions.end()

        return call_with_regions

    def _is_fixed_check(self, step: Step) -> bool:
        return step.code is Code.CHECK and is_fixed(step.operands[1])

    def _check_at_once(self, checks: Sequence[Step]) -> Action:
        """Checks of inputs that are recognised, all in one go, if they are like those of an earlier call."""
        asserted = [step for step in checks if step.operands[3]]
        single = [self._check(*step.operands[:2], is_aligned=False, is_asserted=True) for step in asserted]
        get = fetch([self._slots[step.operands[0]] for step in asserted])
        on_multiples = [self._slots[step.operands[0]] for step in checks if step.operands[2]]
        get_aligned = fetch(on_multiples)
        known = LayoutMemory()

        def check(frame: Frame) -> None:
            values = get(frame)
            if asserted and not known.match(*values):
                for one in single:
                    one(frame)
                known.learn(*values)
            if on_multiples:
                values = get_aligned(frame)
                for value in values:
                    if value.data_ptr() % ALIGNMENT_BYTES:
                        break
                else:
                    return
                for place, value in zip(on_multiples, ensure_aligned(*values), strict=True):
                    frame[place] = value

        return check

    def _action(self, step: Step, rest: deque[Step]) -> Action | None:
        """Return the action of `step` and of the steps that it takes from `rest`; None if there is nothing to
        do.
        """
        operands = step.operands
        match step.code:
            case Code.COMPUTE:
                return self._compute(operands[0])
            case Code.BIND:
                return self._bind(*operands)
            case Code.CHECK:
                return self._check(*operands[:2], is_aligned=operands[2], is_asserted=operands[3])
            case Code.ALLOC:
                return self._allocate(operands[0], operands[1])
            case Code.POOL:
                return self._allocate_pool(*operands)
            case Code.CARVE:
                return self._carve(*operands[:4])
            case Code.REUSE | Code.VIEW:
                return self._see(*operands[:5], ends=step.code is Code.REUSE)
            case Code.LAUNCH:
                return self._launch(*operands, freed=self._take_single_free(rest))
            case Code.CALL:
                return self._make_call(*operands)
            case Code.REQUIRE:
                return self._require(*operands)
            case Code.COND:
                return self._choose(*operands)
            case Code.WHILE:
                return self._loop(*operands)
            case Code.REPEAT:
                return self._repeat(*operands)
            case Code.FREE:
                return self._free(operands[0])
            case Code.SETTLE:
                return self._settle(*operands)
            case Code.STREAM:
                return self._order_streams(*operands)
            case Code.RUN:
                return self._run(*operands)
            case _:
                # regions say what a device may replay
                return self._bound_region(*operands)

    def _compute(self, steps: Sequence[tuple[int, int, int, int]]) -> Action:
        places = self._registers
        laid_out = tuple(
            (_ARITHMETIC[code - 1], places[target], places[left], places[right])
            for code, target, left, right in steps
        )

        def compute(frame: Frame) -> None:
            for operation, target, left, right in laid_out:
                frame[target] = operation(frame[left], frame[right])

        return compute

    def _bind(self, register: int, slot: int, dim: int, is_stride: bool, rank: int) -> Action:
        target, source, name = self._registers[register], self._slots[slot], self._part.slots[slot]
        read = torch.Tensor.stride if is_stride else torch.Tensor.size
        is_checked = rank >= 0 and slot not in self._ranked
        self._ranked.add(slot)

        def bind(frame: Frame) -> None:
            frame[target] = read(frame[source], dim)

        def check_and_bind(frame: Frame) -> None:
            check_rank(frame[source], name, rank)
            bind(frame)

        return check_and_bind if is_checked else bind

    def _check(self, slot: int, layout: Layout, *, is_aligned: bool, is_asserted: bool) -> Action:
        place, name, dtype = self._slots[slot], self._part.slots[slot], layout.dtype
        sizes, strides = self._frame.fetch_layout(layout)

        def check(frame: Frame) -> None:
            check_layout(frame[place], name, dtype, layout.device, sizes(frame), strides(frame))

        def check_aligned(frame: Frame) -> None:
            value = frame[place]
            frame[place] = check_aligned_layout(
                value, name, dtype, layout.device, sizes(frame), strides(frame)
            )

        def align(frame: Frame) -> None:
            (frame[place],) = ensure_aligned(frame[place])

        if not is_asserted:
            return align
        return check_aligned if is_aligned else check

    def _allocate(self, slot: int, layout: Layout) -> Action:
        place, dtype = self._slots[slot], layout.dtype
        allocate, where = _find_allocator(layout.device)
        if is_fixed(layout):
            make = functools.partial(allocate, *self._frame.read_fixed_layout(layout), dtype, *where)

            def allocate_fixed(frame: Frame) -> None:
                frame[place] = make()

            return allocate_fixed
        sizes, strides = self._frame.fetch_layout(layout)

        def allocate_sized(frame: Frame) -> None:
            frame[place] = allocate(sizes(frame), strides(frame), dtype, *where)

        return allocate_sized

    def _allocate_pool(self, slot: int, layout: Layout) -> Action:
        place, size, device = self._slots[slot], self._registers[layout.sizes[0]], layout.device

        def allocate_pool(frame: Frame) -> None:
            frame[place] = empty_pool(frame[size], device)

        return allocate_pool

    def _carve(self, slot: int, pool_slot: int, offset_register: int, layout: Layout) -> Action:
        place, pool, offset = self._slots[slot], self._slots[pool_slot], self._registers[offset_register]
        dtype = layout.dtype
        if is_fixed(layout) and offset_register & CONSTANT:
            start = self._frame.kept[offset - self._frame.first_kept]
            see = find_pool_part(start, *self._frame.read_fixed_layout(layout), dtype)

            def carve_fixed(frame: Frame) -> None:
                frame[place] = see(frame[pool])

            return carve_fixed
        sizes, strides = self._frame.fetch_layout(layout)

        def carve(frame: Frame) -> None:
            frame[place] = pool_view(frame[pool], frame[offset], sizes(frame), strides(frame), dtype)

        return carve

    def _see(
        self, slot: int, source_slot: int, kind: int, register: int, layout: Layout, *, ends: bool
    ) -> Action:
        """Memory seen anew; the source is gone behind it if it `ends`."""
        place, source, offset = self._slots[slot], self._slots[source_slot], self._registers[register]
        dtype = layout.dtype
        sizes, strides = self._frame.fetch_layout(layout)
        fixed_sizes, fixed_strides = self._frame.read_fixed_layout(layout) if is_fixed(layout) else ((), ())

        def see_fixed(frame: Frame) -> None:
            frame[place] = reinterpret(frame[source], fixed_sizes, fixed_strides, frame[offset])

        def see_same(frame: Frame) -> None:
            frame[place] = frame[source]

        def see_layout(frame: Frame) -> None:
            frame[place] = reinterpret(frame[source], sizes(frame), strides(frame), frame[offset])

        def see_bits(frame: Frame) -> None:
            frame[place] = reinterpret_dtype(
                frame[source], sizes(frame), strides(frame), dtype, frame[offset]
            )

        see = (see_same, see_fixed if is_fixed(layout) else see_layout, see_bits)[kind]
        if not ends or source_slot in self._frame.constants:
            return see

        def see_last(frame: Frame) -> None:
            see(frame)
            frame[source] = None

        return see_last

    def _launch(
        self, kernel: str, slots: Sequence[int], registers: Sequence[int], *, freed: int | None
    ) -> Action:
        launch = self._launchers[kernel]
        places = [self._slots[slot] for slot in slots] + [self._registers[number] for number in registers]
        get = fetch(places)
        if freed is None:
            return lambda frame: launch(*get(frame))

        def launch_and_free(frame: Frame) -> None:
            launch(*get(frame))
            frame[freed] = None

        return launch_and_free

    def _settle_before(self, run: Callable[[Frame], Any]) -> Callable[[Frame], Any]:
        """`run`, before which all launches so far are on their stream."""
        regions = self._regions
        if regions is None:
            return run

        def settle_and_run(frame: Frame) -> Any:
            regions.settle()
            return run(frame)

        return settle_and_run

    def _bound_region(self, begins: int) -> Action | None:
        regions = self._regions
        if regions is None:
            return None
        pass_on = regions.begin if begins else regions.end
        return lambda frame: pass_on()

    def _take_single_free(self, rest: deque[Step]) -> int | None:
        """Return the place that the next step frees, if that is all it does; it is taken away."""
        if self._regions is not None or not rest or rest[0].code is not Code.FREE:
            return None
        slots = rest[0].operands[0]
        if len(slots) != 1 or slots[0] in self._frame.constants:
            return None
        rest.popleft()
        return self._slots[slots[0]]

    def _make_call(
        self,
        call: RecordedCall,
        outputs: Sequence[tuple[Kind, int]],
        binds: Sequence[tuple[int, int, int]],
    ) -> Action:
        run = self._settle_before(self._operator(call))
        wanted = [
            (k, self._frame.find(*value)) for k, value in enumerate(outputs) if value[0] is not Kind.NOTHING
        ]
        if not wanted:
            # what an operator returns that writes into its operands is not looked at
            action: Action = run
        elif call.single:
            ((_, place),) = wanted

            def call_for_one(frame: Frame) -> None:
                frame[place] = run(frame)

            action = call_for_one
        else:
            paths = [(call.paths[k] if call.paths else (k,), place) for k, place in wanted]

            def call_for_many(frame: Frame) -> None:
                results = run(frame)
                for path, place in paths:
                    frame[place] = functools.reduce(operator.getitem, path, results)

            action = call_for_many
        if not binds:
            return action
        bound = [(self._registers[number], self._frame.find(*outputs[k]), dim) for number, k, dim in binds]

        def call_and_bind(frame: Frame) -> None:
            action(frame)
            for register, place, dim in bound:
                frame[register] = frame[place].size(dim)

        return call_and_bind

    def _operator(self, call: RecordedCall) -> Callable[[Frame], Any]:
        """Return a function that calls the operator of `call`."""
        run, get = _find_direct(call.target), self._arguments(call.args)
        if not call.kwargs:
            return lambda frame: run(*get(frame))
        if list(call.kwargs) == ["out"] and isinstance(call.kwargs["out"], Slot):
            out = self._slots[call.kwargs["out"].number]
            return lambda frame: run(*get(frame), out=frame[out])
        named = {name: self._argument(value) for name, value in call.kwargs.items()}
        readers = [(name, self._read(one) if isinstance(one, int) else one) for name, one in named.items()]
        return lambda frame: run(*get(frame), **{name: read(frame) for name, read in readers})

    def _arguments(self, values: Sequence[Argument]) -> Fetch:
        """Return a function that gets the arguments `values`."""
        arguments = [self._argument(value) for value in values]
        places = [one for one in arguments if isinstance(one, int)]
        if len(places) == len(arguments):
            return fetch(places)
        readers = [self._read(one) if isinstance(one, int) else one for one in arguments]
        return lambda frame: [read(frame) for read in readers]

    def _argument(self, value: Argument) -> int | Callable[[Frame], Any]:
        """Return the place of an argument in the frame, or a function that makes it."""
        match value:
            case Slot():
                return self._slots[value.number]
            case Size():
                return self._registers[value.number]
            case Item():
                place = self._slots[value.slot.number]
                return lambda frame: frame[place].item()
            case list():
                get = self._arguments(value)
                return lambda frame: list(get(frame))
            case _:
                return self._frame.keep(value)

    def _read(self, place: int) -> Callable[[Frame], Any]:
        return operator.itemgetter(place)

    def _require(self, left: int, relation: int, right: int, message: str) -> Action:
        holds, first, second = _RELATIONS[relation], self._registers[left], self._registers[right]

        def require(frame: Frame) -> None:
            if not holds(frame[first], frame[second]):
                raise RuntimeError(message)

        return require

    def _run_nested(self, nested: Nested, carried: Sequence[int] = ()) -> Callable[[Frame], Sequence[Any]]:
        """Return a function that runs a nested program; `carried` are the places of its first operands, if
        they change.
        """
        operands = nested.operands[len(carried) :]
        places = [
            *carried,
            *((self._registers if is_number else self._slots)[n] for is_number, n in operands),
        ]
        get = fetch([*places, *(self._registers[number] for number in nested.sizes)])
        runs, part = self._runs, nested.part
        return lambda frame: runs[part](list(get(frame)))

    def _choose(
        self, slot: int, then: Nested, otherwise: Nested, outputs: Sequence[tuple[int, Layout]]
    ) -> Action:
        predicate, places = self._slots[slot], [self._slots[one] for one, _ in outputs]
        run_then, run_otherwise = self._run_nested(then), self._run_nested(otherwise)
        settle = self._settle_own(outputs)

        def choose(frame: Frame) -> None:
            results = run_then(frame) if frame[predicate].item() else run_otherwise(frame)
            for place, value in zip(places, results, strict=True):
                frame[place] = value
            del results
            settle(frame)

        return choose

    def _loop(self, condition: Nested, body: Nested, outputs: Sequence[tuple[int, Layout]]) -> Action:
        places = [self._slots[slot] for slot, _ in outputs]
        first = [self._slots[number] for _, number in body.operands[: len(places)]]
        decide, step = self._run_nested(condition, places), self._run_nested(body, places)
        settle = self._settle_own(outputs)

        def loop(frame: Frame) -> None:
            values: Sequence[Any] = [frame[place] for place in first]
            while True:
                for place, value in zip(places, values, strict=True):
                    frame[place] = value
                if not decide(frame)[0].item():
                    break
                values = step(frame)
            del values
            settle(frame)

        return loop

    def _repeat(self, count: int, number: int, body: Nested, outputs: Sequence[tuple[int, Layout]]) -> Action:
        """Return a part that runs so many times, and is told the number of the round."""
        places = [self._slots[slot] for slot, _ in outputs]
        first = [self._slots[operand] for _, operand in body.operands[: len(places)]]
        rounds, at, step = self._registers[count], self._registers[number], self._run_nested(body, places)
        settle = self._settle_own(outputs)

        def repeat(frame: Frame) -> None:
            values: Sequence[Any] = [frame[place] for place in first]
            for place, value in zip(places, values, strict=True):
                frame[place] = value
            for round_number in range(frame[rounds]):
                frame[at] = round_number
                values = step(frame)
                for place, value in zip(places, values, strict=True):
                    frame[place] = value
            del values
            settle(frame)

        return repeat

    def _run(self, nested: Nested, outputs: Sequence[tuple[int, Layout]]) -> Action:
        """Return a subprogram, whose results are memory of its own."""
        run, places = self._run_nested(nested), [self._slots[slot] for slot, _ in outputs]
        settled = [self._settle(slot, layout, False) for slot, layout in outputs]

        def run_part(frame: Frame) -> None:
            results = run(frame)
            for place, value in zip(places, results, strict=True):
                frame[place] = value
            del results
            for settle in settled:
                settle(frame)

        return run_part

    def _settle_own(self, outputs: Sequence[tuple[int, Layout]]) -> Action:
        """Results of a nested program in memory of their own: it may return its operand, or one
        tensor twice.
        """
        laid_out = [
            (self._slots[slot], layout.dtype, *self._frame.fetch_layout(layout)) for slot, layout in outputs
        ]

        def settle(frame: Frame) -> None:
            for place, dtype, sizes, strides in laid_out:
                frame[place] = ensure_layout(frame[place].clone(), sizes(frame), strides(frame), dtype)

        return settle

    def _settle(self, slot: int, layout: Layout, is_aligned: bool) -> Action:
        place, dtype = self._slots[slot], layout.dtype
        ensure = ensure_aligned_layout if is_aligned else ensure_layout
        if is_fixed(layout):
            fixed_sizes, fixed_strides = self._frame.read_fixed_layout(layout)

            def settle_fixed(frame: Frame) -> None:
                frame[place] = ensure(frame[place], fixed_sizes, fixed_strides, dtype)

            return settle_fixed
        sizes, strides = self._frame.fetch_layout(layout)

        def settle(frame: Frame) -> None:
            frame[place] = ensure(frame[place], sizes(frame), strides(frame), dtype)

        return settle

    def _free(self, slots: Sequence[int]) -> Action | None:
        # constants outlive the call
        places = [self._slots[slot] for slot in slots if slot not in self._frame.constants]
        regions = self._regions
        if places and regions is not None:
            pass_on = regions.free

            def free_in_region(frame: Frame) -> None:
                for place in places:
                    value, frame[place] = frame[place], None
                    if isinstance(value, torch.Tensor):
                        pass_on(value.untyped_storage().nbytes())

            return free_in_region
        if len(places) == 1:
            (single,) = places

            def free_one(frame: Frame) -> None:
                frame[single] = None

            return free_one

        def free(frame: Frame) -> None:
            for place in places:
                frame[place] = None

        return free if places else None

    def _order_streams(self, what: int, number: int, other: int, device: str) -> Action:
        table = self._frame.given

        def order(frame: Frame) -> None:
            frame[table].order(what, number, other, device)

        return order


def _find_direct(target: str) -> Callable[..., Any]:
    """Return an operator overload, without the frame that torch's object for it costs each call.

    Raises:
        ProgramBytesError: there is none of this name.
    """
    return get_direct_operator(require_operator(target))


def _find_allocator(device: str) -> tuple[Callable[..., torch.Tensor], tuple[object, ...]]:
    """Return the allocator of `device`, and its arguments behind sizes, strides and element type."""
    kind, _, number = device.partition(":")
    quick, is_numbered = _QUICK_ALLOCATIONS.get(kind, (None, False))
    if quick is None:
        return empty_strided, (device,)
    return quick, ((int(number or 0),) if is_numbered else ())
