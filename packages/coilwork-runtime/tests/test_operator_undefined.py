"""Tensors that are none, where an operator's schema does not let them be left out."""

from __future__ import annotations

import shutil

import pytest
import torch
from executor_assembly import Assembly, u8

from coilwork_cache import MemoryStore
from coilwork_runtime import NativeProgram, load_native
from coilwork_runtime.executor.call_plans import Route

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

NONE = u8(0)


def product_with_none(target: str) -> NativeProgram:
    asm = Assembly("net")
    asm.input("x")
    asm.call(target, [asm.ref("x"), NONE], results=["y"])
    return load_native(
        asm.returns("y"), launchers={}, constants={}, fallback=lambda: list, store=MemoryStore()
    )


@pytest.mark.parametrize(
    ("target", "route"), [("aten.mul.Tensor", Route.FUNCTION), ("aten.mv.default", Route.DISPATCHER)]
)
def test_an_operator_that_needs_a_tensor_says_so_itself(target: str, route: Route) -> None:
    program = product_with_none(target)
    assert [plan.route for plan in program.plans] == [route]
    with pytest.raises(RuntimeError, match=r"undefined|None"):
        program.call([torch.ones(2, 2)])
