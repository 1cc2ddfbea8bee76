"""Programs for the native executor, put together by hand: an assembler for the form that
native/program/parsing.hpp reads.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from coilwork_runtime.executor.program_reader import VERSION

(
    COMPUTE,
    BIND,
    CHECK,
    ALLOC,
    POOL,
    CARVE,
    REUSE,
    VIEW,
    LAUNCH,
    CALL,
    REQUIRE,
    COND,
    WHILE,
    FREE,
    RETURN,
    SETTLE,
) = range(1, 17)
STREAM, REGION = 32, 33
CONSTANT = 1 << 31


def u8(value: int) -> bytes:
    return bytes((value,))


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def listing(items: Sequence[bytes]) -> bytes:
    return u32(len(items)) + b"".join(items)


class Assembly:
    """One program without nested ones. Slots are numbered by name, in order of mention."""

    def __init__(self, name: str = "p") -> None:
        self.name = name
        self.strings: list[str] = []
        self.slots: list[str] = []
        self.layouts: list[bytes] = []
        self.constants: list[int] = []
        self.variables = 0
        self.inputs: list[bytes] = []
        self.keys: list[str] = []
        self.known: list[bytes] = []
        self.kernels: list[str] = []
        self.calls: list[bytes] = []
        self.instructions: list[bytes] = []

    def text(self, words: str) -> bytes:
        if words not in self.strings:
            self.strings.append(words)
        return u32(self.strings.index(words))

    def slot(self, name: str) -> bytes:
        if name not in self.slots:
            self.slots.append(name)
        return u32(self.slots.index(name))

    def number(self, value: int) -> bytes:
        """The register of a constant."""
        if value not in self.constants:
            self.constants.append(value)
        return u32(CONSTANT | self.constants.index(value))

    def variable(self) -> bytes:
        self.variables += 1
        return u32(self.variables - 1)

    def layout(
        self,
        *shape: int | bytes,
        strides: Sequence[int | bytes] | None = None,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> bytes:
        """A layout, contiguous unless `strides` are given; bytes are registers."""
        if strides is None:
            step, found = 1, []
            for extent in reversed(shape):
                found.append(step)
                step *= extent if isinstance(extent, int) else 1
            strides = found[::-1]
        registers = [self.number(v) if isinstance(v, int) else v for v in (*shape, *strides)]
        data = self.text(dtype) + self.text(device) + u32(len(shape)) + b"".join(registers)
        self.layouts.append(data)
        return u32(len(self.layouts) - 1)

    def input(self, name: str) -> bytes:
        self.inputs.append(u8(0) + self.slot(name))
        return self.slot(name)

    def size_input(self) -> bytes:
        register = self.variable()
        self.inputs.append(u8(1) + register)
        return register

    def constant(self, name: str, key: str) -> bytes:
        self.keys.append(key)
        self.known.append(self.slot(name) + u32(len(self.keys) - 1))
        return self.slot(name)

    def add(self, code: int, operands: bytes, place: str = "here") -> None:
        self.instructions.append(u8(code) + self.text(place) + operands)

    def alloc(self, name: str, layout: bytes, *, plain: bool = False) -> None:
        self.add(ALLOC, self.slot(name) + layout + u8(plain), f"alloc %{name}")

    def view(
        self,
        name: str,
        source: str,
        layout: bytes,
        *,
        offset: int = 0,
        kind: int = 1,
        plain: bool = False,
        code: int = VIEW,
    ) -> None:
        operands = self.slot(name) + self.slot(source) + u8(kind) + self.number(offset) + layout + u8(plain)
        self.add(code, operands, f"view %{name}")

    def launch(self, kernel: str, slots: Sequence[str], sizes: Sequence[bytes] = ()) -> None:
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        operands = u32(self.kernels.index(kernel)) + listing([self.slot(s) for s in slots]) + listing(sizes)
        self.add(LAUNCH, operands, f"launch {kernel}")

    def call(
        self,
        target: str,
        args: Sequence[bytes],
        *,
        kwargs: Sequence[tuple[str, bytes]] = (),
        out: Sequence[tuple[str, str]] = (),
        results: Sequence[str | bytes | None] = (),
        single: bool = True,
        paths: Sequence[Sequence[int]] = (),
        binds: Sequence[bytes] = (),
        place: str = "",
        implements: str = "",
    ) -> None:
        """`results`: names of slots, registers of numbers, or None."""
        data = self.text(target) + self.text(implements) + listing(args)
        data += listing([self.text(key) + value for key, value in kwargs])
        data += listing([self.text(key) + self.slot(name) for key, name in out])
        data += self.text("cpu") + u32(len(results)) + u8(single)
        data += listing([listing([u32(step) for step in path]) for path in paths])
        self.calls.append(data)
        outputs = [
            u8(0) + u32(0) if r is None else u8(1) + self.slot(r) if isinstance(r, str) else u8(2) + r
            for r in results
        ]
        operands = u32(len(self.calls) - 1) + listing(outputs) + listing(binds)
        self.add(CALL, operands, place or f"call {target}")

    def ref(self, name: str, *, is_float: bool = True) -> bytes:
        return u8(1) + self.slot(name) + u8(is_float)

    def free(self, *names: str) -> None:
        self.add(FREE, listing([self.slot(name) for name in names]), "free")

    def returns(self, *values: str | bytes | None) -> bytes:
        """Finish with a return of slots, registers of numbers, or None; the program's bytes."""
        results = [
            u8(0) + u32(0) if v is None else u8(1) + self.slot(v) if isinstance(v, str) else u8(2) + v
            for v in values
        ]
        self.add(RETURN, listing(results), "return")
        name = self.text(self.name)
        slots = listing([self.text(s) for s in self.slots])
        tables = listing([self.text(key) for key in self.keys]) + listing(
            [self.text(k) for k in self.kernels]
        )
        part = b"".join(
            (
                name,
                slots,
                u32(self.variables),
                listing([struct.pack("<q", value) for value in self.constants]),
                listing([]),
                listing(self.inputs),
                listing(self.known),
                listing(self.layouts),
                listing(self.instructions),
            )
        )
        strings = listing([u32(len(s.encode())) + s.encode() for s in self.strings])
        payload = strings + tables + listing(self.calls) + listing([part])
        return b"coilwork" + u32(VERSION) + u32(len(payload)) + payload


class Captured(Assembly):
    """A program that is one capture region, but for its return."""

    def __init__(self, name: str = "p") -> None:
        super().__init__(name)
        self.region(begins=True)

    def region(self, *, begins: bool) -> None:
        self.add(REGION, u8(begins), "begin" if begins else "end")

    def returns(self, *values: str | bytes | None) -> bytes:
        self.region(begins=False)
        return super().returns(*values)


def sample_program() -> bytes:
    """2 * x + c of 8 floats, where `double_it` is the kernel and "c" the constant."""
    asm = Assembly("sample")
    asm.input("x")
    asm.constant("c", "c")
    asm.add(CHECK, asm.slot("x") + asm.layout(8) + u8(0), "check %x")
    asm.alloc("y", asm.layout(8))
    asm.launch("double_it", ["x", "y"], [asm.number(8)])
    asm.call("aten.add.Tensor", [asm.ref("y"), asm.ref("c")], results=["z"])
    asm.free("y")
    return asm.returns("z")
