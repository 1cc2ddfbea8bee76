"""Programs' bytes in Python: each instruction, what it frees, what it refuses, and errors that say where."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from executor_assembly import (
    BIND,
    CARVE,
    CHECK,
    COMPUTE,
    POOL,
    REQUIRE,
    REUSE,
    SETTLE,
    STREAM,
    Assembly,
    Captured,
    listing,
    sample_program,
    u8,
    u32,
)
from torch import Tensor

from coilwork_runtime import LayoutError, ProgramBytesError, load_interpreted


def load(data: bytes, **rest: Any) -> Any:
    return load_interpreted(data, **{"launchers": {}, "constants": {}, **rest})


def double(x: Tensor, y: Tensor, count: int) -> None:
    assert count == x.numel()
    torch.mul(x, 2, out=y)


def test_the_sample_runs() -> None:
    constants = {"c": torch.arange(8.0)}
    call = load(sample_program(), launchers={"double_it": double}, constants=constants)
    x, unaligned = torch.ones(8), torch.ones(9)[1:]
    for given in (x, x, unaligned, x):
        args = [given]
        (found,) = call(args)
        assert not args and torch.equal(found, 2 * x + constants["c"])
    for given in (torch.ones(9), torch.ones(8).double(), torch.ones(16)[::2]):
        with pytest.raises(LayoutError, match="input x"):
            call([given])
    with pytest.raises(ValueError, match="program sample takes 1 inputs, and is given 2"):
        call([x, x])
    with pytest.raises(KeyError):
        load(sample_program(), constants=constants)


def sized_program() -> bytes:
    """`x` of any size, as `(2 * x) + x` in a pool, with its size and what is half of it."""
    asm = Assembly("sized")
    x, size = asm.input("x"), asm.variable()
    asm.add(BIND, size + x + u32(0) + u8(0) + (1).to_bytes(4, "little"), "bind s0")
    bytes_, half = asm.variable(), asm.variable()
    steps = [u8(2) + bytes_ + size + asm.number(4), u8(3) + half + size + asm.number(2)]
    asm.add(COMPUTE, listing(steps), "sizes")
    asm.add(REQUIRE, asm.number(0) + u8(2) + size + asm.text("it has no elements"), "a check")
    asm.add(CHECK, x + asm.layout(size, strides=[1]) + u8(1), "check %x")
    asm.add(POOL, asm.slot("pool") + asm.layout(bytes_, strides=[1], dtype="uint8"), "alloc %pool")
    place = asm.slot("y") + asm.slot("pool") + asm.number(0) + asm.layout(size, strides=[1])
    asm.add(CARVE, place + u8(0), "carve %y")
    asm.launch("double_it", ["x", "y"], [size])
    asm.call("aten.add.Tensor", [asm.ref("y"), asm.ref("x")], results=["z"], place="call add at line 7")
    asm.add(SETTLE, asm.slot("z") + asm.layout(size, strides=[1]) + u8(1), "settle")
    asm.free("y")
    asm.view("whole", "z", asm.layout(1, size, strides=[size, 1]), code=REUSE)
    return asm.returns("whole", size, half, None)


def test_sizes_are_read_and_checked() -> None:
    call = load(sized_program(), launchers={"double_it": double})
    for count in (1, 5, 8):
        x = torch.randn(count)
        whole, size, half, nothing = call([x])
        torch.testing.assert_close(whole, (3 * x)[None])
        assert (size, half, nothing) == (count, count // 2, None)
    with pytest.raises(RuntimeError, match="it has no elements"):
        call([torch.ones(0)])
    with pytest.raises(LayoutError, match="expected 1 dimensions"):
        call([torch.ones(2, 2)])


def test_errors_say_where() -> None:
    def fail(*_: object) -> None:
        raise LookupError("of a kernel")

    call = load(sized_program(), launchers={"double_it": fail})
    with pytest.raises(LookupError) as caught:
        call([torch.ones(3)])
    (note,) = caught.value.__notes__
    assert note.endswith("of program sized: launch double_it")


def test_memory_goes_where_it_is_freed() -> None:
    seen: list[weakref.ref[Tensor]] = []
    asm = Assembly()
    asm.input("x")
    asm.alloc("a", asm.layout(4))
    asm.launch("note", ["a"])
    asm.free("a")
    asm.alloc("b", asm.layout(4))
    asm.alloc("c", asm.layout(4))
    asm.launch("note", ["b"])
    asm.free("b", "x")
    asm.launch("look", ["c"])
    data = asm.returns("c")
    alive: list[bool] = []

    def look(_: Tensor) -> None:
        gc.collect()
        alive.extend(one() is not None for one in seen)

    call = load(data, launchers={"note": lambda one: seen.append(weakref.ref(one)), "look": look})
    x = torch.ones(4)
    seen.append(weakref.ref(x))
    given = [x]
    del x
    call(given)
    assert alive == [False, False, False]


def test_arguments_of_operators() -> None:
    """Lists, numbers that tensors hold, keywords, several results and where they lie."""
    asm = Assembly()
    asm.input("x")
    asm.input("n")
    size = asm.size_input()
    sizes = u8(11) + listing([u8(2) + size, u8(3) + (2).to_bytes(8, "little")])
    asm.call("aten.reshape.default", [asm.ref("x"), sizes], results=["y"])
    item = u8(12) + asm.slot("n") + u8(0)
    asm.call("aten.sum.dim_IntList", [asm.ref("y"), u8(11) + listing([item])], results=["s"])
    keepdim = [("keepdim", u8(4) + u8(1)), ("dim", u8(3) + (0).to_bytes(8, "little"))]
    asm.call("aten.max.dim", [asm.ref("y")], kwargs=keepdim, results=["m", None], single=False)
    asm.alloc("o", asm.layout(2))
    asm.call("aten.neg.out", [asm.ref("s")], out=[("out", "o")])
    parts = [asm.ref("x"), u8(3) + (3).to_bytes(8, "little")]
    asm.call("aten.split.Tensor", parts, results=["p", "q"], single=False, paths=[[1], [0]])
    call = load(asm.returns("s", "m", "o", "p", "q"))
    x = torch.arange(6.0)
    s, m, o, p, q = call([x, torch.tensor(0), 3])
    y = x.view(3, 2)
    expected = (y.sum(0), y.max(0, keepdim=True).values, -y.sum(0), x[3:], x[:3])
    for found, wanted in zip((s, m, o, p, q), expected, strict=True):
        assert torch.equal(found, wanted)


def test_regions_and_streams_of_the_host_change_nothing() -> None:
    for asm in (Captured(), Assembly()):
        asm.input("x")
        device = asm.text("cpu")
        for what, number, other in ((0, 1, 0), (5, 1, 0), (1, 2, 1), (3, 2, 0), (4, 1, 0), (5, 0, 0)):
            asm.add(STREAM, u8(what) + u32(number) + u32(other) + device, "stream")
        asm.call("aten.neg.default", [asm.ref("x")], results=["y"])
        (found,) = load(asm.returns("y"))([torch.ones(2)])
        assert found.tolist() == [-1, -1]


def test_damaged_bytes_are_refused() -> None:
    """Never an error of another kind, wherever a byte is flipped or the rest is missing."""
    data = sized_program()
    refused = 0
    for place in range(0, len(data), 3):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]):
            try:
                load(damaged, launchers={"double_it": double})
            except (ProgramBytesError, KeyError):
                refused += 1
    assert refused > len(data) // 3


def test_a_damaged_number_of_registers_asks_for_no_memory() -> None:
    """A large number in each place of the bytes: what is counted has to be there."""
    data = sized_program()
    refused = 0
    for place in range(16, len(data) - 3):
        try:
            load(data[:place] + b"\xff\xff\xff\x7e" + data[place + 4 :], launchers={"double_it": double})
        except (ProgramBytesError, KeyError):
            refused += 1
    assert refused > len(data) // 3
