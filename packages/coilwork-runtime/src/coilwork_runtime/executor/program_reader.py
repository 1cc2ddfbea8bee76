"""Read a program's bytes: its tables with the calls of operators, and its parts instruction by instruction.

The first part is the program, the others are nested in it. Every number is checked against what its part
has. `coilwork_wrapper.native.wire_format` describes the form.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeAlias, TypeVar

import torch

from coilwork_runtime.errors import ProgramBytesError
from coilwork_runtime.manifest.wire_format import ByteReader, block, u32, write_list

MAGIC: Final = b"coilwork"
VERSION: Final = 6

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor of the program, of floating point, quantised, or neither."""

    number: int
    is_float: bool
    is_quantized: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """The number that a tensor of the program holds when the call is made."""

    slot: Slot


@dataclass(frozen=True, slots=True)
class Size:
    """An integer that the program computes, in a register."""

    number: int


Argument: TypeAlias = Any
"""`Slot`, `Item`, `Size`, a list of arguments, or the value itself: `None`, a number, text, or a constant of
torch.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call of an operator.

    Attributes:
        target: `"aten.mm.out"`.
        implements: the kind of node that it computes, as `"convolution"`, if the program says so; else `""`.
        args, kwargs: its arguments, those for results among `kwargs`.
        device: of the first tensor, `""` if there is none.
        wanted: how many results the program declares.
        single: it returns one bare value rather than a tuple.
        paths: where each result lies in what the operator returns, if that holds lists beside other results;
            else empty.
    """

    target: str
    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    device: str
    wanted: int
    single: bool
    paths: tuple[tuple[int, ...], ...] = ()
    implements: str = ""

    def slots(self) -> Iterator[Slot]:
        """Yield the tensors among the arguments, in order, those whose numbers are read included."""
        for one in self._leaves():
            if isinstance(one, Slot | Item):
                yield one if isinstance(one, Slot) else one.slot

    def sizes(self) -> Iterator[Size]:
        """Yield the computed integers among the arguments, in order."""
        yield from (one for one in self._leaves() if isinstance(one, Size))

    def _leaves(self) -> Iterator[Argument]:
        for value in (*self.args, *self.kwargs.values()):
            yield from _leaves(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables in front of the program's parts: keys of constants, names of kernels, calls."""

    keys: tuple[str, ...]
    kernels: tuple[str, ...]
    calls: tuple[RecordedCall, ...]


def read_tables(data: bytes) -> Tables:
    """Return the tables of a program.

    Raises:
        ProgramBytesError: the bytes are no program, or of another version.
    """
    with refuse_damage():
        return read_heading(ProgramReader(data))


@contextlib.contextmanager
def refuse_damage() -> Iterator[None]:
    """Turn every error of reading bytes into one that says that the program is damaged.

    Raises:
        ProgramBytesError: they are.
    """
    try:
        yield
    except (struct.error, IndexError, ValueError, AttributeError, RuntimeError) as error:
        raise ProgramBytesError(
            "damaged-program",
            "the bytes of a program are damaged",
            reason=str(error),
            remedy="clear the cache that they came from, or compile again",
        ) from error


def read_heading(reader: ProgramReader) -> Tables:
    """Return the tables, which `reader` is behind afterwards.

    Raises:
        ValueError: the bytes are no program, or of another version.
    """
    if reader.raw(len(MAGIC)) != MAGIC:
        raise ValueError("they do not begin like a program")
    version = reader.u32()
    if version != VERSION:
        raise ValueError(f"they are of version {version}, and this runtime reads {VERSION}")
    if reader.u32() != reader.remaining():
        raise ValueError("they are cut short")
    reader.strings = reader.read_list(lambda: reader.raw(reader.u32()).decode("utf-8", "surrogatepass"))
    keys = reader.read_list(reader.text)
    kernels = reader.read_list(reader.text)
    calls = reader.read_list(lambda: _call(reader))
    return Tables(keys=tuple(keys), kernels=tuple(kernels), calls=tuple(calls))


def rename_devices(data: bytes, names: Mapping[str, str]) -> bytes:
    """Return the program with other devices, by their names.

    Raises:
        ProgramBytesError: the bytes are no program, or of another version.
    """
    return _replace_texts(data, lambda text: names.get(text, text)) if names else data


def rename_places(data: bytes, rename: Callable[[str], str]) -> bytes:
    """Return the program with other source lines: `rename` changes the text of where an instruction is from.

    Raises:
        ProgramBytesError: the bytes are no program, or of another version.
    """

    def rename_place(text: str) -> str:
        # only what an instruction does has lines: first what, then where
        what, line, where = text.partition("\n")
        return what + line + rename(where)

    return _replace_texts(data, rename_place)


def _replace_texts(data: bytes, replace: Callable[[str], str]) -> bytes:
    # all texts of a program stand in one table
    with refuse_damage():
        reader = ProgramReader(data)
        read_heading(reader)
        texts = [replace(one).encode("utf-8", "surrogatepass") for one in reader.strings]
        behind = ProgramReader(data)
        head = behind.raw(len(MAGIC) + 4)
        behind.u32()
        behind.read_list(behind.block)
        body = write_list(texts, block) + behind.raw(behind.remaining())
        return head + u32(len(body)) + body


def _call(reader: ProgramReader) -> RecordedCall:
    target, implements = reader.text(), reader.text()
    args = reader.read_list(lambda: _argument(reader))
    kwargs = reader.read_list(lambda: (reader.text(), _argument(reader)))
    out = reader.read_list(lambda: (reader.text(), Slot(reader.u32(), True)))
    return RecordedCall(
        target=target,
        implements=implements,
        args=tuple(args),
        kwargs=dict(kwargs) | dict(out),
        device=reader.text(),
        wanted=reader.u32(),
        single=bool(reader.u8()),
        paths=tuple(tuple(path) for path in reader.read_list(lambda: reader.read_list(reader.u32))),
    )


def _argument(reader: ProgramReader) -> Argument:
    readers: tuple[Callable[[], Argument], ...] = (
        lambda: None,
        lambda: _slot(reader),
        lambda: Size(reader.u32()),
        reader.i64,
        lambda: bool(reader.u8()),
        reader.f64,
        lambda: complex(reader.f64(), reader.f64()),
        reader.text,
        lambda: getattr(torch, reader.text()),
        lambda: getattr(torch, reader.text()),
        lambda: torch.device(reader.text()),
        lambda: reader.read_list(lambda: _argument(reader)),
        lambda: Item(_slot(reader)),
    )
    return readers[reader.u8()]()


def _slot(reader: ProgramReader) -> Slot:
    number, kind = reader.u32(), reader.u8()
    return Slot(number, is_float=kind == 1, is_quantized=kind == 2)


def _leaves(value: Argument) -> Iterator[Argument]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


class ProgramReader(ByteReader):
    """Reads the bytes of a program; texts stand there as numbers of `strings`."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.strings: list[str] = []

    def read_byte_below(self, limit: int) -> int:
        """Return a byte, a number below `limit`."""
        number = self.u8()
        if number >= limit:
            raise ValueError(f"they count to {limit}, and say {number}")
        return number

    def read_number_below(self, limit: int) -> int:
        """Four bytes, a number below `limit`."""
        number = self.u32()
        if number >= limit:
            raise ValueError(f"they count to {limit}, and say {number}")
        return number

    def text(self) -> str:
        """Return a string, by its number."""
        return self.strings[self.u32()]


# ---- parts ----


CONSTANT: Final = 1 << 31


class Code(IntEnum):
    """The codes of instructions."""

    COMPUTE = 1
    BIND = 2
    CHECK = 3
    ALLOC = 4
    POOL = 5
    CARVE = 6
    REUSE = 7
    VIEW = 8
    LAUNCH = 9
    CALL = 10
    REQUIRE = 11
    COND = 12
    WHILE = 13
    FREE = 14
    RETURN = 15
    SETTLE = 16
    STREAM = 32
    REGION = 33
    RUN = 34
    REPEAT = 35


class Kind(IntEnum):
    """The kinds of inputs, of results of a call, and of results of a program."""

    NOTHING = 0
    TENSOR = 1
    NUMBER = 2


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tensor; sizes and strides are registers."""

    dtype: torch.dtype
    device: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Nested:
    """A program that an instruction runs: its number, operands and the registers of sizes handed on.

    An operand is whether it is a number, and a slot or register.
    """

    part: int
    operands: tuple[tuple[bool, int], ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction. `operands` are those of its code, in the order of the bytes."""

    code: Code
    place: str
    operands: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A program, or one nested in it.

    Attributes:
        slots: names of buffers and pools.
        variables: registers that are no constants.
        constants: values of the others.
        outer: registers that the caller fills.
        inputs: of each, `TENSOR` and a slot, `NUMBER` and a register, or `NOTHING` for a number that is
            known.
        known: slots of constants, with the numbers of their keys.
        steps: the last returns.
    """

    name: str
    slots: tuple[str, ...]
    variables: int
    constants: tuple[int, ...]
    outer: tuple[int, ...]
    inputs: tuple[tuple[Kind, int], ...]
    known: tuple[tuple[int, int], ...]
    layouts: tuple[Layout, ...]
    steps: tuple[Step, ...]


def read_program(data: bytes) -> tuple[Tables, tuple[Part, ...]]:
    """Return the tables of a program, and its parts; the first is the program itself.

    Raises:
        ProgramBytesError: the bytes are no program, or of another version.
    """
    with refuse_damage():
        reader = ProgramReader(data)
        tables = read_heading(reader)
        count = reader.u32()
        parts = tuple(_PartReader(reader, tables, count).read() for _ in range(count))
        if not parts or reader.remaining():
            raise ValueError("they hold no program, or something behind it")
        return tables, parts


def check_replacements(replacements: Iterable[str], parts: Sequence[Part]) -> None:
    """Refuse names that are no subprogram's.

    Raises:
        ValueError: one of `replacements` is the name of no part that another one calls.
    """
    names = sorted(part.name for part in parts[1:])
    for name in replacements:
        if name not in names:
            raise ValueError(f"there is no part {name}; there are {', '.join(names) or 'none'}")


class _PartReader:
    """Reads one part; numbers are checked against what was read of it before."""

    def __init__(self, reader: ProgramReader, tables: Tables, parts: int) -> None:
        self._in = reader
        self._tables = tables
        self._parts = parts
        self._slots: list[str] = []
        self._variables = 0
        self._constants: list[int] = []
        self._layouts: list[Layout] = []

    def read(self) -> Part:
        """Return the part."""
        into = self._in
        name = into.text()
        self._slots = into.read_list(into.text)
        # each is defined by bytes that follow: a damaged number does not ask for memory
        self._variables = into.read_number_below(min(CONSTANT, into.remaining() + 1))
        self._constants = into.read_list(into.i64)
        outer = into.read_list(self._variable)
        inputs = into.read_list(self._input)
        known = into.read_list(lambda: (self._slot(), into.read_number_below(len(self._tables.keys))))
        self._layouts = into.read_list(self._layout)
        steps = into.read_list(self._step)
        if not steps or steps[-1].code is not Code.RETURN:
            raise ValueError("a program does not end in a return")
        return Part(
            name=name,
            slots=tuple(self._slots),
            variables=self._variables,
            constants=tuple(self._constants),
            outer=tuple(outer),
            inputs=tuple(inputs),
            known=tuple(known),
            layouts=tuple(self._layouts),
            steps=tuple(steps),
        )

    def _slot(self) -> int:
        return self._in.read_number_below(len(self._slots))

    def _variable(self) -> int:
        return self._in.read_number_below(self._variables)

    def _register(self) -> int:
        number = self._in.u32()
        limit = len(self._constants) if number & CONSTANT else self._variables
        if number & ~CONSTANT >= limit:
            raise ValueError("there is no such register")
        return number

    def _flag(self) -> bool:
        return bool(self._in.u8())

    def _input(self) -> tuple[Kind, int]:
        kind = self._in.u8()
        match kind:
            case 0:
                return Kind.TENSOR, self._slot()
            case 1:
                return Kind.NUMBER, self._variable()
            case 2:
                return Kind.NOTHING, self._in.u32()
            case _:
                raise ValueError("they hold an input of no known kind")

    def _value(self, number: Callable[[], int]) -> tuple[Kind, int]:
        """Return a result: nothing, a slot, or a register, which `number` reads."""
        kind = Kind(self._in.u8())
        if kind is Kind.NOTHING:
            return kind, self._in.u32()
        return kind, self._slot() if kind is Kind.TENSOR else number()

    def _layout(self) -> Layout:
        dtype, device, rank = getattr(torch, self._in.text()), self._in.text(), self._in.u32()
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{dtype} is no element type")
        # raises for a device that this torch has not
        torch.device(device)
        sizes, strides = (tuple(self._register() for _ in range(rank)) for _ in range(2))
        return Layout(dtype, device, sizes, strides)

    def _layout_reference(self) -> Layout:
        return self._layouts[self._in.u32()]

    def _read_nested_program(self) -> Nested:
        into = self._in
        part = into.read_number_below(self._parts)
        operands = into.read_list(lambda: (True, self._register()) if self._flag() else (False, self._slot()))
        return Nested(part, tuple(operands), tuple(into.read_list(self._register)))

    def _slot_and_layout(self) -> tuple[int, Layout]:
        return self._slot(), self._layout_reference()

    def _step(self) -> Step:
        code = Code(self._in.u8())
        place = self._in.text()
        return Step(code, place, _OPERANDS[code](self))

    def _operation(self) -> int:
        number = self._in.read_byte_below(7)
        if not number:
            raise ValueError("they hold an operation of no known kind")
        return number

    def _compute(self) -> tuple[Any, ...]:
        into = self._in
        return (
            into.read_list(lambda: (self._operation(), self._variable(), self._register(), self._register())),
        )

    def _bind(self) -> tuple[Any, ...]:
        return self._variable(), self._slot(), self._in.u32(), self._flag(), self._in.i32()

    def _check(self) -> tuple[Any, ...]:
        """Return a slot, its layout, and two flags: aligned, and if the layout is compared."""
        slot, layout, flags = self._slot(), self._layout_reference(), self._in.u8()
        return slot, layout, bool(flags & 1), not flags & 2

    def _place(self) -> tuple[Any, ...]:
        """Return a slot, its layout, and a flag: aligned or plain."""
        return self._slot(), self._layout_reference(), self._flag()

    def _carve(self) -> tuple[Any, ...]:
        return self._slot(), self._slot(), self._register(), self._layout_reference(), self._flag()

    def _view(self) -> tuple[Any, ...]:
        into = self._in
        return (
            self._slot(),
            self._slot(),
            into.read_byte_below(3),
            self._register(),
            self._layout_reference(),
            self._flag(),
        )

    def _launch(self) -> tuple[Any, ...]:
        into = self._in
        kernel = self._tables.kernels[into.u32()]
        return kernel, into.read_list(self._slot), into.read_list(self._register)

    def _call(self) -> tuple[Any, ...]:
        into = self._in
        call = self._tables.calls[into.u32()]
        outputs = into.read_list(lambda: self._value(self._variable))
        binds = into.read_list(lambda: (self._variable(), into.read_number_below(len(outputs)), into.u32()))
        return call, outputs, binds

    def _require(self) -> tuple[Any, ...]:
        return self._register(), self._in.read_byte_below(4), self._register(), self._in.text()

    def _cond(self) -> tuple[Any, ...]:
        return self._slot(), *self._while()

    def _while(self) -> tuple[Any, ...]:
        return (
            self._read_nested_program(),
            self._read_nested_program(),
            self._in.read_list(self._slot_and_layout),
        )

    def _repeat(self) -> tuple[Any, ...]:
        return self._register(), self._variable(), *self._run()

    def _run(self) -> tuple[Any, ...]:
        return self._read_nested_program(), self._in.read_list(self._slot_and_layout)

    def _stream(self) -> tuple[Any, ...]:
        return self._in.read_byte_below(6), self._in.u32(), self._in.u32(), self._in.text()


_OPERANDS: Final[Mapping[Code, Callable[[_PartReader], tuple[Any, ...]]]] = {
    Code.COMPUTE: _PartReader._compute,
    Code.BIND: _PartReader._bind,
    Code.CHECK: _PartReader._check,
    Code.ALLOC: _PartReader._place,
    Code.POOL: _PartReader._slot_and_layout,
    Code.CARVE: _PartReader._carve,
    Code.REUSE: _PartReader._view,
    Code.VIEW: _PartReader._view,
    Code.LAUNCH: _PartReader._launch,
    Code.CALL: _PartReader._call,
    Code.REQUIRE: _PartReader._require,
    Code.COND: _PartReader._cond,
    Code.WHILE: _PartReader._while,
    Code.FREE: lambda part: (part._in.read_list(part._slot),),
    Code.RETURN: lambda part: (part._in.read_list(lambda: part._value(part._register)),),
    Code.SETTLE: _PartReader._place,
    Code.STREAM: _PartReader._stream,
    Code.RUN: _PartReader._run,
    Code.REPEAT: _PartReader._repeat,
    Code.REGION: lambda part: (part._flag(),),
}
"""By code, what reads its operands."""
