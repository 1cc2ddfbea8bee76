"""Regions of a program: their boundaries, what a driver may capture or call, and the program without them.

    region nested @layer (%x, %w) leaves (%y) {     run @layer (%x, %w) defines (%y: f32[4, 4])
      alloc %y: f32[4, 4]                       →
      launch @relu_mm (%x, %w, %y)
    }

`make_region` draws the boundary of a body, `inline_regions` drops regions, and `outline_regions` turns nested
and partition regions into calls of subprograms. Nested regions that differ only in names share one
subprogram, which a driver has once however often it is run. A partition has one of its own, which a driver
may replace by its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    GraphOutput,
    Item,
    ListValue,
    Ref,
    SymbolOutput,
    list_references,
)
from coilwork_ir.index import Expr
from coilwork_ir.program.nodes import (
    Alloc,
    AllocPool,
    BindSymbol,
    CheckLayout,
    CheckSize,
    Comment,
    CondCall,
    ExternCall,
    Free,
    Instruction,
    Launch,
    LoopCall,
    PoolView,
    Program,
    Region,
    RegionKind,
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.walk import (
    index_buffers,
    iterate_bound_symbols,
    list_defined_buffers,
    list_defined_values,
    list_distinct_programs,
    list_used_symbols,
)
from coilwork_ir.streams import OWN, Copy, ForkStream, JoinStream, RecordEvent, WaitEvent, is_host

# ---- Boundaries ----


def make_region(kind: RegionKind, body: Sequence[Instruction], why: str = "", *, name: str = "") -> Region:
    """Return the region of `body`, with its boundary."""
    inputs: dict[str, None] = {}
    alive: dict[str, None] = {}
    defined: set[str] = set()
    symbols: dict[str, Expr] = {}
    bound: set[str] = set()
    for instruction in body:
        for name in list_used_names(instruction):
            if name not in defined:
                inputs[name] = None
        # the results of a call may have the sizes that it binds
        bound.update(symbol.name for symbol in iterate_bound_symbols(instruction))
        for symbol in list_used_symbols(instruction):
            if symbol.name not in bound:
                symbols.setdefault(symbol.name, symbol)
        names = [
            *(buffer.name for buffer in list_defined_buffers(instruction)),
            *list_defined_values(instruction),
        ]
        defined.update(names)
        alive.update(dict.fromkeys(names))
        for name in list_ended_names(instruction):
            alive.pop(name, None)
    return Region(
        kind=kind,
        inputs=tuple(inputs),
        outputs=tuple(alive),
        symbols=tuple(symbols.values()),
        body=tuple(body),
        why=why,
        name=name,
    )


def list_used_names(instruction: Instruction) -> tuple[str, ...]:
    """Buffers, pools, streams and events that `instruction` uses, what it ends included."""
    match instruction:
        case BindSymbol() | CheckLayout():
            return (instruction.buffer,)
        case PoolView():
            return (instruction.pool,)
        case Reuse() | Reinterpret():
            return (instruction.source,)
        case Launch():
            return (*instruction.args, *_list_other_stream(instruction.stream))
        case ExternCall():
            values = (*instruction.args, *(value for _, value in instruction.kwargs))
            into = tuple(name for _, name in instruction.out)
            given = (*_list_references(values), *into, *instruction.waits)
            return (*given, *_list_other_stream(instruction.stream))
        case CondCall():
            return (instruction.predicate, *_list_references(instruction.operands))
        case LoopCall():
            return _list_references((*instruction.carried, *instruction.extra))
        case SubprogramCall():
            return _list_references(instruction.operands)
        case Copy():
            return (instruction.source, instruction.target, *_list_other_stream(instruction.stream))
        case ForkStream():
            return _list_other_stream(instruction.after)
        case RecordEvent():
            return _list_other_stream(instruction.stream)
        case WaitEvent():
            return (instruction.event, *_list_other_stream(instruction.stream or OWN))
        case JoinStream():
            return (instruction.stream, *_list_other_stream(instruction.into))
        case Region():
            return instruction.inputs
        case Free():
            return instruction.names
        case Return():
            return _list_references(instruction.values)
        case Alloc() | AllocPool() | CheckSize() | Comment():
            return ()


def list_ended_names(instruction: Instruction) -> tuple[str, ...]:
    """Names that are no more behind `instruction`."""
    match instruction:
        case Free():
            return instruction.names
        case Reuse():
            return (instruction.source,)
        case JoinStream():
            return (instruction.stream,)
        case Region():
            return tuple(name for inner in instruction.body for name in list_ended_names(inner))
        case _:
            return ()


def _list_other_stream(stream: str) -> tuple[str, ...]:
    return () if stream == OWN else (stream,)


def _list_references(values: Sequence[Argument]) -> tuple[str, ...]:
    return tuple(name for value in values for name in list_references(value))


def find_capture_refusal(instruction: Instruction, buffers: Mapping[str, Buffer], device: str) -> str:
    """Find why `instruction` cannot be in a capture region of `device`, which a driver replays; "" if it can.

    Memory is what it was when the region was captured, or the driver does the work piece by piece:
    allocations and views are fine anywhere.
    """
    match instruction:
        case Alloc() | AllocPool() | PoolView() | Reuse() | Reinterpret() | Free() | CheckSize() | Comment():
            return ""
        case Launch():
            return _find_other_place(instruction.args, instruction.stream, buffers, device)
        case ExternCall():
            if instruction.in_flight or instruction.waits:
                return f"{instruction.target} goes on behind its call"
            if instruction.binds or any(isinstance(output, SymbolOutput) for output in instruction.outputs):
                return f"sizes are read of what {instruction.target} returns"
            values = (*instruction.args, *(value for _, value in instruction.kwargs))
            if any(map(_reads_item, values)):
                return f"the host reads a number for {instruction.target}"
            if not instruction.implements:
                return f"torch does {instruction.target}"
            return _find_other_place(list_used_names(instruction), instruction.stream, buffers, device)
        case Copy():
            return "torch does a copy"
        case CondCall() | LoopCall():
            return "the host decides on a branch or loop"
        case SubprogramCall():
            return "a subprogram is called"
        case BindSymbol() | CheckLayout():
            return "an input is looked at"
        case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
            return "streams part or meet"
        case Region():
            return f"a {instruction.kind} region"
        case Return():
            return "the program ends"


def _find_other_place(names: Sequence[str], stream: str, buffers: Mapping[str, Buffer], device: str) -> str:
    if stream != OWN:
        return f"work on %{stream}"
    others = {buffers[name].device for name in names if name in buffers} - {device}
    return f"work on {min(others)}" if others else ""


def _reads_item(value: Argument) -> bool:
    match value:
        case Item():
            return True
        case ListValue(items):
            return any(map(_reads_item, items))
        case _:
            return False


def find_device(instruction: Instruction, buffers: Mapping[str, Buffer]) -> str:
    """Find the device that `instruction` gives work to, "" if it gives none or the host does it."""
    match instruction:
        case Launch(args=names):
            pass
        case ExternCall() if instruction.implements:
            names = list_used_names(instruction)
        case _:
            return ""
    devices = [buffers[name].device for name in names if name in buffers]
    return devices[0] if devices and not is_host(devices[0]) else ""


def inline_regions(program: Program, *, remarks: bool = False) -> Program:
    """`program`, and those nested in it, without regions: with what is in them, `remarks` say of which."""
    inlined = tuple(_inline_regions(program.instructions, remarks))
    same = len(inlined) == len(program.instructions)
    if same and all(a is b for a, b in zip(inlined, program.instructions, strict=True)):
        return program
    return replace(program, instructions=inlined)


def inline_nested_regions(instruction: Instruction, *, remarks: bool = False) -> Instruction:
    """`instruction`, with what is in regions of the programs nested in it in their places."""
    match instruction:
        case CondCall():
            then = inline_regions(instruction.then, remarks=remarks)
            otherwise = inline_regions(instruction.otherwise, remarks=remarks)
            if then is instruction.then and otherwise is instruction.otherwise:
                return instruction
            return replace(instruction, then=then, otherwise=otherwise)
        case LoopCall():
            asked = instruction.condition
            condition = None if asked is None else inline_regions(asked, remarks=remarks)
            body = inline_regions(instruction.body, remarks=remarks)
            if condition is asked and body is instruction.body:
                return instruction
            return replace(instruction, condition=condition, body=body)
        case SubprogramCall():
            inner = inline_regions(instruction.body, remarks=remarks)
            return instruction if inner is instruction.body else replace(instruction, body=inner)
        case _:
            return instruction


def flatten_regions(instructions: Sequence[Instruction]) -> Iterator[Instruction]:
    """`instructions`, those of regions in the places of their regions."""
    for instruction in instructions:
        if isinstance(instruction, Region):
            yield from flatten_regions(instruction.body)
        else:
            yield instruction


def _inline_regions(instructions: Sequence[Instruction], remarks: bool) -> Iterator[Instruction]:
    for instruction in instructions:
        if not isinstance(instruction, Region):
            yield inline_nested_regions(instruction, remarks=remarks)
            continue
        if remarks:
            why = f": {instruction.why}" if instruction.why else ""
            yield Comment(text=f"{instruction.kind} region{why}")
        yield from _inline_regions(instruction.body, remarks)


# ---- Subprograms ----


def find_outline_refusal(region: Region, known: Mapping[str, Buffer]) -> str:
    """Find why `region` cannot be a subprogram of its inputs; "" if it can. `known` are the buffers around
    it.
    """
    for name in region.inputs:
        if name not in known:
            return f"%{name}, of its surroundings, is no buffer"
    body = tuple(flatten_regions(region.body))
    own = {buffer.name for instruction in body for buffer in list_defined_buffers(instruction)}
    for instruction in body:
        match instruction:
            case CheckLayout() | BindSymbol():
                return "an input is looked at"
            case ExternCall() if instruction.in_flight or instruction.waits:
                return f"{instruction.target} goes on behind its call"
            case ExternCall() if instruction.binds or any(
                isinstance(output, SymbolOutput) for output in instruction.outputs
            ):
                return f"sizes are read of what {instruction.target} returns"
            case _:
                pass
        inside = own.union(*(list_defined_values(step) for step in body))
        for name in list_ended_names(instruction):
            if name not in inside:
                return f"%{name}, of its surroundings, ends in it"
    for name in region.outputs:
        if name not in own:
            return f"%{name}, which it leaves, is no buffer"
    return find_shared_result(body, region.outputs, region.inputs)


def find_shared_result(body: Sequence[Instruction], results: Sequence[str], given: Sequence[str]) -> str:
    """Find which of `results` is no memory of its own: of what is `given`, or of another one; "" if all
    are."""
    roots: dict[str, str] = {}
    for instruction in flatten_regions(body):
        match instruction:
            case Reuse(buffer=buffer, source=source) | Reinterpret(buffer=buffer, source=source):
                roots[buffer.name] = roots.get(source, source)
            case PoolView(buffer=buffer, pool=pool):
                roots[buffer.name] = pool
            case _:
                pass
    seen = {roots.get(name, name) for name in given}
    for name in results:
        root = roots.get(name, name)
        if root in seen:
            return f"%{name} shares memory with an operand, a constant or another result"
        seen.add(root)
    return ""


def outline_regions(program: Program) -> Program:
    """`program` with its nested and partition regions, and those of programs in it, as calls of
    subprograms."""
    if not any(
        region.kind != "capture"
        for part in list_distinct_programs(program)
        for region in _walk_regions(part.instructions)
    ):
        return program
    return _Outlining(taken={part.name for part in list_distinct_programs(program)}).convert(program)


def _walk_regions(instructions: Sequence[Instruction]) -> Iterator[Region]:
    for instruction in instructions:
        if isinstance(instruction, Region):
            yield instruction
            yield from _walk_regions(instruction.body)


@dataclass(slots=True, kw_only=True)
class _Outlining:
    """One walk: the names of programs so far, converted programs by identity, and bodies that are alike."""

    taken: set[str]
    done: dict[int, tuple[Program, Program]] = field(default_factory=dict)
    alike: dict[Program, Program] = field(default_factory=dict)

    def convert(self, program: Program) -> Program:
        known = self.done.get(id(program))
        if known is None:
            around = index_buffers(program)
            instructions = tuple(self._instruction(step, program, around) for step in program.instructions)
            # the first of the pair stays alive, so that its identity is no other's
            known = self.done[id(program)] = (program, replace(program, instructions=instructions))
        return known[1]

    def _instruction(
        self, instruction: Instruction, program: Program, around: Mapping[str, Buffer]
    ) -> Instruction:
        match instruction:
            case Region(kind="capture"):
                return instruction
            case Region():
                return self._call(instruction, program, around)
            case CondCall():
                then, otherwise = self.convert(instruction.then), self.convert(instruction.otherwise)
                return replace(instruction, then=then, otherwise=otherwise)
            case LoopCall():
                asked = instruction.condition
                condition = None if asked is None else self.convert(asked)
                return replace(instruction, condition=condition, body=self.convert(instruction.body))
            case SubprogramCall():
                return replace(instruction, body=self.convert(instruction.body))
            case _:
                return instruction

    def _call(self, region: Region, program: Program, around: Mapping[str, Buffer]) -> SubprogramCall:
        given = [around[name] for name in region.inputs]
        sizes = dict.fromkeys(region.symbols)
        for buffer in given:
            for expr in (*buffer.shape, *buffer.strides):
                sizes.update(dict.fromkeys(sorted(expr.free_symbols, key=lambda symbol: symbol.name)))
        launched = {step.kernel for step in flatten_regions(region.body) if isinstance(step, Launch)}
        body = Program(
            name="",
            symbols=tuple(sizes),
            inputs=(*given, *sizes),
            kernels=tuple(kernel for kernel in program.kernels if kernel.name in launched),
            proposals=tuple(proposal for proposal in program.proposals if proposal.kernel in launched),
            instructions=(*region.body, Return(values=tuple(map(Ref, region.outputs)))),
        )
        return SubprogramCall(
            body=self._partition(body, region)
            if region.kind == "partition"
            else self._share_subprogram(body, region),
            operands=(*map(Ref, region.inputs), *sizes),
            outputs=tuple(around[name] for name in region.outputs),
        )

    def _partition(self, body: Program, region: Region) -> Program:
        return self.convert(replace(body, name=self._name(region.name or "partition")))

    def _share_subprogram(self, body: Program, region: Region) -> Program:
        """Return the subprogram of all nested regions that are like `body`."""
        plain = rename_buffers(body)
        known = self.alike.get(plain)
        if known is None:
            known = self.alike[plain] = self.convert(replace(plain, name=self._name(region.name or "nested")))
        return known

    def _name(self, wanted: str) -> str:
        number = 0
        while (name := f"{wanted}_{number}" if number else wanted) in self.taken:
            number += 1
        self.taken.add(name)
        return name


def rename_buffers(program: Program) -> Program:
    """`program` with names of buffers, pools, streams and events by their order: equal but for names is equal
    then."""
    names: dict[str, str] = {}
    for entry in program.inputs:
        if isinstance(entry, Buffer):
            names[entry.name] = f"in{len(names)}"
    for instruction in flatten_regions(program.instructions):
        defined = [buffer.name for buffer in list_defined_buffers(instruction)]
        for name in (*defined, *list_defined_values(instruction)):
            names[name] = f"v{len(names)}"
    renamer = _Renamer(names)
    return replace(
        program,
        inputs=tuple(
            renamer.buffer(entry) if isinstance(entry, Buffer) else entry for entry in program.inputs
        ),
        instructions=tuple(map(renamer.instruction, program.instructions)),
    )


@dataclass(frozen=True, slots=True)
class _Renamer:
    """Puts other names in the place of names; those that it does not know stay."""

    names: Mapping[str, str]

    def name(self, name: str) -> str:
        return self.names.get(name, name)

    def rename_all(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(self.name, names))

    def buffer(self, buffer: Buffer) -> Buffer:
        return replace(buffer, name=self.name(buffer.name))

    def argument(self, value: Argument) -> Argument:
        match value:
            case Ref(name):
                return Ref(self.name(name))
            case Item(name):
                return Item(self.name(name))
            case ListValue(items):
                return ListValue(tuple(map(self.argument, items)))
            case _:
                return value

    def result(self, value: GraphOutput) -> GraphOutput:
        return Ref(self.name(value.name)) if isinstance(value, Ref) else value

    def instruction(self, step: Instruction) -> Instruction:
        match step:
            case BindSymbol() | CheckLayout():
                return replace(step, buffer=self.name(step.buffer))
            case Alloc():
                return Alloc(buffer=self.buffer(step.buffer))
            case AllocPool():
                return replace(step, pool=self.name(step.pool))
            case PoolView():
                return replace(step, buffer=self.buffer(step.buffer), pool=self.name(step.pool))
            case Reuse() | Reinterpret():
                return replace(step, buffer=self.buffer(step.buffer), source=self.name(step.source))
            case Launch():
                return replace(step, args=self.rename_all(step.args), stream=self.name(step.stream))
            case ExternCall():
                return self._extern(step)
            case CondCall():
                return replace(
                    step,
                    predicate=self.name(step.predicate),
                    operands=tuple(map(self.argument, step.operands)),
                    outputs=tuple(map(self.buffer, step.outputs)),
                )
            case LoopCall():
                return replace(
                    step,
                    carried=tuple(map(self.argument, step.carried)),
                    extra=tuple(map(self.argument, step.extra)),
                    outputs=tuple(map(self.buffer, step.outputs)),
                )
            case SubprogramCall():
                return replace(
                    step,
                    operands=tuple(map(self.argument, step.operands)),
                    outputs=tuple(map(self.buffer, step.outputs)),
                )
            case Copy():
                return replace(
                    step,
                    source=self.name(step.source),
                    target=self.name(step.target),
                    stream=self.name(step.stream),
                )
            case ForkStream():
                return replace(step, stream=self.name(step.stream), after=self.name(step.after))
            case RecordEvent():
                return replace(step, event=self.name(step.event), stream=self.name(step.stream))
            case WaitEvent():
                stream = step.stream if step.stream is None else self.name(step.stream)
                return replace(step, event=self.name(step.event), stream=stream)
            case JoinStream():
                return replace(step, stream=self.name(step.stream), into=self.name(step.into))
            case Region():
                return replace(
                    step,
                    inputs=self.rename_all(step.inputs),
                    outputs=self.rename_all(step.outputs),
                    body=tuple(map(self.instruction, step.body)),
                )
            case Free():
                return Free(names=self.rename_all(step.names))
            case Return():
                return Return(values=tuple(map(self.result, step.values)))
            case CheckSize() | Comment():
                return step

    def _extern(self, call: ExternCall) -> ExternCall:
        outputs = (self.buffer(output) if isinstance(output, Buffer) else output for output in call.outputs)
        return replace(
            call,
            args=tuple(map(self.argument, call.args)),
            kwargs=tuple((key, self.argument(value)) for key, value in call.kwargs),
            out=tuple((key, self.name(name)) for key, name in call.out),
            outputs=tuple(outputs),
            in_flight=self.rename_all(call.in_flight),
            until=self.rename_all(call.until),
            waits=self.rename_all(call.waits),
            stream=self.name(call.stream),
        )
