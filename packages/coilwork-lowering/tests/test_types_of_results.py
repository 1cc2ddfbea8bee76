"""Types of results that torch's meta functions do not know: positions and counts of distinct values, sums of
an attention.
"""

from __future__ import annotations

import operator

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering.joint.corrections import correct_result_types
from coilwork_lowering.torch_compat.operators import find_kernel_dtype

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (aten.unique_dim.default, (0, True, True, True)),
        (aten._unique2.default, (True, True, True)),
        (aten.unique_consecutive.default, (True, True)),
    ],
)
def test_types_are_those_of_the_kernels(call: torch._ops.OpOverload, arguments: tuple[object, ...]) -> None:
    made = call(torch.tensor([[1.5, 2.0], [1.5, 2.0]]), *arguments)
    assert [find_kernel_dtype(call, number, torch.float32) or made[0].dtype for number in range(3)] == [
        one.dtype for one in made
    ]


def test_other_operators_are_taken_at_their_word() -> None:
    assert find_kernel_dtype(aten.sort.default, 1, torch.float64) is None
    assert find_kernel_dtype(len, 1, None) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_sums_of_an_attention_are_as_precise_as_its_kernel_makes_them(dtype: torch.dtype) -> None:
    queries = torch.randn(1, 2, 3, 4, dtype=dtype)
    call = aten._scaled_dot_product_flash_attention_for_cpu.default
    out, sums = call(queries, queries, queries)
    assert (find_kernel_dtype(call, 1, dtype) or torch.float32) is sums.dtype
    assert find_kernel_dtype(call, 0, dtype) is None
    assert out.dtype is dtype


def test_what_is_saved_for_the_backward_has_the_type_that_kernels_give_it() -> None:
    def attention(q: torch.Tensor) -> torch.Tensor:
        _, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(q, q, q)
        return sums

    gm = make_fx(attention, tracing_mode="fake")(torch.randn(1, 2, 3, 4, dtype=torch.float64))
    (sums,) = [node for node in gm.graph.nodes if node.target is operator.getitem and node.args[1] == 1]
    with sums.meta["val"].fake_mode:
        sums.meta["val"] = sums.meta["val"].float()  # as torch 2.11 has it
    assert correct_result_types(gm) == 1
    assert sums.meta["val"].dtype is torch.float64
    assert correct_result_types(gm) == 0
