"""Argument specifications."""

from __future__ import annotations

import pytest

from coilwork_runtime.dtypes import dtype_name, torch_dtype
from coilwork_runtime.specs import Argument, parse_argument
from coilwork_runtime.triton_kernels.requests import TYPES


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("*in:f32", Argument(role="in", dtype="f32")),
        ("*inout:bf16:16", Argument(role="inout", dtype="bf16", aligned=True)),
        ("size:i64", Argument(role="size", dtype="i64")),
        ("size:i32:16", Argument(role="size", dtype="i32", aligned=True)),
        ("*scratch:f32=4*n0", Argument(role="scratch", dtype="f32", elements="4*n0")),
    ],
)
def test_reads(text: str, argument: Argument) -> None:
    assert parse_argument(text) == argument


@pytest.mark.parametrize("text", ["", "in:f32", "*size:i64", "*in", "*in:f32:8", "*else:f32"])
def test_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="malformed"):
        parse_argument(text)


def test_element_types_have_names() -> None:
    for name in TYPES:
        assert dtype_name(torch_dtype(name)) == name
