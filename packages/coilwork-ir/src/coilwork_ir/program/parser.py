"""The parser of programs; `text.py` shows the form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, SymbolOutput
from coilwork_ir.index import Expr
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.parser import read_kernel, read_proposals
from coilwork_ir.loops.parser import RELATIONS, read_header
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
from coilwork_ir.text.atoms import (
    STREAM_READERS,
    Symbols,
    parse_argument,
    parse_buffer,
    parse_indices,
    parse_list,
    parse_origins,
    parse_output,
    parse_ref,
    parse_symbol,
    read_binds,
    read_call_arguments,
    read_flight,
    read_on,
    read_paths,
    read_result,
)
from coilwork_ir.text.reader import Reader


def parse_program(text: str) -> Program:
    """Return the program that `text` spells.

    Raises:
        ParseError: with line, reason and a caret.
    """
    reader = _ProgramReader(text)
    program = _read_program(reader, {})
    reader.finish()
    return program


class _ProgramReader(Reader):
    """A place in the text of a program, and the subprograms that stand before it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.subprograms: dict[str, Program] = {}


def _read_program(reader: _ProgramReader, outer: Symbols) -> Program:
    reader.expect("program")
    reader.expect("@")
    name = reader.name()
    reader.expect("{")
    symbols = dict(outer)
    declared, inputs, constants = read_header(reader, symbols)
    kernels: list[Kernel] = []
    while reader.peek("kernel"):
        kernels.append(read_kernel(reader))
    proposals = read_proposals(reader)
    while reader.peek("program"):
        body = _read_program(reader, {})
        reader.subprograms[body.name] = body
    # its symbols may be bound by instructions
    peak_at = _skip_backquoted(reader) if reader.accept("peak") else None
    instructions = _read_instructions(reader, symbols)
    peak = None
    if peak_at is not None:
        end, reader.at = reader.at, peak_at
        peak, reader.at = _read_backquoted(reader, symbols), end
    return Program(
        name=name,
        symbols=declared,
        inputs=inputs,
        constants=constants,
        kernels=tuple(kernels),
        proposals=proposals,
        instructions=instructions,
        peak_bytes=peak,
    )


def _read_instructions(reader: _ProgramReader, symbols: Symbols) -> tuple[Instruction, ...]:
    """Read the instructions before the next closing brace."""
    instructions: list[Instruction] = []
    while not reader.accept("}"):
        at = reader.at
        word = reader.name()
        if word not in _READERS:
            raise reader.error(f"there is no instruction {word!r}", at)
        instructions.append(_READERS[word](reader, symbols))
    return tuple(instructions)


def _read_backquoted(reader: Reader, symbols: Symbols) -> Expr:
    reader.expect("`")
    value = reader.index(symbols, "`")
    reader.expect("`")
    return value


def _skip_backquoted(reader: Reader) -> int:
    """Skip an expression, and return where it begins."""
    start = reader.at
    reader.expect("`")
    end = reader.text.find("`", reader.at)
    if end < 0:
        raise reader.error("an expression in backquotes does not end", start)
    reader.at = end
    reader.expect("`")
    return start


def _read_bind(reader: Reader, symbols: Symbols) -> Instruction:
    value = parse_symbol(reader, symbols)
    if reader.choice(("size", "stride"), "size or stride") == "size":
        return BindSymbol(symbol=value, buffer=parse_ref(reader), dim=reader.integer())
    return BindSymbol(symbol=value, buffer=parse_ref(reader), dim=reader.integer(), what="stride")


def _read_check(reader: Reader, symbols: Symbols) -> Instruction:
    return CheckLayout(buffer=parse_ref(reader), aligned=reader.accept("aligned"))


def _read_align(reader: Reader, symbols: Symbols) -> Instruction:
    return CheckLayout(buffer=parse_ref(reader), aligned=True, asserted=False)


def _read_alloc(reader: Reader, symbols: Symbols) -> Instruction:
    return Alloc(buffer=parse_buffer(reader, symbols))


def _read_pool(reader: Reader, symbols: Symbols) -> Instruction:
    return AllocPool(
        pool=parse_ref(reader), size_bytes=_read_backquoted(reader, symbols), device=reader.string()
    )


def _read_carve(reader: Reader, symbols: Symbols) -> Instruction:
    buffer = parse_buffer(reader, symbols)
    reader.expect("of")
    pool = parse_ref(reader)
    reader.expect("at")
    return PoolView(buffer=buffer, pool=pool, offset_bytes=_read_backquoted(reader, symbols))


def _read_reuse(reader: Reader, symbols: Symbols) -> Instruction:
    buffer = parse_buffer(reader, symbols)
    reader.expect("of")
    return Reuse(buffer=buffer, source=parse_ref(reader))


def _read_view(reader: Reader, symbols: Symbols) -> Instruction:
    buffer = parse_buffer(reader, symbols)
    reader.expect("of")
    source = parse_ref(reader)
    reader.expect("offset")
    offset = _read_backquoted(reader, symbols)
    return Reinterpret(buffer=buffer, source=source, offset=offset, origins=parse_origins(reader))


def _read_launch(reader: Reader, symbols: Symbols) -> Instruction:
    reader.expect("@")
    kernel = reader.name()
    args = parse_list(reader, lambda: parse_ref(reader))
    sizes = parse_indices(reader, symbols, "[", "]") if reader.accept("sizes") else ()
    stream = read_on(reader)
    return Launch(kernel=kernel, args=args, sizes=sizes, stream=stream, origins=parse_origins(reader))


def _read_extern(reader: Reader, symbols: Symbols) -> Instruction:
    target = reader.string()
    args, kwargs = read_call_arguments(reader, symbols)
    implements = reader.string() if reader.accept("implements") else ""
    out: tuple[tuple[str, str], ...] = ()
    if reader.accept("out"):
        out = parse_list(reader, lambda: (reader.string(), parse_ref(reader)))
    binds = read_binds(reader, symbols)
    outputs: tuple[Buffer | SymbolOutput | None, ...] = ()
    if reader.accept("defines"):
        outputs = parse_list(reader, lambda: read_result(reader, symbols))
    aligned = parse_list(reader, reader.integer) if reader.accept("aligned") else ()
    single = not reader.accept("tuple")
    paths = read_paths(reader)
    in_flight, until, waits = read_flight(reader)
    stream = read_on(reader)
    return ExternCall(
        target=target,
        args=args,
        kwargs=kwargs,
        out=out,
        outputs=outputs,
        single=single,
        paths=paths,
        binds=binds,
        aligned=aligned,
        in_flight=in_flight,
        until=until,
        waits=waits,
        implements=implements,
        stream=stream,
        origins=parse_origins(reader),
    )


def _read_assert(reader: Reader, symbols: Symbols) -> Instruction:
    lhs = _read_backquoted(reader, symbols)
    word = reader.choice(RELATIONS, "a relation")
    rhs = _read_backquoted(reader, symbols)
    message = reader.string()
    origins = parse_origins(reader)
    match word:
        case "eq" | "ne" | "lt" | "le":
            return CheckSize(lhs=lhs, relation=word, rhs=rhs, message=message, origins=origins)
    raise AssertionError(word)


def _read_cond(reader: _ProgramReader, symbols: Symbols) -> Instruction:
    predicate = parse_ref(reader)
    operands = parse_list(reader, lambda: parse_argument(reader, symbols))
    reader.expect("defines")
    outputs = parse_list(reader, lambda: parse_buffer(reader, symbols))
    reader.expect("{")
    then = _read_program(reader, symbols)
    otherwise = _read_program(reader, symbols)
    reader.expect("}")
    origins = parse_origins(reader)
    return CondCall(
        predicate=predicate,
        then=then,
        otherwise=otherwise,
        operands=operands,
        outputs=outputs,
        origins=origins,
    )


def _read_while(reader: _ProgramReader, symbols: Symbols) -> Instruction:
    return _read_loop(reader, symbols, None)


def _read_repeat(reader: _ProgramReader, symbols: Symbols) -> Instruction:
    return _read_loop(reader, symbols, _read_backquoted(reader, symbols))


def _read_loop(reader: _ProgramReader, symbols: Symbols, rounds: Expr | None) -> Instruction:
    carried = parse_list(reader, lambda: parse_argument(reader, symbols))
    extra = parse_list(reader, lambda: parse_argument(reader, symbols))
    reader.expect("defines")
    outputs = parse_list(reader, lambda: parse_buffer(reader, symbols))
    reader.expect("{")
    condition = _read_program(reader, symbols) if rounds is None else None
    body = _read_program(reader, symbols)
    reader.expect("}")
    return LoopCall(
        body=body,
        condition=condition,
        rounds=rounds,
        carried=carried,
        extra=extra,
        outputs=outputs,
        origins=parse_origins(reader),
    )


def _read_run(reader: _ProgramReader, symbols: Symbols) -> Instruction:
    at = reader.at
    reader.expect("@")
    name = reader.name()
    if name not in reader.subprograms:
        raise reader.error(f"there is no subprogram @{name}", at)
    operands = parse_list(reader, lambda: parse_argument(reader, symbols))
    reader.expect("defines")
    outputs = parse_list(reader, lambda: parse_buffer(reader, symbols))
    body, origins = reader.subprograms[name], parse_origins(reader)
    return SubprogramCall(body=body, operands=operands, outputs=outputs, origins=origins)


def _read_region(reader: _ProgramReader, symbols: Symbols) -> Instruction:
    kind = reader.choice(("capture", "partition", "nested"), "a kind of region")
    name = reader.name() if reader.accept("@") else ""
    inputs = parse_list(reader, lambda: parse_ref(reader))
    sizes: tuple[Expr, ...] = ()
    if reader.accept("sizes"):
        sizes = parse_list(reader, lambda: parse_symbol(reader, symbols))
    outputs = parse_list(reader, lambda: parse_ref(reader)) if reader.accept("leaves") else ()
    why = reader.string() if reader.accept("why") else ""
    reader.expect("{")
    body = _read_instructions(reader, symbols)
    match kind:
        case "capture" | "partition" | "nested":
            return Region(
                kind=kind, inputs=inputs, outputs=outputs, symbols=sizes, body=body, why=why, name=name
            )
    raise AssertionError(kind)


def _read_free(reader: Reader, symbols: Symbols) -> Instruction:
    return Free(names=parse_list(reader, lambda: parse_ref(reader)))


def _read_comment(reader: Reader, symbols: Symbols) -> Instruction:
    return Comment(text=reader.string())


def _read_return(reader: Reader, symbols: Symbols) -> Instruction:
    return Return(values=parse_list(reader, lambda: parse_output(reader, symbols)))


def _ignore_symbols(read: Callable[[Reader], Instruction]) -> Callable[[Reader, Symbols], Instruction]:
    return lambda reader, symbols: read(reader)


_READERS: Final[Mapping[str, Callable[[_ProgramReader, Symbols], Instruction]]] = MappingProxyType(
    {
        "bind": _read_bind,
        "check": _read_check,
        "align": _read_align,
        "alloc": _read_alloc,
        "pool": _read_pool,
        "carve": _read_carve,
        "reuse": _read_reuse,
        "view": _read_view,
        "launch": _read_launch,
        "extern": _read_extern,
        "assert": _read_assert,
        "cond": _read_cond,
        "while": _read_while,
        "repeat": _read_repeat,
        "run": _read_run,
        "region": _read_region,
        "free": _read_free,
        "comment": _read_comment,
        "return": _read_return,
        **{word: _ignore_symbols(read) for word, read in STREAM_READERS.items()},
    }
)
