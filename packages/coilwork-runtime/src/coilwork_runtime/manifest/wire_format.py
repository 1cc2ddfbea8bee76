"""Numbers, texts and lists as little-endian bytes, for manifests, programs and launch descriptors.

A text or a block of bytes stands behind its `u32` length, a list behind its `u32` number of items. The native
executor reads the same bytes (`executor/native/program/reader.hpp`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


class ByteReader:
    """A position in bytes; every method reads what comes next, and nothing beyond the end.

    Raises, from every method:
        ValueError: too few bytes are left.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def raw(self, size: int) -> bytes:
        """Read `size` bytes."""
        if size > self.remaining():
            raise ValueError("they end too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def remaining(self) -> int:
        """Return how many bytes follow."""
        return len(self._data) - self._at

    def u8(self) -> int:
        """Read a byte."""
        return self.raw(1)[0]

    def u32(self) -> int:
        """Read a number of four bytes."""
        return int.from_bytes(self.raw(4), "little")

    def i32(self) -> int:
        """Read a number of four bytes, two's complement."""
        return int.from_bytes(self.raw(4), "little", signed=True)

    def i64(self) -> int:
        """Read a number of eight bytes, two's complement."""
        return int.from_bytes(self.raw(8), "little", signed=True)

    def f64(self) -> float:
        """Read an IEEE 754 number of eight bytes."""
        value: float = struct.unpack("<d", self.raw(8))[0]
        return value

    def block(self) -> bytes:
        """Read bytes behind their length."""
        return self.raw(self.u32())

    def read_list(self, read: Callable[[], _T]) -> list[_T]:
        """Read a count, and as many items as that, each by `read`."""
        return [read() for _ in range(self.u32())]


def u32(value: int) -> bytes:
    """Write four bytes."""
    return value.to_bytes(4, "little")


def i64(value: int) -> bytes:
    """Write eight bytes, two's complement."""
    return value.to_bytes(8, "little", signed=True)


def block(data: bytes) -> bytes:
    """Write bytes behind their length."""
    return u32(len(data)) + data


def text(value: str) -> bytes:
    """Write UTF-8 text behind its length."""
    return block(value.encode())


def write_list(values: Iterable[_T], write: Callable[[_T], bytes]) -> bytes:
    """Write the number of `values`, then each of them by `write`."""
    return join_items([write(value) for value in values])


def join_items(items: Sequence[bytes]) -> bytes:
    """Write the number of `items`, which are bytes already, then the items."""
    return u32(len(items)) + b"".join(items)
