"""The meaning of scalar ops, reductions and scans, beside torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from operator import attrgetter

import pytest
import torch
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import InterpretError
from coilwork_ir.interpretation.ops import (
    REDUCERS,
    SCALAR_FUNCTIONS,
    SCANNERS,
    apply_op,
    convert,
    literal,
    reduce_last,
    scan_last,
    torch_dtype,
)
from coilwork_ir.ops import REDUCE_OPS, SCALAR_OPS, SCAN_KINDS, ScanKind

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, 3e38, -3e38, 88.8, -104.0]
SPECIAL += [float("nan"), float("inf"), float("-inf"), 0.9999999, 3.14159274]
FLOATS = torch.tensor(SPECIAL, dtype=torch.float32)
INTEGERS = (DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.U64)

# torch's own name, where it differs from the op's
NAMES = {"sub": "subtract", "div": "true_divide", "mod": "remainder", "lshift": "bitwise_left_shift"}
NAMES |= {"rshift": "bitwise_right_shift"}


def edges(dtype: DType) -> Tensor:
    """Small and extreme values of an integer type."""
    bits = 8 * dtype.itemsize
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed_integer else (0, (1 << bits) - 1)
    numbers = sorted({low, low + 1, high - 1, high, 0, 1, 2, 3, 7, 13, *([-1, -2, -7] if low else [])})
    return torch.stack([literal(n, dtype) for n in numbers])


def numbers_of(value: Tensor) -> list[int]:
    return [int(n) for n in value.flatten().tolist()]


def test_no_row_is_missing() -> None:
    assert set(SCALAR_FUNCTIONS) == set(SCALAR_OPS)


OF_TORCH = [r.name for r in SCALAR_OPS.values() if r.accepts in ("float", "number")]
NAMES |= {
    "hermite_h": "special.hermite_polynomial_h",
    "hermite_he": "special.hermite_polynomial_he",
    "zeta": "special.zeta",
}
OF_TORCH = [name for name in OF_TORCH if name not in ("floordiv", "truncdiv", "fma", "laguerre", "legendre")]


@pytest.mark.parametrize("name", OF_TORCH)
def test_float_ops_are_torch_functions(name: str) -> None:
    row = SCALAR_OPS[name]
    function = attrgetter(NAMES.get(name, name))(torch)
    for dtype in (torch.float32, torch.float64):
        line = FLOATS.to(dtype)
        operands = [line] if row.arity == 1 else [line[:, None], line[None, :]]
        result = apply_op(name, operands, DType.F32)
        expected = function(*operands)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(torch.signbit(result), torch.signbit(expected)) or result.dtype is torch.bool
        assert result.dtype is (torch.bool if row.rule == "test" else dtype)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_are_torchs_and_exact(name: str) -> None:
    result = apply_op(name, [FLOATS[:, None], FLOATS[None, :]], DType.BOOL)
    assert torch.equal(result, getattr(torch, name)(FLOATS[:, None], FLOATS[None, :]))
    exact = {"eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__}
    exact["ge"] = int.__ge__
    for dtype in INTEGERS:
        line = edges(dtype)
        given = numbers_of(line)
        result = apply_op(name, [line[:, None], line[None, :]], DType.BOOL)
        assert result.tolist() == [[exact[name](a, b) for b in given] for a in given]


@pytest.mark.parametrize("name", ["laguerre_polynomial_l", "legendre_polynomial_p"])
def test_polynomials_of_nan(name: str) -> None:
    degrees = torch.tensor([-1.0, -0.5, 0.0, 1.0, 2.0, 20.0, float("nan"), float("inf")])
    nan = torch.tensor(float("nan"))
    found = apply_op(name.partition("_")[0], [nan, degrees], DType.F32)
    wanted = torch.tensor([0.0, 1.0, 1.0, nan, nan, nan, 0.0, 0.0])
    torch.testing.assert_close(found, wanted, equal_nan=True)
    numbers = torch.linspace(-1.5, 1.5, 8)
    assert torch.equal(
        apply_op(name.partition("_")[0], [numbers, degrees], DType.F32),
        getattr(torch.special, name)(numbers, degrees),
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_greatest_common_divisors(dtype: DType) -> None:
    line = edges(dtype)
    found = numbers_of(apply_op("gcd", [line[:, None], line[None, :]], dtype))
    least = min(numbers_of(line))
    for (a, b), got in zip(((a, b) for a in numbers_of(line) for b in numbers_of(line)), found, strict=True):
        assert abs(got) == math.gcd(a, b)
        assert got >= 0 or least in (a, b)


WRAPPING: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "bitwise_and": lambda a, b: a & b,
    "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
    "minimum": min,
    "maximum": max,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "truncdiv": lambda a, b: int(Fraction(a, b)),
    "fmod": lambda a, b: a - b * int(Fraction(a, b)),
}


def wrapped(number: int, dtype: DType) -> int:
    bits = 8 * dtype.itemsize
    number %= 1 << bits
    return number - (1 << bits) if dtype.is_signed_integer and number >= 1 << bits - 1 else number


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.text)
@pytest.mark.parametrize("name", WRAPPING)
def test_integer_ops_wrap_around(name: str, dtype: DType) -> None:
    line = edges(dtype)
    dividing = name in ("floordiv", "mod", "truncdiv", "fmod")
    for a in line:
        for b in line:
            x, y = int(a.item()), int(b.item())
            if dividing and (y == 0 or (y == -1 and x == int(line[0].item()))):
                continue  # undefined
            result = apply_op(name, [a, b], dtype)
            assert result.dtype is torch_dtype(dtype)
            assert int(result.item()) == wrapped(WRAPPING[name](x, y), dtype), (x, y)


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.text)
def test_shifts_and_powers(dtype: DType) -> None:
    line = edges(dtype)
    for count in (0, 1, 3, 7):
        shift = literal(count, dtype)
        right = apply_op("rshift", [line, shift], dtype)
        assert numbers_of(right) == [n >> count for n in numbers_of(line)]
        left = apply_op("lshift", [line, shift], dtype)
        assert numbers_of(left) == [wrapped(n << count, dtype) for n in numbers_of(line)]
        power = apply_op("pow", [line, shift], dtype)
        assert numbers_of(power) == [wrapped(n**count, dtype) for n in numbers_of(line)]


@pytest.mark.parametrize("dtype", INTEGERS, ids=lambda d: d.text)
def test_integer_ops_of_one_operand(dtype: DType) -> None:
    line = edges(dtype)
    given = numbers_of(line)
    assert numbers_of(apply_op("neg", [line], dtype)) == [wrapped(-n, dtype) for n in given]
    assert numbers_of(apply_op("abs", [line], dtype)) == [wrapped(abs(n), dtype) for n in given]
    assert numbers_of(apply_op("sign", [line], dtype)) == [(n > 0) - (n < 0) for n in given]
    assert numbers_of(apply_op("bitwise_not", [line], dtype)) == [wrapped(~n, dtype) for n in given]


def test_an_integer_division_by_zero_does_not_trap() -> None:
    for name in ("floordiv", "truncdiv", "mod", "fmod"):
        for dtype in INTEGERS:
            assert apply_op(name, [literal(7, dtype), literal(0, dtype)], dtype).numel() == 1


def test_float_division_rounds_as_torchs() -> None:
    a, b = FLOATS[:, None], FLOATS[None, :]
    for name, mode in (("floordiv", "floor"), ("truncdiv", "trunc")):
        expected = torch.div(a, b, rounding_mode=mode)
        torch.testing.assert_close(
            apply_op(name, [a, b], DType.F32), expected, rtol=0, atol=0, equal_nan=True
        )


def test_fma_rounds_once() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype, torch_type in ((DType.F32, torch.float32), (DType.F64, torch.float64)):
        a, b = (torch.randn(200, generator=generator, dtype=torch_type) for _ in range(2))
        c = -(a * b)  # the sum is then the product's rounding error, which two roundings lose
        result = apply_op("fma", [a, b, c], dtype)
        exact = [
            Fraction(x) * Fraction(y) + Fraction(z)
            for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        ]
        assert [Fraction(r) for r in result.tolist()] == exact
        assert any(result != 0)
    tie = [torch.tensor(v, dtype=torch.float32) for v in (1.0 + 2.0**-12, 1.0 + 2.0**-12, 2.0**-60)]
    # 1 + 2**-11 + 2**-24 is halfway between two f32; the addend breaks the tie upwards
    assert float(apply_op("fma", tie, DType.F32)) == 1.0 + 2.0**-11 + 2.0**-23
    assert torch.isnan(
        apply_op("fma", [literal(float("inf"), DType.F64)] + [literal(0.0, DType.F64)] * 2, DType.F64)
    )


def test_bool_ops_are_logical() -> None:
    line = torch.tensor([False, True])
    a, b = line[:, None], line[None, :]
    assert torch.equal(apply_op("bitwise_and", [a, b], DType.BOOL), a & b)
    assert torch.equal(apply_op("bitwise_xor", [a, b], DType.BOOL), a ^ b)
    assert torch.equal(apply_op("bitwise_not", [a], DType.BOOL), ~a)
    assert torch.equal(apply_op("minimum", [a, b], DType.BOOL), a & b)
    assert torch.equal(apply_op("lt", [a, b], DType.BOOL), ~a & b)


@pytest.mark.parametrize("source", [d for d in DType if not d.is_opaque], ids=lambda d: d.text)
def test_casts_have_the_target_type_and_value(source: DType) -> None:
    numbers = [0, 1, 2, 100] + ([-1, -100] if not source.is_bool and source.category != "uint" else [])
    line = torch.stack([literal(n, source) for n in numbers])
    for target in DType:
        if target.is_opaque:
            continue
        result = convert(line, target)
        assert result.dtype is torch_dtype(target)
        for before, after in zip(line, result, strict=True):
            number = float(before.item())
            if target.is_bool:
                assert bool(after.item()) == (number != 0)
            elif target.is_integer and (number >= 0 or target.is_signed_integer or source.is_integer):
                assert int(after.item()) == wrapped(int(number), target)
            elif target.is_float:
                assert float(after.item()) == float(torch.tensor(number).to(torch_dtype(target)).item())


def test_casts_of_extremes() -> None:
    high = literal((1 << 64) - 1, DType.U64)
    assert float(convert(high, DType.F64).item()) == 2.0**64
    assert int(convert(literal(2.0**63, DType.F64), DType.U64).item()) == 1 << 63
    assert int(convert(literal(-1, DType.I8), DType.U64).item()) == (1 << 64) - 1
    assert int(convert(literal(-1.75, DType.F32), DType.I32).item()) == -1
    assert bool(convert(literal(float("nan"), DType.F32), DType.BOOL).item())


def test_bitcast_keeps_the_bits() -> None:
    bits = apply_op("bitcast", [literal(1.0, DType.F32)], DType.I32)
    assert int(bits.item()) == 0x3F800000
    assert float(apply_op("bitcast", [bits], DType.F32).item()) == 1.0


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_opaque], ids=lambda d: d.text)
def test_where_selects_any_type(dtype: DType) -> None:
    one, zero = literal(1, dtype), literal(0, dtype)
    result = apply_op("where", [torch.tensor([True, False]), one, zero], dtype)
    assert result.dtype is torch_dtype(dtype)
    # powers of two have no zero
    assert [float(v.item()) for v in result] == [1.0, 0.0 if dtype is not DType.F8E8M0 else 2.0**-127]


X = torch.randn(3, 17, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MASK = torch.randint(0, 2, (3, 17), generator=torch.Generator().manual_seed(2)) > 0
NAN, INF = float("nan"), float("inf")


def test_tables_are_complete() -> None:
    assert set(REDUCERS) == set(REDUCE_OPS)
    assert set(SCANNERS) == set(SCAN_KINDS)
    for kind, row in REDUCE_OPS.items():
        value = X > 0 if kind in ("any", "all") else X.to(torch.int64) if kind == "xor_sum" else X
        assert len(reduce_last(row.name, value)) == row.outputs


def test_sums_and_products() -> None:
    torch.testing.assert_close(reduce_last("sum", X)[0], X.sum(-1))
    torch.testing.assert_close(reduce_last("prod", X)[0], X.prod(-1))
    torch.testing.assert_close(reduce_last("sum", X, MASK)[0], (X * MASK).sum(-1))
    small = torch.full((300,), 100, dtype=torch.int8)
    assert reduce_last("sum", small)[0].item() == (300 * 100 + 128) % 256 - 128
    big = torch.full((3,), (1 << 62), dtype=torch.int64).view(torch.uint64)
    assert reduce_last("sum", big)[0].item() == 3 << 62


def test_extremes_propagate_nan() -> None:
    line = torch.tensor([[1.0, NAN, 3.0], [INF, 2.0, -INF]])
    assert torch.isnan(reduce_last("min", line)[0][0]) and torch.isnan(reduce_last("max", line)[0][0])
    assert reduce_last("min", line)[0][1] == -INF and reduce_last("max", line)[0][1] == INF
    assert reduce_last("max", torch.tensor([5, 250, 7], dtype=torch.uint16))[0].item() == 250
    assert reduce_last("max", torch.tensor([False, True]))[0].item() is True
    top = torch.tensor([-1, 5], dtype=torch.int64).view(torch.uint64)
    assert reduce_last("max", top)[0].item() == (1 << 64) - 1
    assert reduce_last("argmin", top)[0].item() == 1


def test_positions_are_of_the_first_extreme() -> None:
    line = torch.tensor([2.0, 7.0, 7.0, 1.0, 1.0])
    assert reduce_last("argmax", line)[0].item() == 1
    assert reduce_last("argmin", line)[0].item() == 3
    with_nan = torch.tensor([2.0, 7.0, NAN, 1.0, NAN])
    assert reduce_last("argmax", with_nan)[0].item() == 2
    assert reduce_last("argmin", with_nan)[0].item() == 2
    assert reduce_last("argmax", line, torch.tensor([True, False, True, True, True]))[0].item() == 2
    lowest = torch.full((4,), -INF)
    assert reduce_last("argmax", lowest, torch.tensor([False, False, True, True]))[0].item() == 2


def test_truth_values_and_xor() -> None:
    assert torch.equal(reduce_last("any", MASK)[0], MASK.any(-1))
    assert torch.equal(reduce_last("all", MASK, ~MASK)[0], torch.zeros(3, dtype=torch.bool))
    numbers = torch.randint(-1000, 1000, (2, 13), generator=torch.Generator().manual_seed(3))
    expected = numbers[:, 0]
    for k in range(1, 13):
        expected = expected ^ numbers[:, k]
    assert torch.equal(reduce_last("xor_sum", numbers)[0], expected)


def test_welford_and_online_softmax() -> None:
    mean, m2 = reduce_last("welford", X)
    torch.testing.assert_close(mean, X.mean(-1))
    torch.testing.assert_close(m2 / 16, X.var(-1))
    masked_mean, masked_m2 = reduce_last("welford", X, MASK)
    for row in range(3):
        chosen = X[row][MASK[row]]
        torch.testing.assert_close(masked_mean[row], chosen.mean())
        torch.testing.assert_close(masked_m2[row], chosen.var(correction=0) * chosen.numel())
    top, total = reduce_last("online_softmax", X)
    torch.testing.assert_close(torch.exp(X - top[:, None]) / total[:, None], torch.softmax(X, -1))
    top, total = reduce_last("online_softmax", X, MASK)
    expected = torch.logsumexp(torch.where(MASK, X, -INF), -1)
    torch.testing.assert_close(top + total.log(), expected)


def test_reductions_of_nothing_are_neutral_or_refused() -> None:
    nothing = torch.zeros(2, 0)
    assert reduce_last("sum", nothing)[0].tolist() == [0, 0]
    assert reduce_last("prod", nothing)[0].tolist() == [1, 1]
    assert reduce_last("all", nothing > 0)[0].tolist() == [True, True]
    assert reduce_last("xor_sum", nothing.to(torch.int64))[0].tolist() == [0, 0]
    assert reduce_last("online_softmax", nothing)[0].tolist() == [-INF, -INF]
    with pytest.raises(InterpretError, match="empty-reduction"):
        reduce_last("max", nothing)
    assert reduce_last("argmax", torch.zeros(0, 0))[0].dtype is torch.int64


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_are_torchs_in_both_directions(reverse: bool) -> None:
    line = torch.tensor([[3.0, 1.0, 1.0, 4.0, 4.0, 2.0]], dtype=torch.float64)

    def turned(value: torch.Tensor) -> torch.Tensor:
        return value.flip(-1) if reverse else value

    plain: dict[ScanKind, Callable[[Tensor, int], Tensor]] = {
        "sum": torch.cumsum,
        "prod": torch.cumprod,
        "logcumsumexp": torch.logcumsumexp,
    }
    for kind, function in plain.items():
        (result,) = scan_last(kind, line, reverse=reverse)
        torch.testing.assert_close(result, turned(function(turned(line), -1)))
    extremes: tuple[tuple[ScanKind, ScanKind, Tensor], ...] = (
        ("min", "argmin", torch.cummin(turned(line), -1)[0]),
        ("max", "argmax", torch.cummax(turned(line), -1)[0]),
    )
    for kind, positions, expected in extremes:
        values, where = scan_last(kind, line, reverse=reverse)
        assert torch.equal(values, turned(expected))
        assert torch.equal(line.gather(-1, where), values)
        assert torch.equal(scan_last(positions, line, reverse=reverse)[0], where)
