"""A program as bytes, by which it runs: the emitter's entry.

Capture regions of a program for the native executor: the work that it may hand to the driver as graphs.

What splits them is said once, with the verifier: `coilwork_ir.program.regions.find_capture_refusal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int
from coilwork_ir.program.nodes import (
    BindSymbol,
    CheckLayout,
    CheckSize,
    Comment,
    Instruction,
    Program,
    Region,
    Return,
)
from coilwork_ir.program.regions import (
    find_capture_refusal,
    find_device,
    inline_nested_regions,
    make_region,
    outline_regions,
)
from coilwork_ir.program.walk import check_bound, index_buffers, list_distinct_programs, list_kernels
from coilwork_wrapper.native.instructions import write_instruction
from coilwork_wrapper.native.operands import Part, Shared
from coilwork_wrapper.native.wire_format import MAGIC, VERSION, Strings, encode_list, u32

LEAST_WORK: Final = 4
"""Launches, products and convolutions in a region: the driver takes a graph in about the time of two."""


def mark_captures(program: Program) -> Program:
    """`program` with capture regions where work can be replayed. Its own stay, nested programs' go, and
    those of other kinds are calls.
    """
    program = outline_regions(program)
    if any(isinstance(instruction, Region) for instruction in program.instructions):
        return replace(program, instructions=tuple(map(inline_nested_regions, program.instructions)))
    return replace(program, instructions=tuple(_Stretches(program).split()))


class _Stretches:
    """One walk over a program: the stretch so far, and what of it may begin or end a region."""

    def __init__(self, program: Program) -> None:
        self._instructions = program.instructions
        self._buffers = index_buffers(program)
        self._stretch: list[Instruction] = []
        self._device = ""
        # the first and last work in the stretch, and how much there is
        self._first, self._last, self._work = 0, 0, 0

    def split(self) -> Iterator[Instruction]:
        """Yield the program's instructions, with those of long stretches in regions."""
        for instruction in self._instructions:
            device = find_device(instruction, self._buffers)
            refusal = find_capture_refusal(instruction, self._buffers, self._device or device)
            if refusal:
                yield from self._end(refusal)
                # work of another device begins the next stretch
                self._device = ""
                if find_capture_refusal(instruction, self._buffers, device):
                    yield inline_nested_regions(instruction)
                    continue
            self._add(instruction, device)
        yield from self._end("the program ends")

    def _add(self, instruction: Instruction, device: str) -> None:
        if device:
            self._device = device
            self._first = self._first if self._work else len(self._stretch)
            self._last = len(self._stretch)
            self._work += 1
        self._stretch.append(instruction)

    def _end(self, why: str) -> Iterator[Instruction]:
        if self._work >= LEAST_WORK:
            end = self._last + 1
            yield from self._stretch[: self._first]
            yield make_region("capture", self._stretch[self._first : end], why)
            yield from self._stretch[end:]
        else:
            yield from self._stretch
        self._stretch, self._work = [], 0


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
    programs = list_distinct_programs(program)
    for one in programs:
        if not one.instructions or not isinstance(one.instructions[-1], Return):
            raise EmitError("no-return", f"program @{one.name} does not end in a return")
    kernels = [kernel.name for kernel in list_kernels(program)]
    keys = tuple(dict.fromkeys(constant.key for part in programs for constant in part.constants))
    strings = Strings()
    shared = Shared(
        strings=strings,
        kernels={name: number for number, name in enumerate(kernels)},
        keys={key: number for number, key in enumerate(keys)},
        numbers={id(part): number for number, part in enumerate(programs)},
    )
    parts = [
        Part(one, shared).data(write_instruction, _order_instructions(one, checks_first=one is program))
        for one in programs
    ]
    tables = encode_list(keys, lambda key: u32(strings.number(key)))
    tables += encode_list(kernels, lambda name: u32(strings.number(name)))
    payload = strings.table() + tables + encode_list(shared.calls, bytes) + encode_list(parts, bytes)
    data = MAGIC + u32(VERSION) + u32(len(payload)) + payload
    return EncodedProgram(data, next(iter(shared.refusals), None))


def _order_instructions(program: Program, *, checks_first: bool) -> Sequence[Instruction]:
    """Instructions without bindings of what is bound already; checks of fixed layouts first, as the Python
    module does.
    """
    order: list[Instruction] = []
    fixed: list[Instruction] = []
    known = {entry.name for entry in program.inputs if isinstance(entry, Expr) and entry.is_symbol}
    start = len(list(takewhile(_is_preamble, program.instructions))) if checks_first else 0
    shapes = _find_fixed_layouts(program)
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


def _find_fixed_layouts(program: Program) -> frozenset[str]:
    """Inputs whose shapes and strides depend on no symbol."""
    return frozenset(
        entry.name
        for entry in program.inputs
        if not isinstance(entry, Expr)
        and all(as_int(size) is not None for size in (*entry.shape, *entry.strides))
    )
