"""A program as bytes, by which it runs: the emitter's entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int
from coilwork_ir.program.nodes import (
    BindSymbol,
    CheckLayout,
    CheckSize,
    Comment,
    Instruction,
    Program,
    Return,
)
from coilwork_ir.program.symbols import check_bound
from coilwork_ir.program.walk import all_kernels, distinct_programs
from coilwork_wrapper.native.captures import mark_captures
from coilwork_wrapper.native.encoding import MAGIC, VERSION, Strings, listing, u32
from coilwork_wrapper.native.instructions import write_instruction
from coilwork_wrapper.native.parts import Part, Shared


@dataclass(frozen=True, slots=True)
class EncodedProgram:
    """A program as bytes.

    Attributes:
        data: what `coilwork_runtime.executor` runs, in Python whatever the program does; `encoding` describes
            it.
        refusal: why the native executor does not run it, if it does not.
    """

    data: bytes
    refusal: EmitError | None = None


def emit_native(program: Program) -> bytes:
    """`program` as bytes for the native executor.

    Raises:
        EmitError: `native-unsupported`, the program does what the executor cannot; or as `encode_program`.
    """
    encoded = encode_program(program)
    if encoded.refusal is not None:
        raise encoded.refusal
    return encoded.data


def encode_program(program: Program) -> EncodedProgram:
    """`program` as bytes, and why the native executor refuses them, if it does.

    A pure function: equal programs give equal bytes, whatever torch is installed.

    Raises:
        EmitError: `unbound-symbol`, a size has no value; `no-return`, it does not end in a return.
    """
    check_bound(program)
    program = mark_captures(program)
    # a program that two instructions share is written once
    programs = distinct_programs(program)
    for one in programs:
        if not one.instructions or not isinstance(one.instructions[-1], Return):
            raise EmitError("no-return", f"program @{one.name} does not end in a return")
    kernels = [kernel.name for kernel in all_kernels(program)]
    keys = tuple(dict.fromkeys(constant.key for part in programs for constant in part.constants))
    strings = Strings()
    shared = Shared(
        strings=strings,
        kernels={name: number for number, name in enumerate(kernels)},
        keys={key: number for number, key in enumerate(keys)},
        numbers={id(part): number for number, part in enumerate(programs)},
    )
    parts = [
        Part(one, shared).data(write_instruction, _in_order(one, checks_first=one is program))
        for one in programs
    ]
    tables = listing(keys, lambda key: u32(strings.number(key)))
    tables += listing(kernels, lambda name: u32(strings.number(name)))
    payload = strings.table() + tables + listing(shared.calls, bytes) + listing(parts, bytes)
    data = MAGIC + u32(VERSION) + u32(len(payload)) + payload
    return EncodedProgram(data, next(iter(shared.refusals), None))


def _in_order(program: Program, *, checks_first: bool) -> Sequence[Instruction]:
    """Instructions without bindings of what is bound already; checks of fixed layouts first, as the Python
    module does.
    """
    order: list[Instruction] = []
    fixed: list[Instruction] = []
    known = {entry.name for entry in program.inputs if isinstance(entry, Expr) and entry.is_symbol}
    start = len(list(takewhile(_is_preamble, program.instructions))) if checks_first else 0
    shapes = _of_fixed_layout(program)
    for number, instruction in enumerate(program.instructions):
        if isinstance(instruction, BindSymbol):
            if instruction.symbol.name in known:
                continue
            known.add(instruction.symbol.name)
        first = number < start and isinstance(instruction, CheckLayout) and instruction.buffer in shapes
        (fixed if first else order).append(instruction)
    return (*fixed, *order)


def _is_preamble(instruction: Instruction) -> bool:
    return isinstance(instruction, BindSymbol | CheckLayout | CheckSize | Comment)


def _of_fixed_layout(program: Program) -> frozenset[str]:
    """Inputs whose shapes and strides depend on no symbol."""
    return frozenset(
        entry.name
        for entry in program.inputs
        if not isinstance(entry, Expr)
        and all(as_int(size) is not None for size in (*entry.shape, *entry.strides))
    )
