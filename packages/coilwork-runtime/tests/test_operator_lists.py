"""Operators whose C functions take lists of booleans, and lists that may be missing."""

from __future__ import annotations

import shutil
import struct

import pytest
import torch
from executor_assembly import Assembly, listing, u8

from coilwork_cache import MemoryStore
from coilwork_runtime import load_native
from coilwork_runtime.executor.planning import Route

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)


def encoded(value: object) -> bytes:
    match value:
        case None:
            return u8(0)
        case bool():
            return u8(4) + u8(value)
        case int():
            return u8(3) + struct.pack("<q", value)
        case list():
            return u8(11) + listing([encoded(item) for item in value])
        case _:
            raise TypeError(value)


@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no-bias"])
def test_convolution_backward(with_bias: bool) -> None:
    asm = Assembly("net")
    for name in ("g", "x", "w"):
        asm.input(name)
    rest = [[3] if with_bias else None, [1], [0], [1], False, [0], 1, [True, True, with_bias]]
    asm.call(
        "aten.convolution_backward.default",
        [*map(asm.ref, "gxw"), *map(encoded, rest)],
        results=["dx", "dw", "db" if with_bias else None],
        single=False,
    )
    data = asm.returns(*(("dx", "dw", "db") if with_bias else ("dx", "dw")))
    program = load_native(data, launchers={}, constants={}, fallback=lambda: list, store=MemoryStore())
    assert [plan.route for plan in program.plans] == [Route.FUNCTION]
    x, w, g = torch.randn(2, 4, 9), torch.randn(3, 4, 3), torch.randn(2, 3, 7)
    expected = torch.ops.aten.convolution_backward.default(g, x, w, *rest)
    for found, wanted in zip(program.call([g, x, w]), expected, strict=False):
        assert torch.equal(found, wanted)
