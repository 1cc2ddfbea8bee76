"""Rows and columns of one matrix in one kernel, in Triton's interpreter and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, compile_source, run_source
from source_checks import prefix_with
from triton_sample_kernels import layer_norm_backward

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.ops import SELF_COMBINING, ReduceKind
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, reduce
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32, I64 = DType.F32, DType.I64
N = symbol("n0", lo=1)


def run_all(
    process: TritonProcess,
    kernel: Kernel,
    tensors: list[torch.Tensor],
    sizes: tuple[int, ...] = (),
    **options: Any,
) -> list[list[torch.Tensor]]:
    """What the arguments hold after each candidate."""
    source = TritonCodegen().emit(kernel, get_target("sm_90"), options)
    return [
        run_source(process, source, [t.clone() for t in tensors], sizes, k)
        for k in range(len(source.configs))
    ]


def agree(
    process: TritonProcess,
    kernel: Kernel,
    tensors: list[torch.Tensor],
    sizes: tuple[int, ...] = (),
    **options: Any,
) -> None:
    """Fail unless every candidate does what the kernel means; all outputs start as nan."""
    verify_kernel(kernel)
    expected = {a.name: t.clone() for a, t in zip(kernel.args, tensors, strict=True)}
    interpret_kernel(kernel, expected, sizes)
    for found in run_all(process, kernel, tensors, sizes, **options):
        for (name, wanted), got in zip(expected.items(), found, strict=True):
            torch.testing.assert_close(
                got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True, msg=prefix_with(name)
            )


def norm_tensors(rows: int, width: int, groups: int, columns: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 1000 + width)
    x = torch.randn(rows, width, generator=generator) * 2 + 1
    flow, weight = torch.randn(rows, width, generator=generator), torch.randn(width, generator=generator)
    mean, deviation = x.mean(-1), (x.var(-1, correction=0) + 1e-5).rsqrt()
    nothing = [torch.full((groups * width,), float("nan")) for _ in range(columns)]
    return [
        flow.flatten(),
        weight,
        x.flatten(),
        mean,
        deviation,
        *nothing,
        torch.full((rows * width,), float("nan")),
    ]


@pytest.mark.parametrize(
    "rows, width, groups", [(12, 64, 3), (13, 33, 4), (10, 1024, 5), (7, 1, 3), (3, 100, 5), (9, 4096, 2)]
)
def test_layer_norm_backward(engine: TritonProcess, rows: int, width: int, groups: int) -> None:
    agree(engine, layer_norm_backward(rows, width, groups, F32), norm_tensors(rows, width, groups))


def test_columns_of_what_needs_the_row(engine: TritonProcess) -> None:
    kernel = layer_norm_backward(11, 40, 3, F32, kept=False)
    agree(engine, kernel, norm_tensors(11, 40, 3, columns=3))


@pytest.mark.parametrize("choice", ["auto", "i32", "i64"])
@pytest.mark.parametrize("rows", [1, 6, 23])
def test_any_number_of_rows(engine: TritonProcess, rows: int, choice: str) -> None:
    agree(
        engine,
        layer_norm_backward(N, 48, 4, F32),
        norm_tensors(rows, 48, 4),
        sizes=(rows,),
        index_dtype=choice,
    )


def test_the_gradient_of_a_layer_norm(engine: TritonProcess) -> None:
    rows, width, groups = 30, 96, 4
    tensors = norm_tensors(rows, width, groups)
    flow, weight, x = (t.double() for t in tensors[:3])
    x = x.reshape(rows, width).requires_grad_()
    weight.requires_grad_()
    bias = torch.zeros(width, dtype=torch.float64, requires_grad=True)
    result = torch.nn.functional.layer_norm(x, (width,), weight, bias)
    grads = torch.autograd.grad(result, (weight, bias, x), flow.reshape(rows, width))
    found = run_all(engine, layer_norm_backward(rows, width, groups, F32), tensors)[0]
    for got, wanted, shape in zip(found[-3:], grads, ((groups, width),) * 2 + ((rows, width),), strict=True):
        whole = got.reshape(shape)
        whole = whole if shape[0] == rows else whole.sum(0)
        torch.testing.assert_close(whole.double(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("width", [5, 300])
@pytest.mark.parametrize("kind", sorted(SELF_COMBINING))
def test_every_kind_along_the_walk(engine: TritonProcess, kind: ReduceKind, width: int) -> None:
    x0, w0, r0 = along("x0", 3), along("w0", 7, "sequential"), along("r0", width, "reduction")
    value: Scalar = load("in0", [(x0.symbol * 7 + w0.symbol) * width + r0.symbol], F32)
    row = reduce("max", [value], [r0.symbol])
    columns: Scalar = op("sub", value, row)
    dtype = F32
    if kind in ("any", "all"):
        columns, dtype = op("lt", columns, const(-1.0, F32)), DType.BOOL
    elif kind == "xor_sum":
        columns, dtype = cast(op("mul", columns, const(100.0, F32)), DType.I32), DType.I32
    kernel = Kernel(
        name="tested",
        ranges=(x0, w0, r0),
        args=(arg("in0", F32, 21 * width), arg("out0", dtype, 3 * width), arg("out1", F32, 21)),
        stores=(
            Store(
                buffer="out0",
                index=x0.symbol * width + r0.symbol,
                value=reduce(kind, [columns], [w0.symbol]),
            ),
            Store(buffer="out1", index=x0.symbol * 7 + w0.symbol, value=row),
        ),
    )
    x = torch.randn(21 * width, generator=torch.Generator().manual_seed(4))
    torch_dtype = {F32: torch.float32, DType.BOOL: torch.bool, DType.I32: torch.int32}[dtype]
    out = torch.zeros(3 * width, dtype=torch_dtype)
    agree(engine, kernel, [x, out, torch.zeros(21)])


def test_sums_of_rows_of_sequential_points_and_of_constants(engine: TritonProcess) -> None:
    x0, x1 = along("x0", 2), along("x1", 3)
    w0, w1, r0 = along("w0", 3, "sequential"), along("w1", 2, "sequential"), along("r0", 20, "reduction")
    row = ((x0.symbol * 3 + x1.symbol) * 3 + w0.symbol) * 2 + w1.symbol
    value = load("in0", [row * 20 + r0.symbol], F32)
    walk = [w0.symbol, w1.symbol]
    part = x0.symbol * 3 + x1.symbol
    points = cast(index_value(w0.symbol * 10 + w1.symbol), F32)
    kernel = Kernel(
        name="tested",
        ranges=(x0, x1, w0, w1, r0),
        args=(
            arg("in0", F32, 720), arg("in1", F32, 20), arg("out0", F32, 6), arg("out1", F32, 6), arg("out2",
            F32, 6),
            arg("out3", F32, 120), arg("out4", F32, 120), arg("out5", F32, 20),
        ),
        stores=(
            Store(buffer="out0", index=part, value=reduce("sum", [reduce("sum", [value], [r0.symbol])],
            walk)),
            Store(buffer="out1", index=part, value=reduce("sum", [points], walk)),
            Store(buffer="out2", index=part, value=reduce("sum", [const(1.0, F32)], walk)),
            Store(
                buffer="out3",
                index=part * 20 + r0.symbol,
                value=reduce("sum", [op("mul", value, points)], walk),
            ),
            Store(
                buffer="out4",
                index=part * 20 + r0.symbol,
                value=reduce("sum", [load("in1", [r0.symbol], F32)], walk),
            ),
            # the same at every point of the walk: stored once
            Store(buffer="out5", index=r0.symbol, value=load("in1", [r0.symbol], F32)),
        ),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    outs = [torch.full((n,), float("nan")) for n in (6, 6, 6, 120, 120, 20)]
    agree(
        engine, kernel, [torch.randn(720, generator=generator), torch.randn(20, generator=generator), *outs]
    )


def test_a_row_is_read_before_it_is_overwritten(engine: TritonProcess) -> None:
    rows, width, groups = 14, 64, 3
    kernel = layer_norm_backward(rows, width, groups, F32)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    tensors = norm_tensors(rows, width, groups)
    apart = run_source(engine, source, [t.clone() for t in tensors])
    for number in (0, 2):
        shared = [t.clone() for t in tensors]
        shared[-1] = shared[number]
        together = run_source(engine, source, shared)
        assert torch.equal(together[-1], apart[-1])
        assert torch.equal(together[5], apart[5]) and torch.equal(together[6], apart[6])


def test_rows_that_do_not_stay_in_registers_are_refused() -> None:
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit(layer_norm_backward(64, 100_000, 4), get_target("sm_90"), {})
    assert caught.value.code == "sequential-rows"


def test_kinds_that_do_not_combine_are_refused() -> None:
    x0, w0, r0 = along("x0", 3), along("w0", 7, "sequential"), along("r0", 8, "reduction")
    value = load("in0", [(x0.symbol * 7 + w0.symbol) * 8 + r0.symbol], F32)
    kernel = Kernel(
        name="tested",
        ranges=(x0, w0, r0),
        args=(arg("in0", F32, 168), arg("out0", I64, 24)),
        stores=(
            Store(
                buffer="out0", index=x0.symbol * 8 + r0.symbol, value=reduce("argmax", [value], [w0.symbol])
            ),
        ),
    )
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit(kernel, get_target("sm_90"), {})
    assert caught.value.code == "sequential-kind"


@pytest.mark.slow
def test_the_next_row_is_on_its_way(compiler: TritonProcess) -> None:
    source = TritonCodegen().emit(layer_norm_backward(16384, 4096, 256), get_target("sm_90"), {})
    assert dict(source.configs[0].meta)["STAGES"] == 3
    text = compile_source(compiler, source, "sm_90")
    assert "cp.async.cg.shared.global" in text
    # a store of 16 bytes, and nothing spilled to memory
    assert "st.global.v4" in text and ".local" not in text
