"""Each instruction of a program as C++ statements, under comments that name operations and source lines.

`emit_instruction` has a case for every instruction: a new one has to be added here. The programs inside of
conditionals and loops are functions of the same form as the outermost one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from coilwork_cpp_wrapper.calls import emit_call
from coilwork_cpp_wrapper.scope import Scope, get_dtype_code, read_size_code, refuse
from coilwork_cpp_wrapper.view_plan import View, get_source
from coilwork_ir.buffers import Argument, Buffer, Ref
from coilwork_ir.dtypes import DType, parse_dtype
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int
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
from coilwork_ir.program.walk import find_call
from coilwork_ir.streams import Copy, ForkStream, JoinStream, RecordEvent, WaitEvent, is_host
from coilwork_ir.syntax.cpp import (
    Assign,
    Binary,
    Braces,
    Break,
    Call,
    Code,
    Declare,
    DeclareArray,
    Do,
    If,
    Name,
    Statement,
    Unary,
    While,
    element,
    integer,
    string,
)
from coilwork_ir.syntax.cpp import Comment as Remark
from coilwork_runtime.manifest.kernel_manifest import KernelManifest
from coilwork_runtime.manifest.size_bytecode import SizeBytecode

# ---- conditionals and loops ----


def emit_cond(call: CondCall, scope: Scope) -> Iterator[Statement]:
    """Run one of two functions."""
    results = f"results_{scope.number}"
    yield DeclareArray("rt::Tensor", results, max(len(call.outputs), 1))
    predicate = Call("rt::item", (Name(scope.name(call.predicate)),))
    yield If(
        Binary("!=", predicate, integer(0)),
        tuple(_run(call.then, call.operands, results, call.origins, scope)),
        tuple(_run(call.otherwise, call.operands, results, call.origins, scope)),
    )
    for position, output in enumerate(call.outputs):
        yield Declare(
            "rt::Tensor", scope.name(output.name), _settle_result(element(results, position), output, scope)
        )


def emit_loop(call: LoopCall, scope: Scope) -> Iterator[Statement]:
    """Run a function on its own results as long as another one says so, or so many times."""
    names = [scope.name(output.name) for output in call.outputs]
    for name, start in zip(names, call.carried, strict=True):
        if not isinstance(start, Ref):
            refuse(
                "a loop that carries a number", call.origins, "only tensors are carried between iterations"
            )
        yield Declare("rt::Tensor", name, Call(f"{scope.name(start.name)}.alias"))
    carried: tuple[Argument, ...] = tuple(Ref(output.name) for output in call.outputs)
    operands = (*carried, *call.extra)
    verdict, results = f"verdict_{scope.number}", f"results_{scope.number}"
    number = f"round_{scope.number}"
    asked: list[Statement] = []
    if call.condition is not None:
        asked = [
            DeclareArray("rt::Tensor", verdict, 1),
            *_run(call.condition, operands, verdict, call.origins, scope),
            If(Binary("==", Call("rt::item", (element(verdict, 0),)), integer(0)), (Break(),)),
        ]
    given = () if call.rounds is None else (Name(number),)
    body: list[Statement] = [
        *asked,
        DeclareArray("rt::Tensor", results, max(len(names), 1)),
        *_run(call.body, operands, results, call.origins, scope, numbers=given),
    ]
    for position, name in enumerate(names):
        body.append(Assign(Name(name), Call("rt::move", (element(results, position),))))
    going: Code = Name("true")
    if call.rounds is not None:
        yield Declare("int64_t", number, integer(0))
        body.append(Assign(Name(number), Binary("+", Name(number), integer(1))))
        going = Binary("<", Name(number), scope.index(call.rounds))
    yield While(going, tuple(body))
    for name, output in zip(names, call.outputs, strict=True):
        yield Assign(Name(name), _settle_result(Name(name), output, scope))


def emit_run(call: SubprogramCall, scope: Scope) -> Iterator[Statement]:
    """Run a function; its results are memory of their own."""
    results = f"results_{scope.number}"
    yield DeclareArray("rt::Tensor", results, max(len(call.outputs), 1))
    yield from _run(call.body, call.operands, results, call.origins, scope, suffix=f"_{scope.number}")
    for position, output in enumerate(call.outputs):
        given = Call("rt::move", (element(results, position),))
        settled = Call("rt::with_layout", (given, *scope.layout(output), get_dtype_code(output.dtype)))
        yield Declare("rt::Tensor", scope.name(output.name), settled)


def _settle_result(value: Code, output: Buffer, scope: Scope) -> Code:
    """Return a result in memory of its own, whatever the nested program returned: its operand, or another
    layout.
    """
    return Call("rt::copied", (value, *scope.layout(output), get_dtype_code(output.dtype)))


def _run(
    program: Program,
    operands: tuple[Argument, ...],
    results: str,
    origins: tuple[Origin, ...],
    scope: Scope,
    *,
    suffix: str = "",
    numbers: Sequence[Code] = (),
) -> Iterator[Statement]:
    """Call the function of `program`, which empties the array of its operands, the last of which are
    `numbers`. `suffix` makes names of arrays that no other call in the block has."""
    last = program.instructions[-1]
    if not isinstance(last, Return) or not all(isinstance(v, Ref) for v in last.values):
        refuse(
            "a branch or loop that returns a number",
            origins,
            "only tensors are returned from nested programs",
        )
    tensors: list[Code] = []
    extent_values: list[Code] = []
    for operand in operands:
        match operand:
            case Ref(name):
                tensors.append(Call(f"{scope.name(name)}.alias"))
            case Expr():
                extent_values.append(scope.index(operand))
            case bool() | int():
                extent_values.append(integer(int(operand)))
            case _:
                refuse(
                    f"operand {operand!r} of a branch or loop",
                    origins,
                    "only tensors and integers are passed on",
                )
    extent_values += [*numbers, *(scope.index(symbol) for symbol in scope.outer_symbols(program))]
    given = f"operands_{scope.function(program)}{suffix}"
    extents = f"extents_{scope.function(program)}{suffix}"
    yield _array("rt::Tensor", given, tensors)
    yield _array("const int64_t", extents, extent_values or [integer(0)])
    arguments = (Name("constants"), Name(given), Name(extents), Name(results), Name("nullptr"))
    yield Do(Call(scope.function(program), arguments))


def _array(kind: str, name: str, items: list[Code]) -> Statement:
    return DeclareArray(kind, name, items=tuple(items)) if items else DeclareArray(kind, name, 1)


# ---- instructions ----


MOST_LINES: Final = 6


def list_origin_lines(origins: tuple[Origin, ...]) -> tuple[str, ...]:
    """Comment lines: one per source line, naming its operations; at most `MOST_LINES`, then how many more
    there are.
    """
    groups: dict[tuple[str, int, str, str], list[str]] = {}
    for origin in origins:
        ops = groups.setdefault((origin.file, origin.line, origin.code, origin.module), [])
        if origin.op not in ops:
            ops.append(origin.op)
    lines = [_line(key, ops) for key, ops in groups.items()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more source lines"]
    return tuple(lines)


def _line(key: tuple[str, int, str, str], ops: list[str]) -> str:
    file, number, code, module = key
    parts = [", ".join(ops)]
    if file:
        parts.append(f"{file.rsplit('/', 1)[-1]}:{number}")
    if module:
        parts.append(f"[{module}]")
    if code:
        parts.append(code)
    return "  ".join(parts)


def make_error_lines(what: str, origins: tuple[Origin, ...]) -> str:
    """Return the lines that name a failing instruction in its message, with up to three source lines."""
    lines = [f"  node    {what}"]
    for origin in origins[:3]:
        where = f"{origin.file}:{origin.line}" if origin.file else "unknown"
        lines.append(f"  source  {where}   {origin.code or origin.op}")
    return "\n".join(lines)


RELATIONS: Final[Mapping[str, str]] = MappingProxyType({"eq": "==", "ne": "!=", "lt": "<", "le": "<="})


def emit_instruction(instruction: Instruction, scope: Scope) -> Iterator[Statement]:
    """Statements that do what `instruction` says.

    Raises:
        EmitError: `cpp-unsupported`, torch's C interface cannot do it.
    """
    match instruction:
        case BindSymbol():
            source = scope.name(instruction.buffer)
            value = Call(f"{source}.{instruction.what}", (integer(instruction.dim),))
            yield Declare("const int64_t", scope.symbol(instruction.symbol), value)
        case CheckLayout():
            yield from _check_layout(instruction, scope)
        case Alloc(buffer=buffer):
            layout = (*scope.layout(buffer), get_dtype_code(buffer.dtype), *scope.place(buffer.device))
            yield _define(buffer, Call("rt::empty", layout), scope)
        case AllocPool():
            size = (scope.index(instruction.size_bytes), *scope.place(instruction.device))
            yield Declare("rt::Tensor", scope.name(instruction.pool), Call("rt::empty_pool", size))
        case PoolView() | Reinterpret() | Reuse():
            yield from _view(instruction, scope)
        case Launch():
            yield from _launch(instruction, scope)
        case CheckSize():
            yield _step(f"check {instruction.lhs!r} {instruction.relation} {instruction.rhs!r}", instruction)
            sides = (scope.index(instruction.lhs), scope.index(instruction.rhs))
            test = Binary(RELATIONS[instruction.relation], *sides)
            yield Do(Call("rt::require", (test, string(instruction.message))))
        case ForkStream(device=device) | RecordEvent(device=device):
            # the host has no streams: what it is given is done when the next instruction begins
            if not is_host(device):
                refuse(f"a stream or event of {device}", UNKNOWN, "C++ programs put all work on one stream")
        case WaitEvent() | JoinStream():
            pass
        case Region():
            raise AssertionError("regions are inlined before a program is emitted")
        case ExternCall() | Copy() | CondCall() | LoopCall() | SubprogramCall():
            yield from _call(instruction, scope)
        case Free():
            yield from _release(scope)
        case Comment(text=text):
            yield Remark(text)
        case Return():
            yield from _return(instruction, scope)


def _step(
    what: str, instruction: Launch | ExternCall | CheckSize | CondCall | LoopCall | SubprogramCall | Copy
) -> Statement:
    """Return where a failure from here on comes from."""
    return Do(Call("rt::at", (string(make_error_lines(what, instruction.origins)),)))


def _define(buffer: Buffer, value: Code, scope: Scope) -> Statement:
    return Declare("rt::Tensor", scope.name(buffer.name), value)


# The rank up to which a layout stands in the table that `check_fixed_layouts` writes.
MOST_DIMENSIONS: Final = 8


def list_fixed_layouts(program: Program) -> Iterator[tuple[CheckLayout, Code]]:
    """Yield the checks of inputs whose layout no size changes, each with its row of the table."""
    tensors = [entry for entry in program.inputs if isinstance(entry, Buffer)]
    places = {entry.name: (number, entry) for number, entry in enumerate(tensors)}
    for instruction in program.instructions:
        if not isinstance(instruction, CheckLayout) or instruction.buffer not in places:
            continue
        if not instruction.asserted:
            continue
        number, buffer = places[instruction.buffer]
        shape, strides = ([as_int(extent) for extent in row] for row in (buffer.shape, buffer.strides))
        fixed = [[n for n in row if n is not None] for row in (shape, strides)]
        if len(shape) > MOST_DIMENSIONS or [len(row) for row in fixed] != [len(shape), len(shape)]:
            continue
        layout = (Braces(tuple(integer(n) for n in row)) for row in fixed)
        dtype = get_dtype_code(buffer.dtype)
        yield (
            instruction,
            Braces(
                (
                    string(buffer.name),
                    integer(number),
                    integer(len(shape)),
                    *layout,
                    Name(dtype.function) if isinstance(dtype, Call) else dtype,
                    string(buffer.dtype.torch_name),
                    Name("true" if instruction.aligned else "false"),
                    *(() if is_host(buffer.device) else (Name("true"),)),
                )
            ),
        )


def check_fixed_layouts(rows: Collection[Code]) -> Iterator[Statement]:
    """Check inputs against a table, which takes less code than a call for each."""
    if rows:
        yield DeclareArray("static const rt::Layout", "layouts", items=tuple(rows))
        yield Do(Call("rt::check_layouts", (Name("args"), Name("layouts"), integer(len(rows)))))


def _check_layout(instruction: CheckLayout, scope: Scope) -> Iterator[Statement]:
    buffer = scope.buffer(instruction.buffer)
    name = Name(scope.name(buffer.name))
    dtype = get_dtype_code(buffer.dtype)
    layout = scope.layout(buffer)
    described = string(buffer.dtype.torch_name)
    if instruction.asserted:
        place = scope.place(buffer.device)
        yield Do(Call("rt::check_layout", (name, string(buffer.name), *layout, dtype, described, *place)))
    if instruction.aligned:
        yield Assign(name, Call("rt::aligned", (Call("rt::move", (name,)), *layout, dtype)))


def _view(view: View, scope: Scope) -> Iterator[Statement]:
    """Define a view that has a tensor; one that is an address is computed where it is first used."""
    buffer, plan = view.buffer, scope.views
    moved = plan.moved.get(scope.number)
    if isinstance(view, Reuse):
        yield Remark(f"{scope.name(buffer.name)} takes over the memory of {scope.name(view.source)}")
    if moved is not None:
        yield _define(buffer, Call("rt::move", (Name(scope.name(moved)),)), scope)
    elif buffer.name in plan.seen:
        yield _define(buffer, scope.see(plan.seen[buffer.name], buffer), scope)
    elif buffer.name not in plan.bare:
        yield _define(buffer, _see_source(view, scope), scope)
    yield from _release(scope)


def _see_source(view: View, scope: Scope) -> Code:
    """Return a tensor in the memory of another tensor."""
    buffer, old = view.buffer, Name(scope.name(get_source(view)))
    layout, dtype = scope.layout(buffer), get_dtype_code(buffer.dtype)
    if isinstance(view, PoolView):
        return Call("rt::carve", (old, scope.index(view.offset_bytes), *layout, dtype))
    source = scope.buffer(view.source)
    offset = scope.index(view.offset) if isinstance(view, Reinterpret) else integer(0)
    if buffer.dtype is not source.dtype:
        return Call("rt::view_bits", (old, *layout, offset, dtype))
    if (buffer.shape, buffer.strides) == (source.shape, source.strides) and offset == integer(0):
        return Call(f"{old.text}.alias")
    return Call("rt::view", (old, *layout, offset))


def _release(scope: Scope) -> Iterator[Statement]:
    """Let go of the tensors that nobody has a use for behind this instruction."""
    for name in scope.views.released.get(scope.number, ()):
        yield Do(Call(f"{scope.name(name)}.reset"))


def _launch(launch: Launch, scope: Scope) -> Iterator[Statement]:
    manifest = scope.kernel(launch.kernel)
    yield from (Remark(line) for line in list_origin_lines(launch.origins))
    sizes: list[Code] = [scope.index(s) for s in launch.sizes]
    if len(manifest.sizes) != len(sizes) or len(manifest.args) < len(launch.args) + len(sizes):
        raise EmitError(
            "kernel-arguments",
            f"kernel {launch.kernel} is launched with {len(launch.args)} tensors and {len(sizes)} sizes",
            origins=launch.origins,
            reason=f"its source takes {len(manifest.args)} arguments, {len(manifest.sizes)} of them sizes",
        )
    for name in launch.args:
        yield from scope.read_address(name)
    pointers: list[Code] = [scope.address(a) for a in launch.args]
    number = scope.gpu_kernel(launch.kernel)
    if number is not None:
        kernel, numbers = integer(number), Braces(tuple(sizes))
        tensors = Braces(tuple(scope.tensor(a) for a in launch.args))
        yield _step(f"launch {launch.kernel}", launch)
        launched = Call("rt::launch", (kernel, Braces(tuple(pointers)), numbers))
        yield If(Unary("!", launched), (Do(Call("rt::launch_by_host", (kernel, tensors, numbers))),))
        return
    scratch: list[Name] = []
    for position, (dtype, code) in enumerate(_scratch(manifest)):
        name = f"scratch_{scope.number}_{position}"
        elements = scope.index(read_size_code(code, launch.sizes))
        shape = (Braces((elements,)), Braces((integer(1),)))
        yield Declare("rt::Tensor", name, Call("rt::empty", (*shape, get_dtype_code(dtype))))
        scratch.append(Name(name))
    pointers += [Call(f"{held.text}.data") for held in scratch]
    call = Call(
        scope.entry(launch.kernel), (*pointers[: len(launch.args)], *sizes, *pointers[len(launch.args) :])
    )
    if not manifest.checks:
        yield Do(call)
    else:
        yield _step(f"launch {launch.kernel}", launch)
        messages = f"checks_{scope.number}"
        items = tuple(string(check) for check in manifest.checks)
        yield DeclareArray("static const char* const", messages, items=items)
        yield Do(Call("rt::check_kernel", (call, Name(messages), string(launch.kernel))))
    for held in scratch:
        yield Do(Call(f"{held.text}.reset"))


def _scratch(manifest: KernelManifest) -> Iterator[tuple[DType, SizeBytecode]]:
    """Element type and number of elements of each memory that the launcher provides."""
    for arg in manifest.args:
        if arg.role == "scratch" and arg.elements is not None:
            yield parse_dtype(arg.dtype), arg.elements


def _call(
    instruction: ExternCall | Copy | CondCall | LoopCall | SubprogramCall, scope: Scope
) -> Iterator[Statement]:
    yield from (Remark(line) for line in list_origin_lines(instruction.origins))
    match instruction:
        case ExternCall() | Copy():
            if (call := find_call(instruction)) is not None:
                yield _step(f"extern {call.target}", call)
                yield from emit_call(call, scope)
        case CondCall():
            yield _step(f"cond %{instruction.predicate}", instruction)
            yield from emit_cond(instruction, scope)
        case LoopCall():
            yield _step("loop", instruction)
            yield from emit_loop(instruction, scope)
        case SubprogramCall():
            yield _step(f"run {instruction.body.name}", instruction)
            yield from emit_run(instruction, scope)


def _return(instruction: Return, scope: Scope) -> Iterator[Statement]:
    """Results move out at their last mention; constants and repeated results get another handle."""
    tensors = [v for v in instruction.values if not isinstance(v, Expr)]
    numbers = [v for v in instruction.values if isinstance(v, Expr)]
    for position, value in enumerate(tensors):
        if not isinstance(value, Ref):
            continue
        name = scope.name(value.name)
        last = value not in tensors[position + 1 :] and value.name not in scope.constants
        moved = Call("rt::move", (Name(name),)) if last else Call(f"{name}.alias")
        yield Assign(element("results", position), moved)
    for position, number in enumerate(numbers):
        yield Assign(element("result_sizes", position), scope.index(number))
