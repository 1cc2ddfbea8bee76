"""Cheaper functions for values that are rounded to 16 bits: where they are taken, and how far
they are off.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, compile_source, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.scalar import Scalar, cast, const, iterate_postorder, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.facts.kernel_analysis import index_users
from coilwork_triton.facts.precision_analysis import find_one_plus, find_rounded_factors, find_rounded_values
from coilwork_triton.text.language import find_reciprocal

F32, BF16, F16 = DType.F32, DType.BF16, DType.F16
TORCH = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16}
X = along("x0", 4096)
V = cast(load("in0", [X.symbol], BF16), F32)
ONE = const(1.0, F32)


def rounded(*roots: Scalar) -> frozenset[Scalar]:
    order = tuple(iterate_postorder(roots))
    return find_rounded_values(order, roots, index_users(order))


def test_what_is_stored_in_16_bits() -> None:
    y = op("sigmoid", V)
    product = op("mul", V, y)
    assert {y, product} <= rounded(cast(product, BF16)) and {y, product} <= rounded(cast(product, F16))
    assert {y, product} <= rounded(cast(product, DType.F8E5M2))
    assert not rounded(product)
    assert not rounded(cast(product, DType.F64))


def test_one_full_use_is_enough_to_want_it_all() -> None:
    y = op("sigmoid", V)
    half = cast(y, BF16)
    assert y in rounded(half)
    assert y not in rounded(half, y)
    assert y not in rounded(half, op("gt", y, const(0.5, F32)))
    assert y not in rounded(half, reduce("sum", [y], [X.symbol]))
    # what enlarges errors wants full operands
    assert y not in rounded(cast(op("log", y), BF16))
    assert y not in rounded(cast(op("floor", y), BF16))


def test_a_condition_is_no_rounded_value() -> None:
    a, b = op("exp", V), op("tanh", V)
    chosen = op("where", op("gt", a, b), a, b)
    assert chosen in rounded(cast(chosen, BF16))
    assert a not in rounded(cast(chosen, BF16))


def test_sums_with_one() -> None:
    erf = op("erf", V)
    root = cast(op("mul", V, op("add", erf, ONE)), BF16)
    order = tuple(iterate_postorder((root,)))
    users = index_users(order)
    found = rounded(root)
    assert list(find_one_plus(found, users).values()) == [erf]
    twice = cast(op("mul", erf, op("add", ONE, erf)), BF16)
    assert not find_one_plus(rounded(twice), index_users(tuple(iterate_postorder((twice,)))))


def test_one_factor_of_a_rounded_product_is_found() -> None:
    tanh = op("tanh", V)
    for root, fits in (
        (tanh, True),
        (op("mul", V, tanh), True),
        (op("add", op("mul", V, tanh), V), True),
        (op("mul", tanh, tanh), False),
        (op("add", V, tanh), False),
        (op("neg", tanh), False),
    ):
        order = tuple(iterate_postorder((cast(root, BF16),)))
        users = index_users(order)
        assert (tanh in find_rounded_factors(find_rounded_values(order, order[-1:], users), users)) is fits


def test_reciprocals_are_of_normal_numbers() -> None:
    assert find_reciprocal(3.0) == 1 / 3 and find_reciprocal(-0.5) == -2.0
    for value in (0.0, -0.0, math.inf, math.nan, 1e-40, 1e38):
        assert find_reciprocal(value) is None


def source_of(
    value: Scalar, result: DType, count: int, given: DType, numerics: Numerics = "fast"
) -> KernelSource:
    x = X.symbol
    kernel = Kernel(
        name="short",
        ranges=(X,),
        args=(arg("in0", given, count), arg("out0", result, count)),
        stores=(Store(buffer="out0", index=x, value=value),),
        numerics=numerics,
    )
    return TritonCodegen().emit(kernel, get_target("sm_90"), {})


# (the function of a value, the same on f64 tensors, what f32 makes of it)
def _gelu(v: Scalar, inner: Scalar) -> Scalar:
    return op("mul", op("mul", v, const(0.5, F32)), op("add", inner, ONE))


FUNCTIONS: dict[str, tuple[Callable[[Scalar], Scalar], Callable[[torch.Tensor], torch.Tensor]]] = {
    "exp": (lambda v: op("exp", v), torch.exp),
    "sigmoid": (lambda v: op("sigmoid", v), torch.sigmoid),
    "tanh": (lambda v: op("tanh", v), torch.tanh),
    "sum with tanh": (lambda v: op("add", op("tanh", v), const(0.0, F32)), torch.tanh),
    "silu": (lambda v: op("mul", v, op("sigmoid", v)), torch.nn.functional.silu),
    "one plus erf": (lambda v: op("add", op("erf", v), ONE), lambda v: torch.special.erfc(-v)),
    "one plus tanh": (lambda v: op("add", ONE, op("tanh", v)), lambda v: 2 * torch.sigmoid(2 * v)),
    "gelu": (
        lambda v: _gelu(v, op("erf", op("mul", v, const(0.7071067811865476, F32)))),
        lambda v: v * torch.special.ndtr(v),
    ),
    "third": (lambda v: op("div", v, const(3.0, F32)), lambda v: v / 3),
}
NUMBERS = torch.cat(
    [
        torch.linspace(-12, 12, 3001),
        torch.logspace(-30, 2, 500),
        -torch.logspace(-30, 2, 500),
        torch.tensor(
            [
                0.0,
                -0.0,
                math.inf,
                -math.inf,
                math.nan,
                3e38,
                -3e38,
                88.5,
                -88.5,
                -95.0,
                104.0,
                -104.0,
                1e-40,
                -1e-40,
            ]
        ),
    ]
)
NUMBERS = torch.cat([NUMBERS, torch.zeros(4096 - NUMBERS.numel())])


@pytest.mark.parametrize("result", [BF16, F16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_far_more_exact_than_the_rounding(
    engine: TritonProcess, name: str, result: DType
) -> None:
    build, reference = FUNCTIONS[name]
    value = cast(build(cast(load("in0", [X.symbol], result), F32)), result)
    source = source_of(value, result, 4096, result)
    given = NUMBERS.to(TORCH[result])
    got = run_source(engine, source, [given, torch.zeros(4096, dtype=TORCH[result])])[-1]
    exact = reference(given.double())
    wanted = exact.to(TORCH[result])
    assert torch.equal(got.isnan(), wanted.isnan()), given[got.isnan() != wanted.isnan()]
    assert torch.equal(got.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    got, wanted, exact = got[finite].double(), wanted[finite].double(), exact[finite]
    # eager rounds the exact result at best, and has 0 where e^-x overflows; 1 + erf is 0 below about -4
    # there, so that f32's rounding of 1 counts as well
    best = (wanted - exact).abs()
    spacing = exact.abs() * 2.0 ** (-8 if result is BF16 else -11)
    allowed = (
        best
        + 0.05 * spacing
        + (3e-8 * given[finite].double().abs() if "erf" in name or name == "gelu" else 0)
    )
    allowed = allowed + (torch.finfo(TORCH[result]).smallest_normal * 2.0**-10 if result is F16 else 1e-38)
    worst = ((got - exact).abs() - allowed).argmax()
    assert (got - exact).abs()[worst] <= allowed[worst], (given[finite][worst], got[worst], exact[worst])


@pytest.mark.parametrize("name", ["sigmoid", "silu", "third", "tanh"])
def test_zeros_keep_their_sign(engine: TritonProcess, name: str) -> None:
    build, reference = FUNCTIONS[name]
    zeros = torch.tensor([0.0, -0.0] * 2048, dtype=torch.bfloat16)
    source = source_of(cast(build(V), BF16), BF16, 4096, BF16)
    got = run_source(engine, source, [zeros, torch.ones(4096, dtype=torch.bfloat16)])[-1]
    assert torch.equal(got.signbit(), reference(zeros.double()).signbit())


@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_other_levels_keep_the_exact_forms(numerics: Numerics) -> None:
    for build, _ in FUNCTIONS.values():
        value = cast(build(V), BF16)
        assert "_rounded(" not in source_of(value, BF16, 4096, BF16, numerics).text
    assert "_rounded(" not in source_of(op("sigmoid", V), F32, 4096, BF16).text


# Instructions of PTX per element of a block of eight per thread, generously: functions that come with special
# cases, or a quotient where a product does, exceed them.
_MOST = {
    "exp": 8,
    "sigmoid": 10,
    "tanh": 18,
    "sum with tanh": 22,
    "silu": 11,
    "one plus erf": 20,
    "one plus tanh": 10,
    "gelu": 22,
    "third": 6,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _MOST)
def test_machine_code_is_short(compiler: TritonProcess, name: str) -> None:
    build, _ = FUNCTIONS[name]
    text = compile_source(compiler, source_of(cast(build(V), BF16), BF16, 4096, BF16), "sm_90")
    body = [
        line.strip() for line in text.splitlines() if line.startswith("\t") and line.strip().endswith(";")
    ]
    count = sum(not line.startswith((".", "//", "ret")) for line in body)
    assert count / 8 <= _MOST[name] + 6
    assert "div.full" not in text
