"""Every scalar op is written, runs in Triton's interpreter, and agrees with torch, special values
included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, run_source

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.interpretation.ops import SCALAR_FUNCTIONS
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import load, op
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.text.ops import SCALAR_BUILDERS

TORCH = {
    DType.F32: torch.float32, DType.F64: torch.float64, DType.I64: torch.int64, DType.I32: torch.int32,
    DType.I8: torch.int8, DType.U8: torch.uint8, DType.BOOL: torch.bool,
}  # fmt: skip

REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div": torch.true_divide,
    "mod": torch.remainder,
    "fma": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
    "sign": lambda a: torch.nan_to_num(torch.sign(a), nan=0.0),
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    **{name: SCALAR_FUNCTIONS[name] for name in ("zeta", "hermite_h", "hermite_he", "laguerre", "legendre")},
}

INF, NAN = math.inf, math.nan
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -7.0, 1e-6, -1e-6, 1e-30, -1e-30, 0.3, -0.3, 0.62,
    0.63,
    10.0, -10.0, 19.9, 20.1, 80.0, -80.0, 88.8, -104.0, 1e4, 1e10, -1e10, 3e38, -3e38, 8388609.0, 4194304.5,
    0.41,
    0.42, 0.9999, -0.9999, 0.66, 2.0, -2.0, -3.5, 33.0, 100.5, INF, -INF, NAN,
]  # fmt: skip
# What a polynomial's recurrence makes of those of the degrees k and k - 1 (DLMF 18.9): addends of the factor
# of the one, factor of the other, and the half-ulps by which the last operation may be off. Fast kernels
# divide to within 2 ulps (PTX: div.full.f32).
RECURRENCES = {
    "hermite_h": lambda x, k: ([2 * x], 2 * k, 1),
    "hermite_he": lambda x, k: ([x], k, 1),
    "laguerre": lambda x, k: ([(2 * k + 1) / (k + 1), -x / (k + 1)], k / (k + 1), 4),
    "legendre": lambda x, k: ([(2 * k + 1) * x / (k + 1)], k / (k + 1), 4),
}
BY_DEGREE = tuple(RECURRENCES)
# A degree that a recurrence reaches in reasonable time.
HIGHEST = 60
# In f64, in which torch's own results are the yardstick.
ROUGHER = {"pow": 2e-13, "zeta": 2e-13, "igamma": 1e-12, "igammac": 1e-12, **dict.fromkeys(BY_DEGREE, 2e-13)}
PARTNERS = [1.0, -1.0, 2.0, 0.5, -3.0, 0.7, 0.0, -0.0, 1e-3, 1e10, INF, -INF, NAN, 3.0, 7.5]
INTEGERS = [0, 1, -1, 2, -2, 3, 5, -5, 7, 11, -13, 63, 100, -100, 127, -128]


def emit_op(
    name: str, dtype: DType, count: int, numerics: Numerics = "fast", scalars: Collection[int] = ()
) -> tuple[Kernel, DType]:
    """A kernel that applies `name` to its inputs element by element; of those number `scalars` to the first
    element.
    """
    row = SCALAR_OPS[name]
    x = along("x0", count)
    kinds = [DType.BOOL, dtype, dtype] if row.rule == "select" else [dtype] * row.arity
    places = [as_expr(0) if k in scalars else x.symbol for k in range(row.arity)]
    values = [
        load(f"in{k}", [place], kind) for k, (place, kind) in enumerate(zip(places, kinds, strict=True))
    ]
    value = op(name, *values)
    alone = len(scalars) == row.arity
    stores = (Store(buffer="out0", index=as_expr(0) if alone else x.symbol, value=value),)
    args = (*(arg(f"in{k}", kind, count) for k, kind in enumerate(kinds)), arg("out0", value.dtype, count))
    kernel = Kernel(
        name=f"apply_{name}", ranges=() if alone else (x,), args=args, stores=stores, numerics=numerics
    )
    return kernel, value.dtype


def apply(
    process: TritonProcess, name: str, dtype: DType, inputs: list[torch.Tensor], numerics: Numerics = "fast"
) -> torch.Tensor:
    count = inputs[0].numel()
    kernel, result = emit_op(name, dtype, count, numerics)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    return run_source(process, source, [*inputs, torch.zeros(count, dtype=TORCH[result])])[-1]


def reference(name: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    function = REFERENCES.get(name) or getattr(torch, name)
    return function(*inputs)


def float_inputs(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    arity = SCALAR_OPS[name].arity
    left = torch.tensor(SPECIAL, dtype=dtype)
    if arity == 1:
        return [left]
    right = torch.tensor(PARTNERS, dtype=dtype)
    if name in BY_DEGREE:
        right = right.clamp(max=HIGHEST)
    a, b = (t.reshape(-1).clone() for t in torch.meshgrid(left, right, indexing="ij"))
    return [a, b] if arity == 2 else [a, b, b.flip(0)]


def recurrence_rounding(name: str, x: torch.Tensor, degree: torch.Tensor) -> torch.Tensor:
    """How far roundings may take a polynomial's value, computed in f32 by its recurrence, from the exact one.

    A step rounds the factor, its two terms and what it makes of them. What it is off by goes through the
    steps after it: they are linear, so it grows like the solution that starts there with 0 and 1. Order,
    contraction to fma and the kind of division choose the signs, so roundings are independent: the result is
    the root of the sum of their squares, and one computation's luck is no measure of another's.

    Takes and returns f64: absolute errors, one per element.
    """
    last_step = degree.nan_to_num(0.0).clamp(min=0).long()
    squares = torch.zeros_like(x)
    last, before = torch.ones_like(x), torch.zeros_like(x)
    for k in range(HIGHEST):
        addends, factor, final = RECURRENCES[name](x, k)
        value = sum(addends) * last - factor * before
        first = sum(abs(a) for a in addends) * last
        rounded = 2 * first.square() + (factor * before).square() + (final * value).square()
        grown, earlier = torch.ones_like(x), torch.zeros_like(x)
        for j in range(k + 1, int(last_step.max())):
            addends, factor, _ = RECURRENCES[name](x, j)
            after = sum(addends) * grown - factor * earlier
            going = j < last_step
            grown, earlier = torch.where(going, after, grown), torch.where(going, grown, earlier)
        squares += torch.where(k < last_step, grown.square() * rounded, 0.0)
        last, before = value, last
    return squares.sqrt() * 2.0**-24


def test_no_scalar_op_is_missing() -> None:
    assert set(SCALAR_BUILDERS) == set(SCALAR_OPS)


FLOAT_OPS = [
    n
    for n, r in SCALAR_OPS.items()
    if r.rule in ("same", "compare", "test") and r.accepts in ("any", "number", "float")
]
# remainders of quotients beyond 2^24 are rounding noise in torch, too
QUOTIENTS = ("fmod", "mod", "floordiv")


@pytest.mark.parametrize("name", FLOAT_OPS)
def test_float_ops_agree_with_torch(engine: TritonProcess, name: str) -> None:
    inputs = float_inputs(name, torch.float32)
    got = apply(engine, name, DType.F32, inputs)
    want = reference(name, inputs)
    if want.dtype == torch.bool:
        assert torch.equal(got, want)
        return
    exact = reference(name, [i.double() for i in inputs])
    if name in QUOTIENTS:
        near = ~((inputs[0] / inputs[1]).abs() > 2**24)
        got, want, exact = got[near], want[near], exact[near]
    if name == "igammac":
        # torch's own loses a constant of Euler's where the result is about as small as the first operand
        near = inputs[0] != torch.tensor(1e-30)
        got, want, exact = got[near], want[near], exact[near]
    if name == "fma":
        # the interpreter multiplies and adds in two steps, so the product may overflow
        fits = ~torch.isinf(inputs[0] * inputs[1]) | torch.isinf(inputs[0]) | torch.isinf(inputs[1])
        got, want, exact = got[fits], want[fits], exact[fits]
    # where torch's own kernel overflows early the exact result may be finite
    undefined = (torch.isnan(got) == torch.isnan(want)) | (torch.isnan(got) == torch.isnan(exact))
    infinite = (torch.isinf(got) == torch.isinf(exact.float())) | (torch.isinf(got) == torch.isinf(want))
    kind = undefined & infinite
    assert kind.all(), f"{name}: got {got[~kind]}, torch {want[~kind]}, exact {exact[~kind]}"
    finite = torch.isfinite(want) & torch.isfinite(got)
    scale = exact.abs().clamp(min=2.0**-126)[finite] * 2.0**-24
    error = (got.double() - exact).abs()[finite] / scale
    allowed = (want.double() - exact).abs()[finite] / scale
    if name in BY_DEGREE:
        rounding = recurrence_rounding(name, *(i.double() for i in inputs))[finite] / scale
        allowed = torch.maximum(allowed, rounding)
    bound = 2 * allowed + 8
    assert (error <= bound).all(), f"{name}: {error.max()} half-ulps; allowed {bound.max()}"
    # which of two zeros is the smaller is up to the hardware
    zero = (want == 0) if name not in ("minimum", "maximum") else torch.zeros_like(want, dtype=torch.bool)
    assert torch.equal(torch.signbit(got[zero]), torch.signbit(want[zero]))


@pytest.mark.parametrize("name", [n for n in FLOAT_OPS if SCALAR_OPS[n].rule == "same"])
def test_double_ops_agree_with_torch(engine: TritonProcess, name: str) -> None:
    inputs = float_inputs(name, torch.float64)
    got = apply(engine, name, DType.F64, inputs)
    want = reference(name, inputs)
    if name in QUOTIENTS:
        # the interpreter's fma rounds twice: only where products are exact is the remainder
        keep = torch.stack([(i * 2 == (i * 2).round()) & (i.abs() < 2**20) for i in inputs]).all(0)
        got, want = got[keep], want[keep]
    torch.testing.assert_close(got, want, rtol=ROUGHER.get(name, 4e-15), atol=2e-15, equal_nan=True)


@pytest.mark.parametrize("numerics", ["fast", "eager", "strict"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_a_number_less_itself_is_zero(engine: TritonProcess, dtype: DType, numerics: Numerics) -> None:
    x = along("x0", len(SPECIAL))
    value = load("in0", [x.symbol], dtype)
    kernel = Kernel(
        name="nothing",
        ranges=(x,),
        args=(arg("in0", dtype, len(SPECIAL)), arg("out0", dtype, len(SPECIAL))),
        stores=(Store(buffer="out0", index=x.symbol, value=op("sub", value, value)),),
        numerics=numerics,
    )
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    inputs = torch.tensor(SPECIAL, dtype=TORCH[dtype])
    got = run_source(engine, source, [inputs, torch.ones_like(inputs)])[-1]
    torch.testing.assert_close(got, inputs - inputs, rtol=0, atol=0, equal_nan=True)
    assert not torch.signbit(got[got == 0]).any()


def test_whole_powers_of_doubles_are_exact_where_the_result_is(engine: TritonProcess) -> None:
    """As torch's: what is cut to an integer afterwards must not be a little less than it."""
    base = torch.tensor(
        [5.0, 3.0, -7.0, 10.0, 2.0, -2.0, 0.0, -0.0, float("inf"), -float("inf"), float("nan")]
    )
    powers = torch.tensor([-64, -3, -1, 0, 1, 2, 3, 15, 64, 65.0]).double()
    left, right = torch.cartesian_prod(base.double(), powers).t().contiguous()
    got = apply(engine, "pow", DType.F64, [left, right])
    want = torch.pow(left, right)
    exact = (want == want.round()) & (want.abs() < 2**53) | torch.isinf(left) | (left == 0)
    assert torch.equal(got[exact], want[exact])
    assert torch.equal(torch.signbit(got[exact]), torch.signbit(want[exact]))
    torch.testing.assert_close(got, want, rtol=2e-14, atol=0, equal_nan=True)


ITERATED = [
    *((name, DType.F64) for name in ("zeta", "igamma", "igammac", *BY_DEGREE)),
    *((name, DType.I64) for name in ("gcd", "pow")),
]


@pytest.mark.parametrize("scalars", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(("name", "dtype"), ITERATED)
def test_loops_over_single_elements_end_as_those_over_many(
    engine: TritonProcess, name: str, scalars: tuple[int, ...], dtype: DType
) -> None:
    inputs = [
        torch.tensor([6, 2, 3, 9, 4], dtype=TORCH[dtype]),
        torch.tensor([3, 4, 7, 2, 5], dtype=TORCH[dtype]),
    ]
    spread = [t[:1].expand(5).clone() if k in scalars else t for k, t in enumerate(inputs)]
    kernel, _ = emit_op(name, dtype, 5, scalars=scalars)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    got = run_source(engine, source, [*inputs, torch.zeros(5, dtype=TORCH[dtype])])[-1]
    stored = 1 if len(scalars) == 2 else 5
    want = apply(engine, name, dtype, spread)
    assert torch.equal(got[:stored], want[:stored]) and not got[stored:].any()


INT_OPS = [
    n
    for n, r in SCALAR_OPS.items()
    if r.rule in ("same", "compare") and r.accepts in ("any", "number", "integer", "bits")
]


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.I8, DType.U8])
@pytest.mark.parametrize("name", INT_OPS)
def test_integer_ops_agree_with_torch(engine: TritonProcess, name: str, dtype: DType) -> None:
    left = torch.tensor(INTEGERS).to(TORCH[dtype])
    right = torch.tensor(
        [1, 2, 3, 5, 7] if name in ("pow", "lshift", "rshift") else [1, -1, 2, 3, -3, 7, -7, 100]
    )
    if dtype is DType.U8:
        right = right.abs()
    a, b = (t.reshape(-1).clone() for t in torch.meshgrid(left, right.to(TORCH[dtype]), indexing="ij"))
    inputs = [a, b][: SCALAR_OPS[name].arity]
    assert torch.equal(apply(engine, name, dtype, inputs), reference(name, inputs))


BOOL_OPS = [
    n for n, r in SCALAR_OPS.items() if r.rule in ("same", "compare") and r.accepts in ("any", "bits")
]


@pytest.mark.parametrize("name", BOOL_OPS)
def test_bool_ops_agree_with_torch(engine: TritonProcess, name: str) -> None:
    inputs = [torch.tensor([False, False, True, True]), torch.tensor([False, True, False, True])]
    inputs = inputs[: SCALAR_OPS[name].arity]
    assert torch.equal(apply(engine, name, DType.BOOL, inputs), reference(name, inputs))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64, DType.I64, DType.I8, DType.BOOL])
def test_where_chooses(engine: TritonProcess, dtype: DType) -> None:
    choose = torch.tensor([True, False, True, False])
    a, b = torch.tensor([0, 1, 0, 1]).to(TORCH[dtype]), torch.tensor([1, 1, 0, 0]).to(TORCH[dtype])
    assert torch.equal(apply(engine, "where", dtype, [choose, a, b]), torch.where(choose, a, b))


@pytest.mark.parametrize("name", ["exp", "sigmoid", "div", "sqrt", "rsqrt"])
def test_strict_numerics_agree_with_torch(engine: TritonProcess, name: str) -> None:
    inputs = float_inputs(name, torch.float32)
    got = apply(engine, name, DType.F32, inputs, "strict")
    torch.testing.assert_close(got, reference(name, inputs), rtol=3e-7, atol=1e-44, equal_nan=True)
