"""The operands of native instructions: registers, buffers, sizes and arguments, in binary form.

Every distinct subexpression of a size has a register, computed once before its first use. A buffer that only
kernels and further views touch is plain memory, for which no tensor has to stand. What an argument means to
an operator's schema is found out by the reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from coilwork_ir.buffers import (
    Argument,
    Buffer,
    DeviceValue,
    GraphInput,
    Item,
    ListValue,
    Ref,
    TorchValue,
    list_references,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, Sym, as_expr, as_int, get_node
from coilwork_ir.loc import Origin
from coilwork_ir.program.nodes import (
    AllocPool,
    CondCall,
    ExternCall,
    Instruction,
    LoopCall,
    Program,
    Return,
    SubprogramCall,
)
from coilwork_ir.program.regions import flatten_regions
from coilwork_ir.program.walk import index_buffers, list_outer_symbols
from coilwork_ir.streams import OWN, Copy
from coilwork_wrapper.native.wire_format import (
    Code,
    Input,
    Numbers,
    Operation,
    Ordering,
    Strings,
    Tag,
    encode_list,
    f64,
    i64,
    u8,
    u32,
    u32s,
)

# ---- registers ----


SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 63) - 1
CONSTANT: Final = 1 << 31
_DIGIT_BITS: Final = 62

_Key = tuple[Operation, int, int]


class Registers:
    """The registers of one part, as its instructions come to need them.

    A constant's number has the bit `CONSTANT` set; the others are counted apart.
    """

    def __init__(self) -> None:
        self._constants: dict[int, int] = {}
        self._symbols: dict[str, int] = {}
        self._known: dict[Expr, int] = {}
        self._computed: dict[_Key, int] = {}
        self._count = 0
        self._pending: list[tuple[_Key, int]] = []
        self._beyond: list[int] = []

    def symbol(self, symbol: Expr) -> int:
        """Return the register of a symbol, which somebody else fills."""
        if symbol.name not in self._symbols:
            self._symbols[symbol.name] = self._take_number()
        return self._symbols[symbol.name]

    def reserve(self) -> int:
        """Return a register of its own, which the executor fills."""
        return self._take_number()

    def allocate(self, value: Expr | int) -> int:
        """Return the register of `value`; what computes it comes with the next `take_pending`."""
        expr = as_expr(value)
        if expr not in self._known:
            self._known[expr] = self._compute(expr)
        return self._known[expr]

    def take_pending(self) -> Sequence[tuple[_Key, int]]:
        """Return the computations that come before the instruction at hand, and forget them."""
        pending, self._pending = self._pending, []
        return pending

    @property
    def computed_constants(self) -> Sequence[int]:
        """Constants that do not fit 64 bits, which are computed."""
        return self._beyond

    @property
    def constants(self) -> Sequence[int]:
        """Values of the constants."""
        return tuple(self._constants)

    @property
    def count(self) -> int:
        """The number of registers that hold no constants."""
        return self._count

    def _take_number(self) -> int:
        self._count += 1
        return self._count - 1

    def _compute(self, expr: Expr) -> int:
        match get_node(expr):
            case Const(value):
                return self._constant(value)
            case Sym(_, symbol):
                return self.symbol(symbol)
            case Add(operands):
                return self._chain(Operation.ADD, operands)
            case Mul(operands):
                return self._chain(Operation.MULTIPLY, operands)
            case FloorDiv(left, right):
                return self._operation(Operation.FLOOR_DIVIDE, self.allocate(left), self.allocate(right))
            case Mod(left, right):
                return self._operation(Operation.MODULO, self.allocate(left), self.allocate(right))
            case Min(operands):
                return self._chain(Operation.MINIMUM, operands)
            case Max(operands):
                return self._chain(Operation.MAXIMUM, operands)

    def _constant(self, value: int) -> int:
        if not SMALLEST <= value <= LARGEST:
            self._beyond.append(value)
            high, low = value >> _DIGIT_BITS, value & ((1 << _DIGIT_BITS) - 1)
            shifted = self._operation(
                Operation.MULTIPLY, self._constant(high), self._constant(1 << _DIGIT_BITS)
            )
            return self._operation(Operation.ADD, shifted, self._constant(low))
        return CONSTANT | self._constants.setdefault(value, len(self._constants))

    def _chain(self, operation: Operation, operands: Sequence[Expr]) -> int:
        return reduce(
            lambda left, right: self._operation(operation, left, right),
            [self.allocate(operand) for operand in operands],
        )

    def _operation(self, operation: Operation, left: int, right: int) -> int:
        key = (operation, left, right)
        if key not in self._computed:
            self._computed[key] = self._take_number()
            self._pending.append((key, self._computed[key]))
        return self._computed[key]


def compute_bytes(steps: Sequence[tuple[_Key, int]], place: int) -> bytes:
    """Return the instruction that computes `steps`."""

    def step(one: tuple[_Key, int]) -> bytes:
        (operation, left, right), target = one
        numbers = (target, left, right)
        return u8(operation) + b"".join(map(u32, numbers))

    return u8(Code.COMPUTE) + u32(place) + encode_list(steps, step)


def encode_constants(registers: Registers) -> bytes:
    """Encode the number of registers, and the values of the constants."""
    return u32(registers.count) + encode_list(registers.constants, i64)


# ---- programs ----


def encode_argument(
    value: Argument, ref: Callable[[str], bytes], register: Callable[[Expr], int], text: Callable[[str], int]
) -> bytes:
    """`value`; the functions tell of buffers and number sizes and strings."""
    match value:
        case None:
            return u8(Tag.NONE)
        case Ref(name):
            return u8(Tag.REF) + ref(name)
        case Item(name):
            return u8(Tag.ITEM) + ref(name)
        case Expr():
            known = as_int(value)
            if known is None or not SMALLEST <= known <= LARGEST:
                return u8(Tag.SIZE) + u32(register(value))
            return u8(Tag.INT) + i64(known)
        case bool():
            return u8(Tag.BOOL) + u8(value)
        case int():
            return encode_argument(as_expr(value), ref, register, text)
        case float():
            return u8(Tag.FLOAT) + f64(value)
        case complex():
            return u8(Tag.COMPLEX) + f64(value.real) + f64(value.imag)
        case str():
            return u8(Tag.STR) + u32(text(value))
        case DType():
            return u8(Tag.DTYPE) + u32(text(value.torch_name))
        case TorchValue(attribute):
            return u8(Tag.TORCH) + u32(text(attribute))
        case DeviceValue(device):
            return u8(Tag.DEVICE) + u32(text(device))
        case ListValue(items):
            return u8(Tag.LIST) + encode_list(items, lambda item: encode_argument(item, ref, register, text))


def find_needed_tensors(program: Program) -> frozenset[str]:
    """Names of the buffers of `program` that operators, nested programs and the caller are given."""
    names: set[str] = set()
    for instruction in flatten_regions(program.instructions):
        match instruction:
            case ExternCall():
                arguments: tuple[Argument, ...] = (
                    *instruction.args,
                    *(value for _, value in instruction.kwargs),
                    *(Ref(name) for _, name in instruction.out),
                )
            case CondCall():
                arguments = (Ref(instruction.predicate), *instruction.operands)
            case LoopCall():
                arguments = (*instruction.carried, *instruction.extra)
            case SubprogramCall():
                arguments = instruction.operands
            case Copy():
                arguments = (Ref(instruction.source), Ref(instruction.target))
            case Return():
                arguments = instruction.values
            case _:
                continue
        names.update(name for argument in arguments for name in list_references(argument))
    return frozenset(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The tables that all parts of a file share; `calls` is filled as parts are written.

    Attributes:
        strings: the table of strings.
        kernels: numbers of kernels.
        keys: numbers of constants.
        numbers: a nested program's number, by its identity.
        calls: calls of operators, in order.
        refusals: what the native executor cannot do.
    """

    strings: Strings
    kernels: Mapping[str, int]
    keys: Mapping[str, int]
    numbers: Mapping[int, int]
    calls: list[bytes] = field(default_factory=list)
    refusals: list[EmitError] = field(default_factory=list)


class Part:
    """A part being written: numbers for its names, and the bytes of its instructions so far."""

    def __init__(self, program: Program, shared: Shared) -> None:
        self.program = program
        self.shared = shared
        self.registers = Registers()
        self.buffers = index_buffers(program)
        pools = [i.pool for i in flatten_regions(program.instructions) if isinstance(i, AllocPool)]
        self._slots = {name: number for number, name in enumerate((*self.buffers, *pools))}
        self._streams: dict[str, int] = {OWN: 0}
        self._stream = OWN
        self._layouts: dict[bytes, int] = {}
        self._instructions: list[bytes] = []
        self._needed = find_needed_tensors(program)
        self.constants = frozenset(constant.buffer.name for constant in program.constants)
        self.inputs = frozenset(entry.name for entry in program.inputs if isinstance(entry, Buffer))

    def text(self, words: str) -> int:
        """Return the number of the string `words` in the table of strings, which all parts share."""
        return self.shared.strings.number(words)

    def slot(self, name: str) -> int:
        """Return the number of a buffer or pool."""
        return self._slots[name]

    def refuse(self, what: str, reason: str = "", origins: tuple[Origin, ...] = ()) -> None:
        """Note what the native executor cannot do."""
        self.shared.refusals.append(EmitError("native-unsupported", what, reason=reason, origins=origins))

    def stream(self, name: str) -> int:
        """Return the number of a stream or event."""
        return self._streams.setdefault(name, len(self._streams))

    def use_stream(self, name: str) -> None:
        """See to it that what follows is put on the stream `name`."""
        if name != self._stream:
            self._stream = name
            self.order_streams(Ordering.USE, name)

    def order_streams(self, what: Ordering, name: str, other: str = OWN, device: str = "") -> None:
        """Write what is done to a stream or event."""
        operands = u8(what) + u32(self.stream(name)) + u32(self.stream(other)) + u32(self.text(device))
        self.add(Code.STREAM, f"{what.name.lower()} %{name}", operands)

    def is_plain(self, name: str) -> bool:
        """Tell if only kernels and views touch the buffer."""
        return name not in self._needed

    def layout(self, buffer: Buffer) -> int:
        """Return the number of a buffer's layout."""
        return self._layout(buffer.dtype, buffer.device, buffer.shape, buffer.strides)

    def pool_layout(self, size_bytes: Expr, device: str) -> int:
        """Return the number of the layout of a block of bytes."""
        return self._layout(DType.U8, device, (size_bytes,), (as_expr(1),))

    def _layout(self, dtype: DType, device: str, shape: Sequence[Expr], strides: Sequence[Expr]) -> int:
        registers = [self.registers.allocate(size) for size in (*shape, *strides)]
        data = u32(self.text(dtype.torch_name)) + u32(self.text(device)) + u32(len(shape))
        return self._layouts.setdefault(data + b"".join(map(u32, registers)), len(self._layouts))

    def argument(self, value: Argument) -> bytes:
        """Return an argument of an operator."""
        return encode_argument(value, self._ref, self.registers.allocate, self.text)

    def _ref(self, name: str) -> bytes:
        return u32(self.slot(name)) + u8(_kind(self.buffers[name].dtype))

    def add(self, code: int, place: str, operands: bytes) -> None:
        """Write an instruction, after what computes the sizes that it needs."""
        where = self.text(place)
        pending = self.registers.take_pending()
        if pending:
            self._instructions.append(compute_bytes(pending, where))
        self._instructions.append(u8(code) + u32(where) + operands)

    def data(self, write: Callable[[Part, Instruction], None], order: Sequence[Instruction]) -> bytes:
        """Return the part, its instructions written by `write` in this order."""
        outer = [self.registers.symbol(symbol) for symbol in list_outer_symbols(self.program)]
        inputs = self._inputs()
        for instruction in order:
            write(self, instruction)
        for value in self.registers.computed_constants:
            self.refuse(f"the number {value}", "the native executor computes in 64 bits")
        known = [
            u32(self.slot(constant.buffer.name)) + u32(self.shared.keys[constant.key])
            for constant in self.program.constants
        ]
        return b"".join(
            (
                u32(self.text(self.program.name)),
                encode_list(self._slots, lambda name: u32(self.text(name))),
                encode_constants(self.registers),
                u32s(outer),
                inputs,
                encode_list(known, bytes),
                encode_list(self._layouts, bytes),
                encode_list(self._instructions, bytes),
            )
        )

    def _inputs(self) -> bytes:
        bound: set[str] = set()

        def entry_bytes(entry: GraphInput) -> bytes:
            if isinstance(entry, Buffer):
                return u8(Input.TENSOR) + u32(self.slot(entry.name))
            if not entry.is_symbol or entry.name in bound:
                return u8(Input.KNOWN) + u32(0)
            bound.add(entry.name)
            return u8(Input.SIZE) + u32(self.registers.symbol(entry))

        return encode_list(self.program.inputs, entry_bytes)


def _kind(dtype: DType) -> Numbers:
    return Numbers.QUANTIZED if dtype.is_quantized else Numbers.FLOATS if dtype.is_float else Numbers.OTHERS
