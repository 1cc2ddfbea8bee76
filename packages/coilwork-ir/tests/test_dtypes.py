"""Element types: names, sizes, classes."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import FORMATS, DType, parse_dtype, parse_torch_dtype


@pytest.mark.parametrize("dtype", list(DType))
def test_names_lead_back(dtype: DType) -> None:
    assert parse_dtype(dtype.text) is dtype
    assert parse_torch_dtype(dtype.torch_name) is dtype
    assert parse_torch_dtype("torch." + dtype.torch_name) is dtype
    assert repr(dtype) == f"DType.{dtype.name}"


def test_sizes_and_classes_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    for dtype in DType:
        of_torch = getattr(torch, dtype.torch_name)
        assert of_torch.itemsize == dtype.itemsize
        assert of_torch.is_floating_point == (dtype.is_float or dtype.category == "other")
        assert of_torch.is_complex == dtype.is_complex
        assert ("quint" in dtype.torch_name or "qint" in dtype.torch_name) == dtype.is_quantized
        assert dtype.is_opaque or dtype.is_float or dtype.is_integer or dtype.is_bool
        if dtype.is_integer:
            assert of_torch.is_signed == dtype.is_signed_integer


def test_compute_types() -> None:
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
