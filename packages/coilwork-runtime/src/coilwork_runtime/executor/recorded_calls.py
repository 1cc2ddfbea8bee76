"""Reading the calls of operators out of a program's bytes.

`coilwork_wrapper.native.wire_format` describes the form.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import torch

from coilwork_runtime.errors import ProgramBytesError

MAGIC: Final = b"coilwork"
VERSION: Final = 5

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
        """The tensors among the arguments, in order, those whose numbers are read included."""
        for one in self._leaves():
            if isinstance(one, Slot | Item):
                yield one if isinstance(one, Slot) else one.slot

    def sizes(self) -> Iterator[Size]:
        """The computed integers among the arguments, in order."""
        yield from (one for one in self._leaves() if isinstance(one, Size))

    def _leaves(self) -> Iterator[Argument]:
        for value in (*self.args, *self.kwargs.values()):
            yield from _leaves(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What stands in front of the program's parts: keys of constants, names of kernels, calls."""

    keys: tuple[str, ...]
    kernels: tuple[str, ...]
    calls: tuple[RecordedCall, ...]


def read_tables(data: bytes) -> Tables:
    """The tables of a program.

    Raises:
        ProgramBytesError: the bytes are no program, or of another version.
    """
    with refuse_damage():
        return read_heading(ProgramReader(data))


@contextlib.contextmanager
def refuse_damage() -> Iterator[None]:
    """Says of whatever reading bytes raises that the program is damaged.

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
    """The tables, which `reader` is behind afterwards.

    Raises:
        ValueError: the bytes are no program, or of another version.
    """
    if reader.raw(len(MAGIC)) != MAGIC:
        raise ValueError("they do not begin like a program")
    version = reader.u32()
    if version != VERSION:
        raise ValueError(f"they are of version {version}, and this runtime reads {VERSION}")
    if reader.u32() != reader.left():
        raise ValueError("they are cut short")
    reader.strings = reader.listing(lambda: reader.raw(reader.u32()).decode("utf-8", "surrogatepass"))
    keys = reader.listing(reader.text)
    kernels = reader.listing(reader.text)
    calls = reader.listing(lambda: _call(reader))
    return Tables(keys=tuple(keys), kernels=tuple(kernels), calls=tuple(calls))


def _call(reader: ProgramReader) -> RecordedCall:
    target, implements = reader.text(), reader.text()
    args = reader.listing(lambda: _argument(reader))
    kwargs = reader.listing(lambda: (reader.text(), _argument(reader)))
    out = reader.listing(lambda: (reader.text(), Slot(reader.u32(), True)))
    return RecordedCall(
        target=target,
        implements=implements,
        args=tuple(args),
        kwargs=dict(kwargs) | dict(out),
        device=reader.text(),
        wanted=reader.u32(),
        single=bool(reader.u8()),
        paths=tuple(tuple(path) for path in reader.listing(lambda: reader.listing(reader.u32))),
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
        lambda: reader.listing(lambda: _argument(reader)),
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


class ProgramReader:
    """A place in the bytes of a program, and the numbers and texts from there on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.strings: list[str] = []

    def raw(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self.left():
            raise ValueError("they end too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def left(self) -> int:
        """How many bytes follow."""
        return len(self._data) - self._at

    def u8(self) -> int:
        """A byte."""
        return self.raw(1)[0]

    def u32(self) -> int:
        """Four bytes."""
        return int.from_bytes(self.raw(4), "little")

    def below_byte(self, limit: int) -> int:
        """A byte, a number below `limit`."""
        number = self.u8()
        if number >= limit:
            raise ValueError(f"they count to {limit}, and say {number}")
        return number

    def below(self, limit: int) -> int:
        """Four bytes, a number below `limit`."""
        number = self.u32()
        if number >= limit:
            raise ValueError(f"they count to {limit}, and say {number}")
        return number

    def i32(self) -> int:
        """Four bytes, two's complement."""
        return int.from_bytes(self.raw(4), "little", signed=True)

    def i64(self) -> int:
        """Eight bytes, two's complement."""
        return int.from_bytes(self.raw(8), "little", signed=True)

    def f64(self) -> float:
        """Eight bytes, IEEE 754."""
        value: float = struct.unpack("<d", self.raw(8))[0]
        return value

    def text(self) -> str:
        """A string, by its number."""
        return self.strings[self.u32()]

    def listing(self, read: Callable[[], _T]) -> list[_T]:
        """A count, and as many of what `read` reads."""
        return [read() for _ in range(self.u32())]
