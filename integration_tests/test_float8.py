"""8-bit floats, in C++ and in Triton: conversions, copies and scaled products as in eager; the table is in
`float8_rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.planner import Planner
from coilwork.compile_options import CompileOptions
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.scalar import Op, iterate_postorder
from integration_tests.beside_eager import compiled
from integration_tests.dtype_rules import difference
from integration_tests.float8_rules import FLOAT8, RULES, codes
from integration_tests.interpreting import answers_of

pytestmark = pytest.mark.usefixtures("own_caches")
E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("name", list(RULES))
def test_cpu_conversions_agree(name: str) -> None:
    rule = RULES[name]
    assert {d: difference(rule, d) for d in rule.dtypes} == dict.fromkeys(rule.dtypes, "")


@pytest.mark.interpreter
def test_triton_conversions_agree(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of("integration_tests.float8_rules", tmp_path)
    assert len(found) > 40
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


REFUSED: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x.sum(),
    "add": lambda x: x + x,
    "scale": lambda x: x * 2,
    "order": lambda x: x < x,
    "negative": lambda x: -x,
    "maximum": lambda x: torch.maximum(x, x),
    "gather": lambda x: x.gather(0, torch.tensor([1, 2])),
    "flip": lambda x: x.flip(0),
    "mixed": lambda x: x + torch.ones(256),
}


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_what_eager_refuses_is_refused(dtype: torch.dtype) -> None:
    (x,) = codes(dtype)
    for name, function in REFUSED.items():
        torch._dynamo.reset()
        for one in (function, compiled(function)):
            with pytest.raises((RuntimeError, NotImplementedError)):
                pytest.fail(f"{name} of {dtype} gives {one(x)}")


def test_float4_passes_through() -> None:
    def moved(x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        return x.view(4, 8).t(), x.clone(), x[3:9], x.view(torch.uint8), scale * 2

    x = torch.arange(32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    scale = torch.ones(3)
    for got, want in zip(compiled(moved)(x, scale), moved(x, scale), strict=True):
        assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
        assert torch.equal(got.contiguous().view(torch.uint8), want.contiguous().view(torch.uint8))


def quantised(x: Tensor, *dims: int) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(dims, keepdim=True) if dims else x.abs().amax()
    scale = 448.0 / largest.clamp(min=1e-12)
    return (x * scale).clamp(-448.0, 448.0).to(E4M3), 1 / scale


def by_tensor(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    (a, of_a), (b, of_b) = quantised(torch.relu(x)), quantised(w)
    return torch._scaled_mm(a, b.t(), bias=bias, scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16) * 2


def by_row(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    (a, of_a), (b, of_b) = quantised(x + 1, 1), quantised(w, 1)
    return torch._scaled_mm(a, b.t(), bias=bias, scale_a=of_a, scale_b=of_b.t(), out_dtype=torch.bfloat16)


@pytest.mark.parametrize("product", [by_tensor, by_row], ids=lambda f: f.__name__)
def test_scaled_products_agree_to_the_bit(product: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    given = torch.randn(32, 64), torch.randn(48, 64), torch.randn(48).bfloat16()
    assert torch.equal(compiled(product)(*given), product(*given))


def test_gradients_of_simulated_quantisation_agree() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x.to(E4M3).float() * x.to(torch.float8_e5m2).to(x.dtype)).square().sum()

    x = (torch.arange(64.0) / 7 - 3).requires_grad_()
    loss(x).backward()
    wanted, x.grad = x.grad, None
    compiled(loss)(x).backward()
    torch.testing.assert_close(x.grad, wanted)


def roundings(function: Callable[..., object], small: torch.dtype, *given: Tensor) -> int:
    """How often the kernels that are planned for a GPU round to `small`."""
    planner = Planner(target="sm_90", options=CompileOptions(strict=True, numerics="eager"))
    torch._dynamo.reset()
    torch.compile(function, backend=planner, dynamic=False, fullgraph=True)(*given)
    return sum(
        isinstance(node, Op) and node.op == "cast" and node.dtype.torch_name == str(small)[6:]
        for kernel in planner.programs[0].kernels
        for node in iterate_postorder(list_kernel_roots(kernel))
    )


@pytest.mark.parametrize("saturates", [True, False])
def test_8_bit_floats_are_rounded_once(saturates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as before torch 2.13, where what is too large for `float8_e4m3fn` becomes NaN."""
    monkeypatch.setattr("coilwork_lowering.scalar_math.E4M3_SATURATES", saturates)
    x = torch.ones(256)
    for small in FLOAT8:

        def beside(x: Tensor, small: torch.dtype = small) -> tuple[Tensor, ...]:
            narrow = x.to(small)
            by_bits = narrow.view(torch.uint8).view(small)
            wider = narrow.float(), narrow.view(torch.uint8), narrow.bfloat16() + 1
            again = narrow.bfloat16().double().to(small), by_bits.float().to(small), by_bits.double() * 3
            return narrow, narrow.float() * 2, *wider, *again

        assert roundings(beside, small, x) == 1, small

        def around(x: Tensor, small: torch.dtype = small) -> tuple[Tensor, ...]:
            return x.float().to(small), x.bfloat16().float().to(small), x.view(torch.uint8).view(small)[1:]

        assert roundings(around, small, x.to(small)) == 0, small
