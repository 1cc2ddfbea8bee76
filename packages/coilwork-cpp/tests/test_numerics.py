"""The three levels of numerics: what each promises of f32 functions, and of contraction."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.kernels.rewrite import FUNCTIONS
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Scalar, cast, const, load, op, reduce
from coilwork_ir.target import get_target

COUNT = 4096
X = symbol("x0", extent=COUNT)
F32 = DType.F32


def kernel_of(values: list[Scalar], numerics: Numerics) -> Kernel:
    names = ("in0", "in1", *(f"out{k}" for k in range(len(values))))
    return Kernel(
        name="levels",
        ranges=(Range(symbol=X, kind="parallel"),),
        args=tuple(
            TensorArg(name=n, dtype=F32, role="in" if n[0] == "i" else "out", span=as_expr(COUNT))
            for n in names
        ),
        stores=tuple(Store(buffer=f"out{k}", index=X, value=v) for k, v in enumerate(values)),
        numerics=numerics,
    )


def inputs() -> tuple[Scalar, Scalar]:
    return load("in0", [X], F32), load("in1", [X], F32)


def functions() -> dict[str, Scalar]:
    a, b = inputs()
    return {name: op(name, *(a, b)[: SCALAR_OPS[name].arity]) for name in sorted(FUNCTIONS)}


def ulps(got: torch.Tensor, wanted: torch.Tensor) -> int:
    """The largest distance in representable numbers of one sign."""
    return int((got.view(torch.int32).long() - wanted.view(torch.int32).long()).abs().max())


def test_strict_functions_are_the_nearest_numbers(load_kernel: LoadKernel) -> None:
    torch.manual_seed(0)
    a, b = torch.rand(COUNT) * 0.98 + 0.01, torch.rand(COUNT) * 2 + 0.5
    a[: COUNT // 2] += 1.0
    wanted = functions()
    outputs = [torch.empty(COUNT) for _ in wanted]
    load_kernel(kernel_of(list(wanted.values()), "strict"))(a, b, *outputs)
    for name, got in zip(wanted, outputs, strict=True):
        operands = (a.double(), b.double())[: SCALAR_OPS[name].arity]
        function = getattr(torch, name, None) or getattr(torch.special, name)
        exact = function(*operands).float()
        assert torch.equal(got.isnan(), exact.isnan()), name
        assert ulps(got.nan_to_num(), exact.nan_to_num()) <= 1, name
        assert (got == exact).sum() + got.isnan().sum() >= 0.999 * COUNT, name


def test_a_strict_chain_is_within_an_ulp_of_eager(load_kernel: LoadKernel) -> None:
    a, b = inputs()
    chain: dict[str, tuple[Scalar, Callable[[torch.Tensor], torch.Tensor]]] = {
        "exp": (op("exp", a), torch.exp),
        "erf": (op("erf", a), torch.erf),
        "tanh": (op("tanh", a), torch.tanh),
        "sqrt": (op("sqrt", op("abs", a)), lambda x: x.abs().sqrt()),
    }
    torch.manual_seed(1)
    x, y = torch.randn(COUNT) * 3, torch.rand(COUNT) + 0.5
    outputs = [torch.empty(COUNT) for _ in range(5)]
    quotient = op("div", op("sqrt", op("exp", op("tanh", op("erf", a)))), b)
    load_kernel(kernel_of([value for value, _ in chain.values()] + [quotient], "strict"))(x, y, *outputs)
    for (name, (_, eager)), got in zip(chain.items(), outputs, strict=False):
        assert ulps(got, eager(x)) <= 1, name
    # torch's own square root of f32 vectors is not always the nearest number; that of f64, rounded, is
    assert torch.equal(outputs[3], x.abs().double().sqrt().float())
    steps = x
    for function in (torch.erf, torch.tanh, torch.exp):
        steps = function(steps.double()).float()
    assert torch.equal(outputs[4], steps.double().sqrt().float() / y)


def test_strict_text_holds_no_approximate_function() -> None:
    text = (
        CppCodegen()
        .emit(kernel_of(list(functions().values()), "strict"), get_target("x86-64-avx512"), {})
        .text
    )
    assert "exp_f32" not in text and "erf_f32" not in text
    assert "simd(" not in text and "fp-contract=off" in text
    names = "|".join(sorted(FUNCTIONS - {"rsqrt", "sigmoid"}))
    assert not re.search(rf"\b(?:{names})f\(", text)
    assert re.search(r"\bexp\(", text) and "double erf(double)" in text


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_other_levels_use_vector_functions(numerics: Numerics) -> None:
    text = (
        CppCodegen()
        .emit(kernel_of(list(functions().values()), numerics), get_target("x86-64-avx512"), {})
        .text
    )
    assert "exp_f32" in text and "erf_f32" in text and "simd(" in text
    assert ("fp-contract=off" in text) == (numerics == "eager")


def test_a_power_is_no_root(load_kernel: LoadKernel) -> None:
    """C's power 0.5 of -0 is 0 and that of -inf infinite; a vectorising compiler may write a root, which is
    -0 and NaN.
    """
    a, _ = inputs()
    x = torch.tensor([-0.0, -float("inf"), 0.0, float("inf")]).repeat(COUNT // 4)
    half = op("pow", a, const(0.5, F32))
    for numerics in ("fast", "eager"):
        output = torch.empty(COUNT)
        load_kernel(kernel_of([half], numerics))(x, x, output)
        assert output.signbit().logical_not().all() and torch.equal(output, x.abs().sqrt()), numerics


@pytest.mark.parametrize("where", ["row", "column"])
def test_what_equals_an_extreme_is_found_again(load_kernel: LoadKernel, where: str) -> None:
    """Two loops compute the logarithm, each with elements behind its last whole vector."""
    rows, length = 700, 300
    x, r = symbol("x0", extent=length), symbol("r0", extent=rows)
    index = r * length + x if where == "column" else x * rows + r
    value = op("log", load("in0", [index], F32))
    equal = op("eq", value, reduce("max", [value], [r]))
    kernel = Kernel(
        name="equals_extreme",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=F32, role="in", span=as_expr(rows * length)),
            TensorArg(name="out0", dtype=DType.BOOL, role="out", span=as_expr(rows * length)),
        ),
        stores=(Store(buffer="out0", index=index, value=equal),),
    )
    run = load_kernel(kernel)
    data = torch.rand(rows * length, generator=torch.Generator().manual_seed(0)) + 0.5
    out = torch.empty(rows * length, dtype=torch.bool)
    run(data, out)
    found = out.view(rows, length).sum(0) if where == "column" else out.view(length, rows).sum(1)
    assert bool((found >= 1).all())


ZERO, MINUS = const(0.0, F32), const(-1.0, F32)
NEGATIONS: dict[str, Callable[[Scalar], Scalar]] = {
    "sub": lambda x: op("sub", ZERO, x),
    "mul": lambda x: op("add", ZERO, op("mul", x, MINUS)),
    "neg": lambda x: op("add", op("neg", x), ZERO),
}


@pytest.mark.parametrize("negation", NEGATIONS)
def test_zero_minus_zero_is_no_negative_zero(load_kernel: LoadKernel, negation: str) -> None:
    """Also where the compiler sees that what is subtracted is never -0, and each is one expression."""
    a, b = inputs()
    magnitudes = (
        cast(cast(a, DType.I32), F32),
        op("abs", b),
        op("where", op("gt", a, ZERO), const(2.0, F32), ZERO),
        cast(op("gt", a, b), F32),
    )
    given = torch.zeros(COUNT)
    given[::3] = 2.0
    outputs = [torch.empty(COUNT) for _ in magnitudes]
    load_kernel(kernel_of([NEGATIONS[negation](x) for x in magnitudes], "fast"))(given, given, *outputs)
    for found in outputs:
        assert not found[1::3].signbit().any()


def test_only_sums_with_zero_are_compiled_for_every_rounding() -> None:
    a, b = inputs()
    zero = const(0.0, F32)
    for value, wanted in (
        (op("sub", a, b), False),
        (op("maximum", a, zero), False),
        (op("add", a, const(1.0, F32)), False),
        (op("sub", zero, a), True),
        (op("add", a, zero), True),
    ):
        text = CppCodegen().emit(kernel_of([value], "fast"), get_target("x86-64-avx2"), {}).text
        assert ("rounding-math" in text) == wanted
