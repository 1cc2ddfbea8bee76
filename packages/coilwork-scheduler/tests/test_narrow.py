"""Sums of integers that cannot leave 32 bits are made in 32."""

from __future__ import annotations

import pytest
import torch
from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.scalar import Reduce, Scan, postorder
from coilwork_ir.target import target

SCAN = """
graph @g {{
  input %x: {dtype}[4, {length}]
  (%y: i64[4, {length}]) = scan sum [i0: 4, i1: {length}] along i1{back} {{
    t0 = load %x[i0, i1] : {dtype}
    t1 = cast(t0) : i64
    yield t1
  }}
  return (%y)
}}"""
SUM = """
graph @g {{
  input %x: {dtype}[4, {length}]
  (%y: i64[4]) = reduce sum [i0: 4 | r0: {length}] {{
    t0 = load %x[i0, r0] : {dtype}
    t1 = cast(t0) : i64
    yield t1
  }}
  return (%y)
}}"""
TORCH = {"bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32}


def types(text: str, device: str, *, given: torch.Tensor | None = None) -> set[DType]:
    """The types of the sums that `text` takes on `device`; with `given`, after a comparison of what is
    computed.
    """
    graph = parse_graph(text)
    made = schedule(graph, target(device))
    verify_schedule(made)
    if given is not None:
        (wanted,), (found,) = interpret_graph(graph, (given,)), interpret_schedule(made, (given,))
        assert isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor)
        assert wanted.dtype is found.dtype is torch.int64 and torch.equal(wanted, found)
    values = [store.value for kernel in made.kernels for store in kernel.stores]
    return {node.dtype for node in postorder(values) if isinstance(node, Reduce | Scan)}


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("dtype", ["bool", "u8", "i8", "i16"])
def test_short_rows_of_small_numbers(dtype: str, device: str) -> None:
    least, most = (
        (0, 2) if dtype == "bool" else (torch.iinfo(TORCH[dtype]).min, torch.iinfo(TORCH[dtype]).max + 1)
    )
    x = torch.randint(least, most, (4, 100)).to(TORCH[dtype])
    for text in (SUM, SCAN):
        made = text.format(dtype=dtype, length=100, back="")
        assert types(made, device, given=x) == {DType.I32}
    assert types(SCAN.format(dtype=dtype, length=100, back=" reverse"), device, given=x) == {DType.I32}


def test_the_largest_sum_decides() -> None:
    # 65535 * 32768 is the last that fits, of -32768
    assert types(SCAN.format(dtype="i16", length=65535, back=""), "x86-64-avx512") == {DType.I32}
    assert types(SCAN.format(dtype="i16", length=65536, back=""), "x86-64-avx512") == {DType.I64}
    assert types(SCAN.format(dtype="i32", length=2, back=""), "x86-64-avx512") == {DType.I64}


def test_a_length_that_nobody_knows_has_no_largest_sum() -> None:
    text = SCAN.format(dtype="bool", length="n", back="").replace(
        "  input", "  symbol n in [1, inf]\n  input", 1
    )
    assert types(text, "sm_90") == {DType.I64}


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx512"])
def test_bytes_that_wrap_around_are_summed_as_they_are(device: str) -> None:
    text = """
graph @g {
  input %x: u8[4, 100]
  (%y: i64[4]) = reduce sum [i0: 4 | r0: 100] {
    t0 = load %x[i0, r0] : u8
    t1 = const 200 : u8
    t2 = sub(t0, t1)
    t3 = cast(t2) : i64
    yield t3
  }
  return (%y)
}"""
    x = torch.randint(0, 256, (4, 100)).to(torch.uint8)
    assert types(text, device, given=x) == {DType.I32}
