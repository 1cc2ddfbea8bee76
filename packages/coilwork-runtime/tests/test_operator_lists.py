"""Operators whose C functions take lists of booleans, and lists that may be missing; one that refuses its
list.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executor_assembly import Assembly, listing, u8
from torch.utils._python_dispatch import TorchDispatchMode

from coilwork_cache import MemoryStore
from coilwork_runtime import load_native
from coilwork_runtime.executor.call_plans import Route

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
def test_a_convolutions_gradients_are_those_of_eager(with_bias: bool) -> None:
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


def test_a_call_that_fails_in_a_dispatch_mode() -> None:
    """Torch's C interface leaves the mode's exception where the next call of Python would find it."""

    class Passing(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()

        def __torch_dispatch__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    asm = Assembly("net")
    asm.input("x")
    asm.call("aten.as_strided.default", [asm.ref("x"), encoded([25]), encoded([1])], results=["y"])
    data = asm.returns("y")
    for _ in range(20):
        program = load_native(data, launchers={}, constants={}, fallback=lambda: list, store=MemoryStore())
        with Passing(), pytest.raises(RuntimeError, match="out of bounds for storage") as caught:
            program.call([torch.randn(10)])
        assert caught.value.__cause__ is None
