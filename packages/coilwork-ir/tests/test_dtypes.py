"""Element types, and numbers rounded to them."""

from __future__ import annotations

import math

import pytest
import torch

from coilwork_ir.dtypes import (
    FORMATS,
    DType,
    get_float_bits,
    parse_dtype,
    parse_torch_dtype,
    read_float_bits,
    round_to_dtype,
)
from coilwork_ir.interpretation.ops import apply_op, literal, torch_dtype
from coilwork_ir.kernels.rewrite import decode, encode
from coilwork_ir.scalar import Const, Op, Scalar, iterate_postorder, parameter


@pytest.mark.parametrize("dtype", list(DType))
def test_names_lead_back(dtype: DType) -> None:
    assert parse_dtype(dtype.text) is dtype
    assert parse_torch_dtype(dtype.torch_name) is dtype
    assert parse_torch_dtype("torch." + dtype.torch_name) is dtype
    assert repr(dtype) == f"DType.{dtype.name}"


def test_sizes_and_classes_agree_with_torch() -> None:
    torch = pytest.importorskip("torch", reason="the package itself does without")
    for dtype in DType:
        of_torch = getattr(torch, dtype.torch_name)
        assert of_torch.itemsize == dtype.itemsize
        assert of_torch.is_floating_point == (dtype.is_float or dtype.category == "other")
        assert of_torch.is_complex == dtype.is_complex
        assert ("quint" in dtype.torch_name or "qint" in dtype.torch_name) == dtype.is_quantized
        assert dtype.is_opaque or dtype.is_float or dtype.is_integer or dtype.is_bool
        if dtype.is_integer:
            assert of_torch.is_signed == dtype.is_signed_integer


def test_low_precision_types_are_computed_in_f32() -> None:
    low = {d for d in DType if d.is_low_precision}
    assert low == {DType.F16, DType.BF16, *FORMATS}
    assert all(d.compute is DType.F32 for d in low)
    assert all(d.compute is d for d in DType if d not in low)
    assert DType.BOOL.is_bool and not DType.BOOL.is_integer


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown element type 'f33'; known: f64, f32"):
        parse_dtype("f33")
    with pytest.raises(ValueError, match="uint4"):
        parse_torch_dtype("torch.uint4")


WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SMALL = list(FORMATS)
NARROW = [*SMALL, DType.F16, DType.BF16]


def near(dtype: DType) -> torch.Tensor:
    """Numbers of the type, what lies between two, beside that, and far off, as f32."""
    info = torch.finfo(torch_dtype(dtype))
    if dtype in FORMATS:
        x = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch_dtype(dtype)).float()
    else:
        x = torch.arange(-(2**15), 2**15, 37).to(torch.int16).view(torch_dtype(dtype)).float()
    x = x[x.isfinite()].sort().values
    middle = ((x[1:].double() + x[:-1].double()) / 2).float()
    beside = [torch.nextafter(middle, torch.full_like(middle, end)) for end in (math.inf, -math.inf)]
    more = torch.tensor(
        [info.max, info.max * 1.03, info.max * 1.1, 1e9, 3.4e38, 1e-40, 2.0**-149, math.inf, 0.0]
    )
    return torch.cat([x, middle, *beside, x * 1.7, more, -more, torch.tensor([math.nan])])


def of_torch(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    if dtype is DType.F8E4M3:
        # torch before 2.13 gives NaN for what is too large
        x = x.clamp(-448.0, 448.0)
    return x.to(torch_dtype(dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=lambda d: d.text)
def test_bits_are_torchs(dtype: DType) -> None:
    x = near(dtype)
    wanted = of_torch(x, dtype)
    size = (1 << 8 * dtype.itemsize) - 1
    bits = [value & size for value in wanted.view(WORDS[dtype.itemsize]).tolist()]
    numbers = wanted.float().tolist()
    for value, right, number in zip(x.tolist(), bits, numbers, strict=True):
        if math.isnan(number):
            assert math.isnan(round_to_dtype(value, dtype))
            continue
        assert get_float_bits(value, dtype) == right, value
        assert round_to_dtype(value, dtype) == number
        assert math.copysign(1.0, round_to_dtype(value, dtype)) == math.copysign(1.0, number)


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.text)
def test_bits_are_what_torch_reads(dtype: DType) -> None:
    wanted = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch_dtype(dtype)).float().tolist()
    for bits, number in enumerate(wanted):
        found = read_float_bits(bits, dtype)
        assert found == number or (math.isnan(found) and math.isnan(number))
        assert math.copysign(1.0, found) == math.copysign(1.0, number) or math.isnan(number)


@pytest.mark.parametrize("value", [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, 0.1, 5e-324, 1e300])
@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.F16, DType.BF16], ids=lambda d: d.text)
def test_the_bits_of_a_float_survive_reading(value: float, dtype: DType) -> None:
    bits = get_float_bits(value, dtype)
    assert get_float_bits(read_float_bits(bits, dtype), dtype) == bits
    assert bits >> (8 * dtype.itemsize - 1) == (math.copysign(1.0, value) < 0)


def evaluated(root: Scalar, source: Scalar, value: torch.Tensor) -> torch.Tensor:
    done = {source: value}
    for node in iterate_postorder((root,)):
        if isinstance(node, Const):
            done[node] = literal(node.value, node.dtype)
        elif node not in done:
            assert isinstance(node, Op)
            done[node] = apply_op(node.op, [done[o] for o in node.operands], node.dtype)
    return done[root]


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.text)
def test_arithmetic_on_bits_converts_as_torch(dtype: DType) -> None:
    source, stored = parameter(0, DType.F32), parameter(0, DType.U8)
    x = near(dtype)
    assert torch.equal(evaluated(encode(source, dtype), source, x), of_torch(x, dtype).view(torch.uint8))
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    found, wanted = evaluated(decode(stored, dtype), stored, codes), codes.view(torch_dtype(dtype)).float()
    alike = found.view(torch.int32) == wanted.view(torch.int32)
    assert bool((alike | (found.isnan() & wanted.isnan())).all())
