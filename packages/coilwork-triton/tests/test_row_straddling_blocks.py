"""Blocks that lie in two rows find out once what is one number per row."""

from __future__ import annotations

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, run_source
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, floordiv
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, placeholder
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64


def kernel_of(ranges: tuple[Range, ...], args: tuple[TensorArg, ...], value: Scalar, index: Expr) -> Kernel:
    return Kernel(
        name="tested", ranges=ranges, args=args, stores=(Store(buffer="out0", index=index, value=value),)
    )


def emitted(kernel: Kernel) -> KernelSource:
    return TritonCodegen().emit(kernel, get_target("sm_90"), {})


def results(process: TritonProcess, kernel: Kernel, *tensors: Tensor) -> list[Tensor]:
    """The last tensor after each candidate, and after one whose blocks are the longest that a
    search may try.
    """
    source = emitted(kernel)
    found = [
        run_source(process, source, [t.clone() for t in tensors], (), k)[-1]
        for k in range(len(source.configs))
    ]
    if "beyond" in source.text:
        assert all(dict(c.meta)["XBLOCK"] <= rows_of(kernel) for c in source.configs)
        assert all(max(v) <= rows_of(kernel) for name, v in source.space.values if name == "XBLOCK")
    return found


def rows_of(kernel: Kernel) -> int:
    extent = kernel.ranges[-1].symbol.extent
    assert extent is not None
    return int(extent.value)


def scaled(rows: int, length: int, dtype: DType = BF16) -> Kernel:
    """Each row times a number of its own, and its columns' numbers where these are the row's."""
    x, c = along("x0", rows), along("x1", length)
    at = x.symbol * length + c.symbol
    element = cast(load("in0", [at], dtype), F32)
    same = op("eq", index_value(c.symbol), load("in2", [x.symbol], I64))
    value = op("where", same, const(-1.0, F32), op("mul", element, load("in1", [x.symbol], F32)))
    args = (
        arg("in0", dtype, rows * length),
        arg("in1", F32, rows),
        arg("in2", I64, rows),
        arg("out0", dtype, rows * length),
    )
    return kernel_of((x, c), args, cast(value, dtype), at)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("rows", "length"), [(7, 1025), (3, 2049), (2, 513), (5, 4091), (9, 1000)])
def test_one_number_per_row(engine: TritonProcess, rows: int, length: int, dtype: DType) -> None:
    torch_type = {F32: torch.float32, BF16: torch.bfloat16}[dtype]
    generator = torch.Generator().manual_seed(length)
    data = torch.randn(rows, length, generator=generator).to(torch_type)
    factors = torch.randn(rows, generator=generator)
    columns = torch.randint(length, (rows,), generator=generator)
    columns[-1] = length - 1
    wanted = (data.float() * factors[:, None]).to(torch_type)
    wanted[torch.arange(rows), columns] = -1.0
    kernel = scaled(rows, length, dtype)
    assert "beyond" in emitted(kernel).text
    for got in results(engine, kernel, data, factors, columns, torch.zeros_like(data)):
        assert torch.equal(got.view_as(wanted), wanted)


def test_rows_of_two_ranges_and_a_number_that_several_share(engine: TritonProcess) -> None:
    """Rows are numbered by two ranges, whose numbers are looked up, added and computed with."""
    a, b, c = along("x0", 3), along("x1", 5), along("x2", 777)
    at = (a.symbol * 5 + b.symbol) * 777 + c.symbol
    first = load("in1", [b.symbol * 3 + a.symbol], F32)
    shared = load("in2", [floordiv(b.symbol, as_expr(2))], F32)
    number = cast(index_value(a.symbol * 10 + b.symbol), F32)
    value = op("add", op("mul", load("in0", [at], F32), first), op("add", shared, number))
    args: tuple[TensorArg, ...] = (
        arg("in0", F32, 11655),
        arg("in1", F32, 15),
        arg("in2", F32, 3),
        arg("out0", F32, 11655),
    )
    kernel = kernel_of((a, b, c), args, value, at)
    text = emitted(kernel).text
    assert "beyond" in text
    assert "xindex // 777" not in text
    assert "xindex %" not in text
    data, per_row, pairs = torch.randn(3, 5, 777), torch.randn(5, 3), torch.randn(3)
    numbers = torch.arange(3.0)[:, None] * 10 + torch.arange(5.0)
    wanted = data * per_row.t()[:, :, None] + (pairs[torch.arange(5) // 2] + numbers)[:, :, None]
    for got in results(engine, kernel, data, per_row, pairs, torch.zeros_like(data)):
        torch.testing.assert_close(got.view_as(wanted), wanted)


def test_rows_that_are_looked_up(engine: TritonProcess) -> None:
    x, c = along("x0", 6), along("x1", 1003)
    at = x.symbol * 1003 + c.symbol
    row = load("in0", [x.symbol], I64)
    value = load("in1", [placeholder(0) * 1003 + c.symbol], F32, indirect=[row])
    args = (arg("in0", I64, 6), arg("in1", F32, 4012), arg("out0", F32, 6018))
    rows, table = torch.tensor([3, 0, 2, 2, 1, 3]), torch.randn(4, 1003)
    for got in results(engine, kernel_of((x, c), args, value, at), rows, table, torch.zeros(6, 1003)):
        assert torch.equal(got.view(6, 1003), table[rows])


def test_rows_apart_in_one_tensor_and_under_masks(engine: TritonProcess) -> None:
    """Of rows that do not follow each other vectors are lost anyway, where their length is odd; what has a
    mask stays point by point.
    """
    x, c = along("x0", 4), along("x1", 1025)
    at = x.symbol * 1025 + c.symbol
    odd = op("eq", op("bitwise_and", index_value(x.symbol), const(1, I64)), const(1, I64))
    masked = load("in1", [x.symbol], F32, mask=odd, other=5.0)
    value = op("add", load("in0", [x.symbol * 1500 + c.symbol], F32), masked)
    args: tuple[TensorArg, ...] = (arg("in0", F32, 6000), arg("in1", F32, 4), arg("out0", F32, 4100))
    data, numbers = torch.randn(4, 1500), torch.randn(4)
    wanted = data[:, :1025] + torch.tensor([5.0, numbers[1], 5.0, numbers[3]])[:, None]
    for got in results(engine, kernel_of((x, c), args, value, at), data, numbers, torch.zeros(4, 1025)):
        torch.testing.assert_close(got.view(4, 1025), wanted)


def test_what_stays_as_it_was() -> None:
    """Short rows, whose blocks would be too small; lines that nothing asks for rows; columns in vectors."""
    assert "beyond" not in emitted(scaled(100, 311)).text
    x, c = along("x0", 8), along("x1", 1025)
    at = x.symbol * 1025 + c.symbol
    args: tuple[TensorArg, ...] = (arg("in0", F32, 8200), arg("out0", F32, 8200))
    assert "beyond" not in emitted(kernel_of((x, c), args, load("in0", [at], F32), at)).text
    x, c = along("x0", 8), along("x1", 1000)
    at = x.symbol * 1000 + c.symbol
    args = (arg("in0", F32, 1000), arg("in1", F32, 8), arg("out0", F32, 8000))
    value = op("add", load("in0", [c.symbol], F32), load("in1", [x.symbol], F32))
    assert "beyond" not in emitted(kernel_of((x, c), args, value, at)).text
