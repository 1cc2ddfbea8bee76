"""The reference interpreter of programs: every instruction, in order, in plain torch ops.

What is put on a stream runs at once, or as late and in any order as its waits allow. Run in random turns, a
program shows whether its waits say enough: where they do not, results depend on the turns. Needs torch
(`pip install coilwork-ir[interpreter]`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import torch
from torch import Tensor

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.errors import InterpretError
from coilwork_ir.interpretation.memory import (
    Memory,
    Value,
    argument_value,
    call,
    has_strides,
    take_results,
    view_as_line,
)
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.loops.interpreter import check_size
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
    Reinterpret,
    Return,
    Reuse,
    SubprogramCall,
)
from coilwork_ir.program.walk import index_buffers
from coilwork_ir.streams import (
    OWN,
    Copy,
    ForkStream,
    JoinStream,
    RecordEvent,
    StreamInstruction,
    WaitEvent,
    is_host,
)

# ---- Programs ----


Step: TypeAlias = Launch | ExternCall | CondCall | LoopCall | SubprogramCall | Copy
LaunchKernel: TypeAlias = Callable[[Launch, Sequence[Tensor], Sequence[int]], None]
Observe: TypeAlias = Callable[[Program, Step, Mapping[str, Tensor]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Callbacks in the interpretation of a program, and of those nested in it.

    Attributes:
        launch: runs a kernel on the launch's tensors and sizes, in place of the interpreter of kernels.
        before, after: told of every launch and call, with all tensors that are alive, by name; `after` of a
            condition, loop or subprogram, too, behind all that ran in it.
        poison: fresh memory holds NaN; else zeros.
        turns: what is on streams runs in an order drawn from it, as late as the program's waits allow; else
            at once. Memory is then handed out again when it is freed.
    """

    launch: LaunchKernel | None = None
    before: Observe | None = None
    after: Observe | None = None
    poison: bool = True
    turns: Random | None = None


def interpret_program(
    program: Program,
    inputs: Sequence[Tensor | int],
    constants: Mapping[str, Tensor] | None = None,
    hooks: Hooks = Hooks(),
) -> list[Value]:
    """Run `program` on `inputs`; as `interpret_graph`.

    Raises:
        InterpretError: inputs that do not fit the declarations, an access outside of a buffer, a name that is
            not alive.
        IndexError, RuntimeError: a run-time check failed.
    """
    return _run(program, inputs, constants or {}, Memory(poison=hooks.poison), hooks)


def _run(
    program: Program,
    inputs: Sequence[object],
    constants: Mapping[str, Tensor],
    memory: Memory,
    hooks: Hooks,
) -> list[Value]:
    memory.enter(program.inputs, inputs, program.constants, constants)
    machine = _Machine(program, memory, constants, hooks)
    for instruction in program.instructions:
        if isinstance(instruction, Return):
            machine.queues.finish()
            return [memory.output(value) for value in instruction.values]
        machine.step(instruction)
    raise InterpretError("last-return", f"@{program.name} ended without `return`")


class _Machine:
    def __init__(
        self, program: Program, memory: Memory, constants: Mapping[str, Tensor], hooks: Hooks
    ) -> None:
        self.program = program
        self.hooks = hooks
        self.memory = memory
        self.constants = constants
        self.kernels: dict[str, Kernel] = {kernel.name: kernel for kernel in program.kernels}
        self.buffers = index_buffers(program)
        self.queues = Queues(hooks.turns)
        # where memory is that `alloc` gave out, and what came back of it
        self.allocated: set[int] = set()
        self.freed: list[Tensor] = []
        self.inputs = {entry.name: entry for entry in program.inputs if isinstance(entry, Buffer)}

    def step(self, instruction: Instruction) -> None:
        """Do what `instruction` says."""
        memory = self.memory
        match instruction:
            case BindSymbol():
                source = memory.tensors[instruction.buffer]
                values = source.shape if instruction.what == "size" else source.stride()
                memory.bind(instruction.symbol, values[instruction.dim])
            case CheckLayout():
                if instruction.asserted:
                    self._check_layout(self.inputs[instruction.buffer])
            case Launch() | ExternCall() | Copy():
                self._observe(instruction)
            case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
                self.queues.follow(instruction)
            case CheckSize():
                lhs, rhs = memory.size(instruction.lhs), memory.size(instruction.rhs)
                check_size(lhs, instruction.relation, rhs, instruction.message)
            case CondCall():
                self.queues.synchronize()
                chosen = bool(memory.tensors[instruction.predicate].item())
                operands = [argument_value(a, memory) for a in instruction.operands]
                values_ = self._run_nested(instruction.then if chosen else instruction.otherwise, operands)
                self._settle(instruction.outputs, values_)
                self._is_through(instruction)
            case LoopCall():
                self.queues.synchronize()
                self._repeat(instruction)
                self._is_through(instruction)
            case SubprogramCall():
                self.queues.synchronize()
                values_ = self._run_nested(
                    instruction.body, [argument_value(a, memory) for a in instruction.operands]
                )
                self._settle(instruction.outputs, values_)
                self._is_through(instruction)
            case Region():
                for inner in instruction.body:
                    self.step(inner)
            case Comment() | Return():
                pass
            case _:
                self._provide(instruction)

    def _provide(self, instruction: Alloc | AllocPool | PoolView | Reuse | Reinterpret | Free) -> None:
        memory = self.memory
        match instruction:
            case Alloc():
                self._allocate(instruction.buffer)
            case AllocPool():
                size = memory.size(instruction.size_bytes)
                memory.tensors[instruction.pool] = torch.full(
                    (size,), 0x5A, dtype=torch.uint8, device=memory.device
                )
            case PoolView():
                offset = memory.size(instruction.offset_bytes)
                itemsize = instruction.buffer.dtype.itemsize
                memory.view(instruction.buffer, memory.tensors[instruction.pool], offset // itemsize)
            case Reuse():
                memory.view(instruction.buffer, memory.tensors[instruction.source], 0)
                del memory.tensors[instruction.source]
            case Reinterpret():
                offset = memory.size(instruction.offset)
                memory.view(instruction.buffer, memory.tensors[instruction.source], offset)
            case Free():
                for name in instruction.names:
                    self._free(name)

    def _allocate(self, buffer: Buffer) -> None:
        """Memory for `buffer`: where work runs late, what was freed comes back as it was left."""
        memory = self.memory
        size_bytes = memory.size(buffer.span * buffer.dtype.itemsize)
        for number, freed in enumerate(self.freed):
            if freed.untyped_storage().nbytes() == size_bytes and freed.storage_offset() == 0:
                memory.view(buffer, self.freed.pop(number), 0)
                return
        self.allocated.add(memory.allocate(buffer).untyped_storage().data_ptr())

    def _free(self, name: str) -> None:
        tensor = self.memory.tensors.pop(name)
        if self.queues.is_at_once or not _has_storage(tensor):
            return
        start = tensor.untyped_storage().data_ptr()
        if start not in self.allocated:
            return
        others = filter(_has_storage, self.memory.tensors.values())
        if all(other.untyped_storage().data_ptr() != start for other in others):
            self.freed.append(tensor)

    def _check_layout(self, buffer: Buffer) -> None:
        memory = self.memory
        given = memory.tensors[buffer.name]
        if (
            given.dtype is not torch_dtype(buffer.dtype)
            or tuple(given.shape) != memory.shape(buffer)
            or not has_strides(given, memory.strides(buffer))
        ):
            raise InterpretError("input-layout", f"%{buffer.name} has another layout than declared")

    def _observe(self, step: Launch | ExternCall | Copy) -> None:
        if self.hooks.before is not None:
            self.hooks.before(self.program, step, self.memory.tensors)
        match step:
            case Launch():
                self._launch(step)
            case ExternCall():
                self._extern(step)
            case Copy():
                self._copy(step)
        self._is_through(step)

    def _is_through(self, step: Step) -> None:
        if self.hooks.after is not None:
            self.hooks.after(self.program, step, self.memory.tensors)

    def _launch(self, launch: Launch) -> None:
        sizes = [self.memory.size(size) for size in launch.sizes]
        tensors = [self.memory.tensors[name] for name in launch.args]
        run = self.hooks.launch
        kernel = None if run is not None else self.kernels[launch.kernel]

        def work() -> None:
            if run is not None:
                run(launch, tensors, sizes)
            elif kernel is not None:
                lines = dict(zip((arg.name for arg in kernel.args), map(view_as_line, tensors), strict=True))
                interpret_kernel(kernel, lines, sizes)

        if launch.stream == OWN and all(is_host(self.buffers[name].device) for name in launch.args):
            work()
        else:
            self.queues.put(launch.stream, work)

    def _copy(self, copy: Copy) -> None:
        source, target = self.memory.tensors[copy.source], self.memory.tensors[copy.target]
        self.queues.put(copy.stream, lambda: _assign(target, source))
        if not copy.non_blocking:
            self.queues.synchronize(copy.stream)

    def _extern(self, instruction: ExternCall) -> None:
        if instruction.stream != OWN:
            # what it writes is there; later instructions may give the names that it reads to others
            memory = Memory(self.memory.sizes, self.memory.device, poison=self.hooks.poison)
            memory.tensors = dict(self.memory.tensors)
            self.queues.put(instruction.stream, lambda: _call(instruction, memory))
            return
        self.queues.synchronize()
        _call(instruction, self.memory)

    def _run_nested(self, program: Program, inputs: Sequence[object]) -> list[Value]:
        memory = Memory(self.memory.sizes, self.memory.device, poison=self.hooks.poison)
        return _run(program, inputs, self.constants, memory, self.hooks)

    def _settle(self, outputs: Sequence[Buffer], values: Sequence[object]) -> None:
        for output, value in zip(outputs, values, strict=True):
            if not isinstance(value, Tensor):
                raise InterpretError("result", f"%{output.name} is {value!r}, not a tensor")
            self.memory.settle(output, value.clone())

    def _repeat(self, loop: LoopCall) -> None:
        carried = [argument_value(a, self.memory) for a in loop.carried]
        extra = [argument_value(a, self.memory) for a in loop.extra]
        if loop.rounds is not None:
            for number in range(self.memory.size(loop.rounds)):
                carried = list(self._run_nested(loop.body, [*carried, *extra, number]))
        while loop.condition is not None:
            (go_on,) = self._run_nested(loop.condition, [*carried, *extra])
            if not isinstance(go_on, Tensor):
                raise InterpretError("result", f"the condition of a loop is {go_on!r}, not a tensor")
            if not bool(go_on.item()):
                break
            carried = list(self._run_nested(loop.body, [*carried, *extra]))
        self._settle(loop.outputs, carried)


def _call(instruction: ExternCall, memory: Memory) -> None:
    kwargs = dict(instruction.kwargs)
    if not instruction.out:
        single, paths = instruction.single, instruction.paths
        results = call(instruction.target, instruction.args, kwargs, memory, single, paths)
        take_results(instruction.outputs, instruction.binds, results, memory)
        return
    for keyword, name in instruction.out:
        kwargs[keyword] = Ref(name)
    call(instruction.target, instruction.args, kwargs, memory, single=True)


def _assign(target: Tensor, source: Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def _has_storage(tensor: Tensor) -> bool:
    """Tell if memory can be asked for: a library's packed weights have none to show."""
    return tensor.layout is torch.strided and not tensor.is_mkldnn


# ---- Streams ----


Work: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A place on a stream: behind so many of its items."""

    stream: str
    position: int


class Queues:
    """The streams of one run. `turns` chooses whose turn it is; without it work is done when it is given."""

    def __init__(self, turns: Random | None) -> None:
        self._turns = turns
        self._items: dict[str, list[Work | _Mark]] = {OWN: []}
        self._done: dict[str, int] = {OWN: 0}
        self._events: dict[str, _Mark] = {}
        # those of the host, which does at once what it is given
        self._host: set[str] = set()

    @property
    def is_at_once(self) -> bool:
        """True if work is done when it is given."""
        return self._turns is None

    def put(self, stream: str, work: Work) -> None:
        """Add `work` to what `stream` has to do, behind all that it has already."""
        if self._turns is None or stream in self._host:
            work()
            return
        self._items[stream].append(work)
        for _ in range(self._turns.randrange(3)):
            self._take_turn()

    def follow(self, instruction: StreamInstruction) -> None:
        """Do what `instruction` says."""
        match instruction:
            case ForkStream(stream=stream, device=device, after=after):
                if is_host(device):
                    self._host.add(stream)
                self._items[stream] = [self._end(after)]
                self._done[stream] = 0
            case RecordEvent(event=event, stream=stream):
                self._events[event] = self._end(stream)
            case WaitEvent(event=event, stream=None):
                self._run_to(self._events[event])
            case WaitEvent(event=event, stream=str(stream)):
                self._items[stream].append(self._events[event])
            case JoinStream(stream=stream, into=into):
                self._items[into].append(self._end(stream))

    def synchronize(self, stream: str = OWN) -> None:
        """Wait until all that `stream` was given is done."""
        self._run_to(self._end(stream))

    def finish(self) -> None:
        """Wait until all is done."""
        for stream in self._items:
            self.synchronize(stream)

    def _end(self, stream: str) -> _Mark:
        return _Mark(stream, len(self._items[stream]))

    def _run_to(self, mark: _Mark) -> None:
        while self._done[mark.stream] < mark.position:
            self._take_turn()

    def _take_turn(self) -> None:
        """Do the next of some stream's items that can be done."""
        ready = [stream for stream in self._items if self._is_ready(stream)]
        if not ready:
            return
        stream = ready[0] if self._turns is None else self._turns.choice(ready)
        item = self._items[stream][self._done[stream]]
        self._done[stream] += 1
        if not isinstance(item, _Mark):
            item()

    def _is_ready(self, stream: str) -> bool:
        position = self._done[stream]
        if position == len(self._items[stream]):
            return False
        item = self._items[stream][position]
        return not isinstance(item, _Mark) or self._done[item.stream] >= item.position
