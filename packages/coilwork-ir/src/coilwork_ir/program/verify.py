"""The verifier of programs.

`RULES` lists the invariants: each name is the code of the `VerifyError` that breaking it raises. Linear in
the number of instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, GraphInput, Item, ListValue, Ref
from coilwork_ir.index import Expr, as_int, provably_lt
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.verify import check_proposals, verify_kernel
from coilwork_ir.loc import UNKNOWN, Origin
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
from coilwork_ir.program.regions import (
    find_capture_refusal,
    find_device,
    find_outline_refusal,
    find_shared_result,
    flatten_regions,
    make_region,
)
from coilwork_ir.program.text import format_instruction
from coilwork_ir.program.verify_inflight import FLIGHT_RULES, FlightChecker
from coilwork_ir.program.walk import list_defined_buffers, list_defined_values, list_distinct_programs
from coilwork_ir.streams import OWN, Copy, ForkStream, JoinStream, RecordEvent, WaitEvent
from coilwork_ir.verification import (
    SCOPE_RULES,
    STREAM_RULES,
    Place,
    Rule,
    Scope,
    StreamChecker,
    check_paths,
    declare_numbers,
    get_first_line,
)

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **{name: rule for name, rule in SCOPE_RULES.items() if name not in ("overwritten", "symbol-bound")},
        "symbol-bound": Rule(
            "a symbol has a value before it is used: it is an input, or a `bind` or a call gave it one",
            "bind the symbol first",
        ),
        "use-after-free": Rule(
            "a buffer is not used after it was freed or its memory reused",
            "free the buffer after its last use",
        ),
        "double-free": Rule("a buffer is freed at most once", "free the buffer once"),
        "last-return": Rule(
            "the last instruction, and no other, is `return`", "end the program with `return`"
        ),
        "unique-kernel": Rule("every kernel is listed once", "list equal kernels once"),
        "kernel-exists": Rule("a launch names a kernel of the program", "add the kernel"),
        "proposal": Rule(
            "a proposal is for a kernel that is listed, once, and has candidates", "name each kernel once"
        ),
        "launch-arity": Rule(
            "a launch gives one buffer per tensor argument and one size per size symbol",
            "pass what is missing",
        ),
        "launch-dtype": Rule(
            "a launch's buffers have the element types of the kernel's arguments", "cast first"
        ),
        "reuse-size": Rule(
            "a buffer that reuses memory is as large as the one it replaces, on the same device",
            "allocate the buffer instead",
        ),
        "pool": Rule(
            "a pool view lies in a pool allocated before, at a multiple of 64 bytes, inside the pool",
            "correct the offset or the size of the pool",
        ),
        "bind-dim": Rule(
            "a symbol is bound to a dimension that its buffer has", "name an existing dimension"
        ),
        "check-input": Rule("layout checks are about inputs", "check inputs only"),
        "extern-results": Rule(
            "an external call has out buffers or results, not both, and its binds name results that it has",
            "number results from 0; give one path, if there are any, per result",
        ),
        **FLIGHT_RULES,
        **STREAM_RULES,
        "stream-results": Rule(
            "a call on a stream of its own returns nothing: memory that it allocated would be that stream's",
            "allocate the results before, and pass them in `out`",
        ),
        "copy-layout": Rule(
            "a copy is between buffers of one element type and shape", "cast or view the buffer before"
        ),
        "region-boundary": Rule(
            "a region names all that its body uses from outside and all that it leaves, and nothing else",
            "make the region with `make_region`",
        ),
        "region-body": Rule(
            "a program does not end in a region, and a nested region is not divided", "end the region before"
        ),
        "region-capture": Rule(
            "a driver can replay all that is in a capture region: one device's work on the call's own stream",
            "end the region before the instruction",
        ),
        "region-outline": Rule(
            "a nested or partition region is a function: it is given buffers, ends none of them, and what it "
            "leaves is memory of its own",
            "move what frees, reuses or waits out of the region",
        ),
        "unique-subprogram": Rule(
            "subprograms that are called have different names", "call one body, or rename the other"
        ),
        "subprogram-results": Rule(
            "a subprogram returns memory of its own, each result another", "copy what is returned"
        ),
        "region-signature": Rule(
            "operands and results of a branch, loop or subprogram agree with the programs inside",
            (
                "give the inner program one input per operand and one result per output, of the same type "
                "and rank"
            ),
        ),
    }
)


def verify_program(program: Program) -> None:
    """Check `program`, its kernels, and the programs nested in it against `RULES`.

    Raises:
        VerifyError: the first rule that is broken, with instruction, source line, reason and remedy.
    """
    bodies: dict[str, Program] = {}
    for part in list_distinct_programs(program):
        for instruction in flatten_regions(part.instructions):
            if isinstance(instruction, SubprogramCall):
                body = instruction.body
                if bodies.setdefault(body.name, body) != body:
                    place = Place(describe=lambda: f"program @{program.name}", origins=UNKNOWN, rules=RULES)
                    place.fail("unique-subprogram", f"@{body.name} stands for two programs")
    _Checker(program, None).run()


class _Checker:
    def __init__(self, program: Program, outer: Scope | None) -> None:
        self.program = program
        self.scope = Scope()
        # symbols that have a value; the scope of the program around may know more
        self.scope.symbols = {} if outer is None else dict(outer.symbols)
        self.kernels: dict[str, Kernel] = {}
        self.pools: dict[str, AllocPool] = {}
        self.gone: dict[str, str] = {}
        self.inputs = {entry.name for entry in program.inputs if isinstance(entry, Buffer)}
        self.streams = StreamChecker()
        self.flights = FlightChecker(program)

    def run(self) -> Scope:
        program = self.program
        place = self._place(lambda: f"program @{program.name}")
        self._open(place)
        for kernel in program.kernels:
            if self.kernels.setdefault(kernel.name, kernel) is not kernel:
                place.fail("unique-kernel", f"@{kernel.name} is listed twice")
            verify_kernel(kernel)
        check_proposals(program.proposals, self.kernels, place)
        count = len(program.instructions)
        for position, instruction in enumerate(program.instructions):
            if isinstance(instruction, Return) != (position == count - 1):
                place.fail("last-return", f"instruction {position + 1} of {count} is wrong")
            self._step(instruction, position)
        if not count:
            place.fail("last-return", "there is no instruction")
        return self.scope

    def _place(self, describe: Callable[[], str], origins: tuple[Origin, ...] = UNKNOWN) -> Place:
        return Place(describe=describe, origins=origins, rules=RULES)

    def _open(self, place: Place) -> None:
        # Shapes of inputs use the declared symbols, which `bind` gives values later: layouts are checked
        # against all.
        declared = Scope()
        declared.symbols = dict(self.scope.symbols)
        for value in self.program.symbols:
            declared.declare(value, place)
        for entry in self.program.inputs:
            if isinstance(entry, Expr):
                declared.check_symbols(entry, (), place)
                if entry.is_symbol:
                    self.scope.declare(entry, place)
            else:
                declared.define(entry, place)
        for constant in self.program.constants:
            declared.define(constant.buffer, place)
        bound = self.scope.symbols
        self.scope = declared
        self.scope.symbols = bound

    # Uses

    def _use(self, name: str, place: Place) -> Buffer:
        why = self.gone.get(name)
        if why is not None:
            place.fail("use-after-free", f"%{name} {why}")
        return self.scope.use(name, place)

    def _symbols(self, exprs: Iterable[Expr], place: Place) -> None:
        for expr in exprs:
            for symbol in expr.free_symbols:
                known = self.scope.symbols.get(symbol.name)
                if known is None:
                    place.fail("symbol-bound", f"{symbol.name} in {expr!r} has no value here")
                if known is not symbol:
                    place.fail("unique-symbol", f"{symbol.name} in {expr!r} has other bounds than declared")

    def _define(self, buffer: Buffer, place: Place) -> None:
        self._symbols((*buffer.shape, *buffer.strides), place)
        if buffer.name in self.pools or self.streams.is_known(buffer.name):
            place.fail("unique-name", f"%{buffer.name} is a pool, stream or event")
        self.scope.define(buffer, place)

    def _argument(self, argument: Argument, place: Place) -> None:
        match argument:
            case Ref(name) | Item(name):
                self._use(name, place)
            case Expr():
                self._symbols((argument,), place)
            case ListValue(items):
                for item in items:
                    self._argument(item, place)
            case _:
                pass

    # Instructions

    def _step(self, instruction: Instruction, position: int) -> None:
        def describe() -> str:
            return get_first_line(format_instruction(instruction))

        place = self._place(describe, _origins(instruction))
        match instruction:
            case Launch():
                self._launch(instruction, place)
            case ExternCall():
                self._extern(instruction, place)
            case CondCall() | LoopCall():
                self._region_call(instruction, place)
            case SubprogramCall():
                self._subprogram(instruction, place)
            case Free():
                for name in instruction.names:
                    self._free(name, place)
            case Return():
                for value in instruction.values:
                    self._argument(value, place)
                self.streams.finish(place)
            case ForkStream() | RecordEvent() | WaitEvent() | JoinStream():
                for name in list_defined_values(instruction):
                    if name in self.scope.buffers or name in self.pools:
                        place.fail("unique-name", f"%{name} is memory")
                self.streams.follow(instruction, place)
            case Copy():
                self._copy(instruction, place)
            case Region():
                self._region(instruction, position, place)
                return
            case CheckSize():
                self._symbols((instruction.lhs, instruction.rhs), place)
            case Comment():
                pass
            case _:
                self._memory(instruction, place)
        self.flights.follow(instruction, position, place)

    def _memory(
        self,
        instruction: BindSymbol | CheckLayout | Alloc | AllocPool | PoolView | Reuse | Reinterpret,
        place: Place,
    ) -> None:
        match instruction:
            case BindSymbol():
                buffer = self._use(instruction.buffer, place)
                if not 0 <= instruction.dim < len(buffer.shape):
                    place.fail("bind-dim", f"%{buffer.name} has {len(buffer.shape)} dimensions")
                self.scope.declare(instruction.symbol, place)
            case CheckLayout():
                buffer = self._use(instruction.buffer, place)
                if buffer.name not in self.inputs:
                    place.fail("check-input", f"%{buffer.name} is not an input")
                self._symbols((*buffer.shape, *buffer.strides), place)
            case Alloc():
                self._define(instruction.buffer, place)
            case AllocPool():
                self._symbols((instruction.size_bytes,), place)
                pool = instruction.pool
                if pool in self.pools or pool in self.scope.buffers or self.streams.is_known(pool):
                    place.fail("unique-name", f"%{instruction.pool} is defined a second time")
                self.pools[instruction.pool] = instruction
            case PoolView():
                self._pool_view(instruction, place)
            case Reuse():
                self._reuse(instruction, place)
            case Reinterpret():
                self._use(instruction.source, place)
                self._symbols((instruction.offset,), place)
                self._define(instruction.buffer, place)

    def _free(self, name: str, place: Place) -> None:
        if name in self.gone:
            place.fail("double-free", f"%{name} {self.gone[name]}")
        if name not in self.pools:
            self.scope.use(name, place)
        self.gone[name] = "was freed"

    def _pool_view(self, view: PoolView, place: Place) -> None:
        pool = self.pools.get(view.pool)
        if pool is None:
            place.fail("pool", f"there is no pool %{view.pool}")
        if view.pool in self.gone:
            place.fail("use-after-free", f"%{view.pool} {self.gone[view.pool]}")
        self._symbols((view.offset_bytes,), place)
        self._define(view.buffer, place)
        offset = as_int(view.offset_bytes)
        if offset is not None and offset % 64:
            place.fail("pool", f"offset {offset} is not a multiple of 64")
        if view.buffer.device != pool.device:
            place.fail("pool", f"%{view.buffer.name} is on {view.buffer.device}, the pool on {pool.device}")
        end = view.offset_bytes + view.buffer.span * view.buffer.dtype.itemsize
        if provably_lt(pool.size_bytes, end):
            place.fail("pool", f"%{view.buffer.name} ends at byte {end!r} of {pool.size_bytes!r}")

    def _reuse(self, reuse: Reuse, place: Place) -> None:
        source = self._use(reuse.source, place)
        self._define(reuse.buffer, place)
        self.gone[reuse.source] = f"gave its memory to %{reuse.buffer.name}"
        # strides may leave gaps: memory is taken for all from the first element to the last
        old = source.span * source.dtype.itemsize
        new = reuse.buffer.span * reuse.buffer.dtype.itemsize
        if source.device != reuse.buffer.device:
            place.fail("reuse-size", f"%{source.name} is on {source.device}, not {reuse.buffer.device}")
        if old is not new and (provably_lt(old, new) or provably_lt(new, old)):
            place.fail("reuse-size", f"%{source.name} has {old!r} bytes, %{reuse.buffer.name} {new!r}")

    def _launch(self, launch: Launch, place: Place) -> None:
        kernel = self.kernels.get(launch.kernel)
        if kernel is None:
            place.fail("kernel-exists", f"there is no kernel @{launch.kernel}")
        if len(launch.args) != len(kernel.args) or len(launch.sizes) != len(kernel.sizes):
            place.fail(
                "launch-arity",
                f"{len(launch.args)} buffers and {len(launch.sizes)} sizes for "
                f"{len(kernel.args)} and {len(kernel.sizes)}",
            )
        self._symbols(launch.sizes, place)
        self.streams.check_stream(launch.stream, place)
        for name, arg in zip(launch.args, kernel.args, strict=True):
            buffer = self._use(name, place)
            if buffer.dtype is not arg.dtype:
                place.fail("launch-dtype", f"%{name} is {buffer.dtype.text}, {arg.name} is {arg.dtype.text}")

    def _copy(self, copy: Copy, place: Place) -> None:
        source, target = self._use(copy.source, place), self._use(copy.target, place)
        self.streams.check_stream(copy.stream, place)
        if (source.dtype, source.shape) != (target.dtype, target.shape):
            place.fail("copy-layout", f"%{source.name} is not like %{target.name}")

    def _extern(self, call: ExternCall, place: Place) -> None:
        self.streams.check_stream(call.stream, place)
        if call.stream != OWN and (call.outputs or call.binds):
            place.fail("stream-results", f"{len(call.outputs)} results")
        for argument in (*call.args, *(value for _, value in call.kwargs)):
            self._argument(argument, place)
        for _, name in call.out:
            self._use(name, place)
        if call.out and call.outputs:
            place.fail("extern-results", "there are out buffers and results")
        check_paths(call.paths, len(call.outputs), place, single=call.single)
        for symbol, number, _ in call.binds:
            if not 0 <= number < len(call.outputs):
                place.fail("extern-results", f"there is no result {number}")
            self.scope.declare(symbol, place)
        declare_numbers(call.outputs, self.scope, place)
        for number in call.aligned:
            if not (0 <= number < len(call.outputs) and isinstance(call.outputs[number], Buffer)):
                place.fail("extern-results", f"result {number} is no tensor that could be aligned")
        for buffer in list_defined_buffers(call):
            self._define(buffer, place)

    # Regions

    def _region(self, region: Region, position: int, place: Place) -> None:
        exact = make_region(region.kind, region.body)
        for given, wanted, what in (
            (region.inputs, exact.inputs, "inputs"),
            (region.outputs, exact.outputs, "what it leaves"),
            (tuple(s.name for s in region.symbols), tuple(s.name for s in exact.symbols), "sizes"),
        ):
            if given != wanted:
                place.fail(
                    "region-boundary",
                    f"{what}: ({', '.join(given)}), and its body says ({', '.join(wanted)})",
                )
        if region.kind != "capture":
            refusal = find_outline_refusal(region, self.scope.buffers)
            if refusal:
                place.fail("region-outline", refusal)
        device = ""
        for inner in region.body:
            if isinstance(inner, Return):
                place.fail("region-body", "`return` is in a region")
            if isinstance(inner, Region) and region.kind == "nested":
                place.fail("region-body", f"a {inner.kind} region in one that is nested")
            self._step(inner, position)
            if region.kind == "capture":
                device = device or find_device(inner, self.scope.buffers)
                refusal = find_capture_refusal(inner, self.scope.buffers, device)
                if refusal:
                    place.fail("region-capture", refusal)

    def _region_call(self, call: CondCall | LoopCall, place: Place) -> None:
        operands: tuple[Argument, ...]
        if isinstance(call, CondCall):
            self._use(call.predicate, place)
            operands = call.operands
        else:
            operands = (*call.carried, *call.extra)
            if len(call.carried) != len(call.outputs):
                place.fail("region-signature", f"{len(call.carried)} carried, {len(call.outputs)} returned")
        for operand in operands:
            self._argument(operand, place)
        if isinstance(call, CondCall):
            self._check_nested(call.then, operands, call.outputs, place)
            self._check_nested(call.otherwise, operands, call.outputs, place)
        else:
            if (call.condition is None) == (call.rounds is None):
                place.fail("loop-end", "a loop has either a condition or a number of rounds")
            if call.condition is not None:
                self._check_nested(call.condition, operands, None, place)
            else:
                operands = (*operands, 0)
            self._check_nested(call.body, operands, call.outputs, place)
        for output in call.outputs:
            self._define(output, place)

    def _subprogram(self, call: SubprogramCall, place: Place) -> None:
        for operand in call.operands:
            self._argument(operand, place)
        self._check_nested(call.body, call.operands, call.outputs, place, is_apart=True)
        *steps, last = call.body.instructions
        assert isinstance(last, Return)
        given = [entry.name for entry in call.body.inputs if isinstance(entry, Buffer)]
        given += [constant.buffer.name for constant in call.body.constants]
        results = [value.name for value in last.values if isinstance(value, Ref)]
        if refusal := find_shared_result(steps, results, given):
            place.fail("subprogram-results", f"@{call.body.name}: {refusal}")
        for output in call.outputs:
            self._define(output, place)

    def _check_nested(
        self,
        program: Program,
        operands: Sequence[Argument],
        outputs: Sequence[Buffer] | None,
        place: Place,
        *,
        is_apart: bool = False,
    ) -> None:
        """Check a program that an instruction runs; one that `is_apart` uses no sizes of its
        surroundings."""
        if len(program.inputs) != len(operands):
            place.fail(
                "region-signature", f"@{program.name}: {len(program.inputs)} inputs, {len(operands)} operands"
            )
        for position, (entry, operand) in enumerate(zip(program.inputs, operands, strict=True)):
            if not self._fits(entry, operand):
                place.fail(
                    "region-signature", f"operand {position} does not fit input {position} of @{program.name}"
                )
        inner = _Checker(program, None if is_apart else self.scope).run()
        last = program.instructions[-1]
        assert isinstance(last, Return)
        results = [inner.buffers[v.name] if isinstance(v, Ref) else None for v in last.values]
        if outputs is None:
            if len(results) != 1 or results[0] is None or not results[0].dtype.is_bool:
                place.fail("region-signature", f"@{program.name} does not return one bool")
            return
        if len(results) != len(outputs):
            place.fail(
                "region-signature", f"@{program.name} returns {len(results)} values, not {len(outputs)}"
            )
        for result, output in zip(results, outputs, strict=True):
            if result is None or result.dtype is not output.dtype or len(result.shape) != len(output.shape):
                place.fail("region-signature", f"@{program.name} returns nothing that fits %{output.name}")

    def _fits(self, entry: GraphInput, operand: Argument) -> bool:
        if isinstance(entry, Expr):
            return isinstance(operand, Expr) or (isinstance(operand, int) and not isinstance(operand, bool))
        if not isinstance(operand, Ref):
            return False
        given = self.scope.buffers[operand.name]
        return given.dtype is entry.dtype and len(given.shape) == len(entry.shape)


def _origins(instruction: Instruction) -> tuple[Origin, ...]:
    match instruction:
        case (
            Reinterpret()
            | Launch()
            | ExternCall()
            | CheckSize()
            | CondCall()
            | LoopCall()
            | SubprogramCall()
            | Copy()
        ):
            return instruction.origins
        case _:
            return UNKNOWN
