"""The binary form of a program: its codes, and a writer of its parts.

Numbers are little-endian and unaligned: `u8`, `u32`, `i64`, `f64`. `text` is a `u32` into the table of
strings; `list of X` a `u32` count and that many. `slot` (a buffer or pool), `register` (an integer) and
`layout` are `u32` into the part at hand.

    file      "coilwork", u32 VERSION, u32 bytes that follow
              list of string (u32 bytes, UTF-8), list of key (text), list of kernel (text),
              list of call, list of part
    call      text target, text kind of node it implements or "", list of argument,
              list of (text keyword, argument), list of (text keyword, slot),
              text device (of the first tensor, "" if there is none), u32 results, u8 single,
              list of path (list of u32: where each result lies in what the operator returns; none: result k
              is item k)
    argument  u8 `Tag`, then what the tag says
    part      text name, list of slot name (text), u32 registers, list of i64 (constants: a register with bit
    31 set is one),
              list of register (sizes that the caller passes on), list of input, list of (slot, u32 key),
              list of layout, list of instruction
    input     u8 `Input`, slot or register (0 if it is neither)
    layout    text dtype, text device, u32 rank, rank registers (sizes), rank registers (strides)
    instruction  u8 `Code`, text place (what it does and which source lines it implements), then what the code
    says

Part 0 is the program, the others are nested in it. Strings, calls, layouts and registers that are equal occur
once.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Final, TypeVar

MAGIC: Final = b"coilwork"
VERSION: Final = 6

_T = TypeVar("_T")


class Code(IntEnum):
    """The code of an instruction; comments list its operands.

    A *view* is one of a source's memory: `u8 View`, then an offset register in elements of the new layout.
    `plain` (u8) says that nothing but kernels' pointers and further views use a buffer.
    """

    COMPUTE = 1
    """list of (u8 `Operation`, register target, register, register)"""
    BIND = 2
    """register, slot, u32 dim, u8 is a stride, i32 expected rank or -1"""
    CHECK = 3
    """slot, layout, u8 aligned"""
    ALLOC = 4
    """slot, layout, u8 plain"""
    POOL = 5
    """slot, layout (bytes in one dimension)"""
    CARVE = 6
    """slot, slot pool, register offset in bytes, layout, u8 plain"""
    REUSE = 7
    """slot, slot source, view, layout, u8 plain; the source is gone unless it is a constant"""
    VIEW = 8
    """slot, slot source, view, layout, u8 plain"""
    LAUNCH = 9
    """u32 kernel, list of slot, list of register"""
    CALL = 10
    """u32 call, list of output (u8 `Output`, slot or register), list of (register, u32 output, u32 dim)"""
    REQUIRE = 11
    """register, u8 `Relation`, register, text message"""
    COND = 12
    """slot predicate, nested then, nested otherwise, list of (slot, layout); nested: u32 part, list of
    operand, list of register; operand: u8 is a number, slot or register
    """
    WHILE = 13
    """nested condition, nested body, list of (slot, layout); operands: those carried come first"""
    FREE = 14
    """list of slot"""
    RETURN = 15
    """list of (u8 `Result`, slot or register)"""
    SETTLE = 16
    """slot, layout, u8 aligned: a call's result, which is copied if it has other strides or should be aligned
    and is not
    """

    STREAM = 32
    """u8 `Ordering`, u32 number of a stream or event, u32 number of another stream, text device or "";
    streams and events are numbered from 1, and stream 0 is the call's own"""

    REGION = 33
    """u8 1 if a capture region begins, 0 if it ends: what a driver may replay. In the first part only"""
    RUN = 34
    """nested, list of (slot, layout): a part whose results are memory of its own"""
    REPEAT = 35
    """register number of rounds, register of the round at hand (filled by the executor), nested body, list of
    (slot, layout); operands: those carried come first"""


class Ordering(IntEnum):
    """An operation on a stream or an event."""

    FORK = 0
    """stream, stream that it is behind, device"""
    RECORD = 1
    """event, stream, device"""
    WAIT = 2
    """event, stream"""
    SYNCHRONIZE = 3
    """event, 0: the host waits"""
    JOIN = 4
    """stream, stream that waits for it"""
    USE = 5
    """stream, 0: later work is put on it"""


class Operation(IntEnum):
    """Integer arithmetic with the floor semantics of the IR."""

    ADD = 1
    MULTIPLY = 2
    FLOOR_DIVIDE = 3
    MODULO = 4
    MINIMUM = 5
    MAXIMUM = 6


class Input(IntEnum):
    """A parameter: a tensor, a number that binds a symbol, or a number that is known already."""

    TENSOR = 0
    SIZE = 1
    KNOWN = 2


class Output(IntEnum):
    """A result of a call: not wanted, a tensor, or a number."""

    NOTHING = 0
    TENSOR = 1
    NUMBER = 2


class Result(IntEnum):
    """A result of the program."""

    NOTHING = 0
    TENSOR = 1
    NUMBER = 2


class View(IntEnum):
    """The kind of a view: the same tensor, another layout, or another element type."""

    SAME = 0
    LAYOUT = 1
    BITS = 2


class Relation(IntEnum):
    """The relation that a check of sizes requires."""

    EQ = 0
    NE = 1
    LT = 2
    LE = 3


class Tag(IntEnum):
    """The kind of an argument of a call; comments say what follows it."""

    NONE = 0
    REF = 1
    """slot, u8 `Numbers`"""
    SIZE = 2
    """register"""
    INT = 3
    """i64"""
    BOOL = 4
    """u8"""
    FLOAT = 5
    """f64"""
    COMPLEX = 6
    """f64, f64"""
    STR = 7
    """text"""
    DTYPE = 8
    """text, an attribute of torch"""
    TORCH = 9
    """text, an attribute of torch"""
    DEVICE = 10
    """text"""
    LIST = 11
    """list of argument"""
    ITEM = 12
    """slot, u8 `Numbers`: the number that it holds"""


class Numbers(IntEnum):
    """The kind of numbers that a tensor holds."""

    OTHERS = 0
    FLOATS = 1
    QUANTIZED = 2


class Strings:
    """The table of strings, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return where `text` stands."""
        return self._numbers.setdefault(text, len(self._numbers))

    def table(self) -> bytes:
        """`list of string`."""
        parts = [u32(len(self._numbers))]
        for text in self._numbers:
            data = text.encode("utf-8", "surrogatepass")
            parts += [u32(len(data)), data]
        return b"".join(parts)


def u8(value: int) -> bytes:
    """One byte."""
    return value.to_bytes(1, "little")


def u32(value: int) -> bytes:
    """Four bytes."""
    return value.to_bytes(4, "little")


def i32(value: int) -> bytes:
    """Four bytes, two's complement."""
    return value.to_bytes(4, "little", signed=True)


def i64(value: int) -> bytes:
    """Eight bytes, two's complement."""
    return value.to_bytes(8, "little", signed=True)


def f64(value: float) -> bytes:
    """Eight bytes, IEEE 754."""
    return struct.pack("<d", value)


def u32s(values: Sequence[int]) -> bytes:
    """`list of u32`."""
    return encode_list(values, u32)


def encode_list(values: Iterable[_T], write: Callable[[_T], bytes]) -> bytes:
    """`list of X`."""
    parts = [write(value) for value in values]
    return u32(len(parts)) + b"".join(parts)
