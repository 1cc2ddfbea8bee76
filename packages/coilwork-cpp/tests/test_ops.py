"""Every scalar op against torch, special values included."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel, TorchDType

from coilwork_cpp.values.ops import RULES, STRUCTURAL
from coilwork_cpp.values.reductions import SUPPORTED
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.interpretation.ops import SCALAR_FUNCTIONS
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS
from coilwork_ir.scalar import Scalar, cast, const, load, op

N = symbol("n0", lo=0)
X = symbol("x0", extent=N)

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "exp": torch.exp,
    "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log10": torch.log10,
    "log1p": torch.log1p, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin,
    "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh,
    "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "erfc": torch.erfc, "lgamma": torch.lgamma, "isnan": torch.isnan, "isinf": torch.isinf,
    "signbit": torch.signbit, "bitwise_not": torch.bitwise_not,
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.true_divide,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder, "fmod": torch.fmod, "minimum": torch.minimum, "maximum": torch.maximum,
    "pow": torch.pow, "atan2": torch.atan2, "hypot": torch.hypot, "copysign": torch.copysign,
    "gcd": torch.gcd, "zeta": torch.special.zeta, "igamma": torch.igamma, "igammac": torch.igammac,
    "hermite_h": torch.special.hermite_polynomial_h, "hermite_he": torch.special.hermite_polynomial_he,
    "laguerre": SCALAR_FUNCTIONS["laguerre"], "legendre": SCALAR_FUNCTIONS["legendre"],
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or, "bitwise_xor": torch.bitwise_xor,
    "lshift": torch.bitwise_left_shift, "rshift": torch.bitwise_right_shift,
}  # fmt: skip
TERNARY = {"fma": lambda a, b, c: torch.addcmul(c, a, b)}
# The error of float arithmetic that is exact or rounded once.
EXACT = frozenset(
    "neg abs sign sqrt floor ceil trunc round add sub mul div minimum maximum copysign truncdiv fmod".split()
)
BY_DEGREE = frozenset({"hermite_h", "hermite_he", "laguerre", "legendre"})
# torch computes these in f32 with larger errors in places, so its own error is no yardstick.
ULPS = 4
# In f64 the yardstick is torch's own result.
SERIES = frozenset({"zeta", "igamma", "igammac"} | BY_DEGREE)
SERIES_ULPS = 1000


def elementwise(
    name: str, inputs: tuple[DType, ...], values: Callable[[list[Scalar]], list[Scalar]]
) -> Kernel:
    """`out_k[i] = values(in_0[i], in_1[i], ...)[k]`."""
    loads: list[Scalar] = [load(f"in{k}", [X], dtype) for k, dtype in enumerate(inputs)]
    results = values(loads)
    args = [TensorArg(name=f"in{k}", dtype=d, role="in", span=as_expr(N)) for k, d in enumerate(inputs)]
    args += [
        TensorArg(name=f"out{k}", dtype=v.dtype, role="out", span=as_expr(N)) for k, v in enumerate(results)
    ]
    return Kernel(
        name=name,
        ranges=(Range(symbol=X, kind="parallel"),),
        args=tuple(args),
        sizes=(N,),
        stores=tuple(Store(buffer=f"out{k}", index=X, value=v) for k, v in enumerate(results)),
    )


def names_for(dtype: DType) -> list[str]:
    """Ops of the table, other than the structural ones, that take `dtype`."""
    found = []
    for row in SCALAR_OPS.values():
        classes = {
            "any": True,
            "number": dtype.is_float or dtype.is_integer,
            "float": dtype.is_float,
            "integer": dtype.is_integer,
            "bits": dtype.is_integer or dtype.is_bool,
            "bool": dtype.is_bool,
        }
        if row.name not in STRUCTURAL and classes[row.accepts]:
            found.append(row.name)
    return found


def reference(name: str, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    if name in UNARY:
        return UNARY[name](a)
    return BINARY[name](a, b) if name in BINARY else TERNARY[name](a, b, c)


def test_every_scalar_op_has_a_rule() -> None:
    assert frozenset(RULES) | STRUCTURAL == frozenset(SCALAR_OPS)
    assert frozenset(UNARY) | frozenset(BINARY) | frozenset(TERNARY) | STRUCTURAL == frozenset(SCALAR_OPS)
    assert SUPPORTED | {"welford", "online_softmax"} == frozenset(REDUCE_OPS)


def float_inputs(kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        math.inf,
        -math.inf,
        math.nan,
        3.0,
        1e-8,
        -7.25,
        20.0,
    ]
    pairs = torch.tensor([(a, b) for a in special for b in special])
    a = torch.cat([pairs[:, 0], torch.randn(3000) * 4, torch.rand(1000) * 2 - 1, torch.rand(500) * 80])
    b = torch.cat([pairs[:, 1], torch.randn(3000) * 3, torch.randn(1000), torch.rand(500) * 3])
    return a.to(kind), b.to(kind), torch.randn(len(a)).to(kind)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_float_ops_compute_as_the_reference(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType
) -> None:
    names = names_for(dtype)
    kernel = elementwise(
        "float_ops", (dtype,) * 3, lambda v: [op(name, *v[: SCALAR_OPS[name].arity]) for name in names]
    )
    kind = torch_dtype(dtype)
    a, b, c = float_inputs(kind)
    expected = [reference(name, a, b, c) for name in names]
    outputs = [torch.empty(e.shape, dtype=e.dtype) for e in expected]
    load_kernel(kernel)(a, b, c, *outputs, len(a))
    unit = 2.0**-23 if dtype is DType.F32 else 2.0**-52
    for name, want, got in zip(names, expected, outputs, strict=True):
        if want.dtype == torch.bool:
            assert torch.equal(want, got), name
            continue
        assert torch.equal(want.isnan(), got.isnan()), (name, a[want.isnan() != got.isnan()][:5])
        finite = want.isfinite()
        assert torch.equal(want[~finite & ~want.isnan()], got[~finite & ~want.isnan()]), name
        exact = reference(name, a.double(), b.double(), c.double())[finite]
        scale = exact.abs().clamp(min=1e-30) if name != "lgamma" else exact.abs().clamp(min=1)
        if name in BY_DEGREE:
            # near a zero the next lower degree, which has none there, says how large the terms are
            scale = scale + reference(name, a.double(), b.double() - 1, c.double())[finite].abs()
        error = ((got[finite].double() - exact).abs() / scale / unit).max().item()
        eager = ((want[finite].double() - exact).abs() / scale / unit).max().item()
        least = 0.51 if name in EXACT and dtype is DType.F32 else SERIES_ULPS if name in SERIES else ULPS
        assert error <= max(least, 2 * eager), (
            name,
            error,
            eager,
        )


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
def test_remainders_of_numbers_far_apart_are_exact(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType
) -> None:
    kernel = elementwise("remainders", (dtype,) * 2, lambda v: [op("fmod", *v), op("mod", *v)])
    kind = torch_dtype(dtype)
    word = torch.int32 if dtype is DType.F32 else torch.int64
    generator = torch.Generator().manual_seed(3)
    info = torch.iinfo(word)
    # all that a word of bits can be: quotients of up to 2^277 and 2^2097, infinities, NaN, subnormal numbers
    a, b = (
        torch.randint(info.min, info.max, (20_000,), generator=generator, dtype=word).view(kind) for _ in "ab"
    )
    outputs = [torch.empty(len(a), dtype=kind) for _ in range(2)]
    load_kernel(kernel)(a, b, *outputs, len(a))
    wanted: list[list[float]] = [[], []]
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        defined = math.isfinite(x) and y == y and y != 0
        rest = math.fmod(x, y) if defined else math.nan
        wanted[0].append(rest)
        wanted[1].append(rest + y if rest != 0 and (rest < 0) != (y < 0) else rest)
    for got, want in zip(outputs, wanted, strict=True):
        torch.testing.assert_close(got, torch.tensor(want, dtype=kind), rtol=0, atol=0, equal_nan=True)


def test_lgamma_near_its_zeros_and_poles(load_kernel: LoadKernel) -> None:
    kernel = elementwise("zeros", (DType.F32,), lambda v: [op("lgamma", v[0])])
    near = torch.linspace(-1e-5, 1e-5, 1001)
    poles = torch.tensor([0.0, -0.0, -1.0, -2.0, -1e8, math.inf, -math.inf, 1.0, 2.0, 3e38, 1e-42, -1e-42])
    x = torch.cat([1 + near, 2 + near, -1 + near, -2.457024738 + near, 4 * near, near * 1e7, poles])
    got = torch.empty_like(x)
    load_kernel(kernel)(x, got, len(x))
    # a float nearest to the exact value, or its neighbour
    exact = torch.lgamma(x.double())
    torch.testing.assert_close(got.double(), exact.float().double(), rtol=2**-23, atol=0)


INTEGERS = [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_ops_compute_as_the_reference(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType
) -> None:
    names = names_for(dtype)
    kernel = elementwise(
        "integer_ops", (dtype,) * 2, lambda v: [op(n, *v[: SCALAR_OPS[n].arity]) for n in names]
    )
    kind = torch_dtype(dtype)
    info = torch.iinfo(kind)
    special = [
        v for v in (0, 1, 2, 3, 7, 8, 31, 33, 63, 64, -1, -2, -7, info.min + 1, info.max) if v >= info.min
    ]
    pairs = torch.tensor([(x, y) for x in special for y in special if y != 0 and y <= info.max], dtype=kind)
    a, b = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()
    outputs = []
    for name in names:
        outputs.append(torch.empty(len(a), dtype=torch.bool if SCALAR_OPS[name].rule == "compare" else kind))
    load_kernel(kernel)(a, b, *outputs, len(a))
    for name, got in zip(names, outputs, strict=True):
        where = b >= 0 if name == "pow" else torch.ones(len(a), dtype=torch.bool)
        want = reference(name, a[where], b[where], a[where])
        assert torch.equal(want, got[where]), name


def test_division_by_zero_does_not_stop_the_process(load_kernel: LoadKernel) -> None:
    names = ["floordiv", "truncdiv", "mod", "fmod"]
    kernel = elementwise("by_zero", (DType.I64,) * 2, lambda v: [op(n, *v) for n in names])
    a = torch.tensor([5, -5, -(2**63)])
    b = torch.tensor([0, 0, -1])
    outputs = [torch.empty(3, dtype=torch.int64) for _ in names]
    load_kernel(kernel)(a, b, *outputs, 3)
    assert [out.tolist()[:2] for out in outputs] == [[0, 0]] * 4
    assert outputs[0][2] == -(2**63) and outputs[2][2] == 0


def test_bool_ops_compute_as_the_reference(load_kernel: LoadKernel) -> None:
    names = names_for(DType.BOOL)
    kernel = elementwise(
        "bool_ops", (DType.BOOL,) * 2, lambda v: [op(n, *v[: SCALAR_OPS[n].arity]) for n in names]
    )
    a, b = torch.tensor([0, 0, 1, 1] * 20).bool(), torch.tensor([0, 1, 0, 1] * 20).bool()
    outputs = [torch.empty(80, dtype=torch.bool) for _ in names]
    load_kernel(kernel)(a, b, *outputs, 80)
    for name, got in zip(names, outputs, strict=True):
        assert torch.equal(reference(name, a, b, a), got), name
        assert set(got.view(torch.uint8).tolist()) <= {0, 1}


FLOATS = [DType.F64, DType.F32, DType.F16, DType.BF16, DType.F8E4M3, DType.F8E5M2]
WHOLE = [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL]


@pytest.mark.parametrize("source", [*FLOATS, *WHOLE])
def test_casts_between_all_types_are_torchs(
    load_kernel: LoadKernel, torch_dtype: TorchDType, source: DType
) -> None:
    targets = [d for d in [*FLOATS, *WHOLE] if d is not source]
    kernel = elementwise("casts", (source,), lambda v: [cast(v[0], d) for d in targets])
    if source.is_float:
        bits = torch.arange(65536, dtype=torch.int64)
        if source.itemsize == 1:
            data = bits[:256].to(torch.uint8).view(torch_dtype(source))
        elif source.itemsize == 2:
            data = (bits - 32768).to(torch.int16).view(torch_dtype(source))
        else:
            every_f16 = (bits - 32768).to(torch.int16).view(torch.float16).float()
            tweak = torch.tensor(
                [1.0, 1 + 2**-12, 1 - 2**-12, 1 + 2**-9, 1 - 2**-9, 2.0**-4, 2.0**5, 2.0**20]
            )
            data = (every_f16[:, None] * tweak).reshape(-1).to(torch_dtype(source))
    else:
        info = (
            (0, 1)
            if source.is_bool
            else (torch.iinfo(torch_dtype(source)).min, torch.iinfo(torch_dtype(source)).max)
        )
        data = torch.tensor([*range(min(info[1] + 1, 300)), *info, max(info[0], -77)]).to(torch_dtype(source))
    outputs = [torch.empty(data.shape, dtype=torch_dtype(d)) for d in targets]
    load_kernel(kernel)(data, *outputs, len(data))
    wide = data.double()
    for dtype, got in zip(targets, outputs, strict=True):
        want = data.to(torch_dtype(dtype))
        chosen = torch.ones(len(data), dtype=torch.bool)
        if source.is_float and dtype.is_integer:
            # C++ leaves the rest undefined, and torch's vector and scalar loops differ there
            low, high = torch.iinfo(torch_dtype(dtype)).min, torch.iinfo(torch_dtype(dtype)).max
            chosen = (wide > low - 1.0) & (wide < float(high) + (1.0 if high < 2**53 else 0.0))
        if dtype is DType.F8E4M3:
            # torch before 2.13 gives NaN where later ones, and generated code, saturate
            large = wide.abs() > 448
            assert torch.equal(got.double()[large], 448 * wide[large].sign())
            want, got = want[~large], got[~large]
        if dtype.is_float:
            nan = want.double().isnan()
            assert torch.equal(nan, got.double().isnan()), dtype
            assert torch.equal(want.double()[~nan], got.double()[~nan]), dtype
            assert torch.equal(torch.signbit(want.double()[~nan]), torch.signbit(got.double()[~nan])), dtype
        else:
            assert torch.equal(want[chosen], got[chosen]), dtype


def test_bitcasts_keep_bits(load_kernel: LoadKernel) -> None:
    kernel = elementwise(
        "bitcasts",
        (DType.F32, DType.BF16),
        lambda v: [op("bitcast", v[0], dtype=DType.I32), op("bitcast", v[1], dtype=DType.I16)],
    )
    a = torch.randn(50)
    b = torch.randn(50).bfloat16()
    outputs = [torch.empty(50, dtype=torch.int32), torch.empty(50, dtype=torch.int16)]
    load_kernel(kernel)(a, b, *outputs, 50)
    assert torch.equal(outputs[0], a.view(torch.int32)) and torch.equal(outputs[1], b.view(torch.int16))


def test_bitcasts_of_constants(load_kernel: LoadKernel) -> None:
    """Whatever type C++ takes their text for."""
    kernel = elementwise(
        "constant_bits",
        (DType.F64, DType.BF16),
        lambda v: [
            op("copysign", op("bitcast", const(1, DType.I64), dtype=DType.F64), v[0]),
            op(
                "where", op("lt", v[1], v[1]), v[1], op("bitcast", const(-16512, DType.I16), dtype=DType.BF16)
            ),
        ],
    )
    a, b = torch.randn(50, dtype=torch.float64), torch.randn(50).bfloat16()
    outputs = [torch.empty_like(a), torch.empty_like(b)]
    load_kernel(kernel)(a, b, *outputs, 50)
    assert torch.equal(outputs[0], torch.copysign(torch.tensor(5e-324, dtype=torch.float64), a))
    assert torch.equal(outputs[1], torch.full_like(b, -1.0))


@pytest.mark.parametrize("bits", [DType.I32, DType.I64])
@pytest.mark.parametrize("kind", [DType.F32, DType.F64, DType.F16, DType.BF16])
def test_there_and_back_between_floats_and_integers(
    load_kernel: LoadKernel, torch_dtype: TorchDType, bits: DType, kind: DType
) -> None:
    """gcc would make it a rounding towards zero, which keeps -0, NaN and what no integer is."""
    kernel = elementwise(
        f"there_and_back_{bits.text}_{kind.text}", (kind,), lambda v: [cast(cast(v[0], bits), kind)]
    )
    numbers = [0.0, -0.0, -0.5, 1.5, -1.5, math.nan, math.inf, -math.inf, 3e9, -3e9, 2.0**31, -(2.0**31)]
    numbers += [1e19, -1e19, 2.0**63, -(2.0**63), 123456.0, -7.99]
    x = torch.tensor(numbers).to(torch_dtype(kind)).repeat(5)
    output = torch.empty_like(x)
    load_kernel(kernel)(x, output, x.numel())
    wanted = x.to(torch_dtype(bits)).to(x.dtype)
    assert torch.equal(output, wanted) and torch.equal(output.signbit(), wanted.signbit())


def test_low_precision_operands_are_widened(load_kernel: LoadKernel) -> None:
    def values(v: list[Scalar]) -> list[Scalar]:
        return [op("add", *v), op("where", op("lt", *v), *v), op("maximum", *v)]

    kernel = elementwise("narrow", (DType.BF16,) * 2, values)
    a, b = torch.randn(100).bfloat16(), torch.randn(100).bfloat16()
    outputs = [torch.empty(100, dtype=torch.bfloat16) for _ in range(3)]
    load_kernel(kernel)(a, b, *outputs, 100)
    for got, want in zip(outputs, (a + b, torch.minimum(a, b), torch.maximum(a, b)), strict=True):
        assert torch.equal(got, want)


def test_exp_over_its_whole_range(load_kernel: LoadKernel) -> None:
    kernel = elementwise("whole_exp", (DType.F32,), lambda v: [op("exp", v[0]), op("sigmoid", v[0])])
    x = torch.linspace(-110, 95, 1_000_000)
    outputs = [torch.empty_like(x), torch.empty_like(x)]
    load_kernel(kernel)(x, *outputs, len(x))
    exact = x.double().exp()
    normal = (exact > 2.0**-126) & (exact < 3.4e38)
    assert ((outputs[0].double() - exact).abs() / exact)[normal].max() < 1.01 * 2**-23
    assert (outputs[0].double() - exact)[exact <= 2.0**-126].abs().max() <= 2.0**-149
    assert torch.isinf(outputs[0][exact > 3.41e38]).all()
    assert torch.allclose(outputs[1], torch.sigmoid(x), rtol=3e-7, atol=0)
