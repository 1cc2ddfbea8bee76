"""Sorts of rows in registers: against the interpreter of the IR, and as machine code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_bench import TritonProcess, along, arg, compile_source, moved, run_source
from triton_sample_kernels import sorted_rows

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.scalar import Scalar, const, index_value, load, op, reduce, sort, where
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64
NAN, INF = float("nan"), float("inf")


def drawn(count: int, dtype: DType) -> torch.Tensor:
    """Numbers with ties, zeros of both signs, infinities and NaN among floats."""
    x = (torch.randn(count, generator=torch.Generator().manual_seed(count)) * 3).round()
    if dtype.is_float:
        x = torch.where(x == 3, torch.full_like(x, NAN), torch.where(x == -4, torch.full_like(x, -INF), x))
        x[::7] *= -1
    return x.to(torch_dtype(dtype))


def agrees(
    engine: TritonProcess, kernel: Kernel, operand: torch.Tensor | None = None, *, rows: int = 0
) -> None:
    """Every candidate gives what the interpreter of the IR gives, for `operand` or else for random numbers.

    With `rows` programs have so many rows.
    """
    source = TritonCodegen().emit(kernel, get_target("sm_90"), {})
    if rows:
        source = replace(source, configs=tuple(moved(c, "XBLOCK", rows) for c in source.configs))
    tensors = {
        a.name: (drawn(int(repr(a.span)), a.dtype) if operand is None else operand.flatten())
        if a.role == "in"
        else torch.zeros(int(repr(a.span)), dtype=torch_dtype(a.dtype))
        for a in kernel.args
    }
    wanted = {name: tensor.clone() for name, tensor in tensors.items()}
    interpret_kernel(kernel, wanted, {})
    for number in range(len(source.configs)):
        found = run_source(engine, source, [tensors[a.name].clone() for a in kernel.args], config=number)
        for a, mine in zip(kernel.args, found, strict=True):
            torch.testing.assert_close(mine, wanted[a.name], rtol=0, atol=0, equal_nan=True)
            if a.dtype.is_float:
                zero = mine == 0
                assert torch.equal(mine.signbit() & zero, wanted[a.name].signbit() & zero)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16, DType.I16, DType.I32, DType.U8, DType.BOOL])
def test_rows_of_every_type_are_sorted(engine: TritonProcess, dtype: DType, descending: bool) -> None:
    agrees(engine, sorted_rows(7, 60, dtype, descending=descending))


@pytest.mark.parametrize("length", [1, 2, 3, 33, 256])
def test_rows_of_every_length_are_sorted(engine: TritonProcess, length: int) -> None:
    agrees(engine, sorted_rows(3, length, BF16))


@pytest.mark.parametrize(
    "rows, length, first",
    [(3, 300, 8), (3, 300, 11), (5, 256, 64), (20, 33, 1), (20, 33, 2), (2, 40, 30), (1, 512, 5)],
)
def test_the_first_elements_are_those_of_sorted_rows(
    engine: TritonProcess, rows: int, length: int, first: int
) -> None:
    agrees(engine, sorted_rows(rows, length, BF16, first=first, descending=True))
    agrees(engine, sorted_rows(rows, length, F32, first=first))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F32, BF16, DType.I32])
@pytest.mark.parametrize(
    "rows, length, first", [(16, 1024, 0), (40, 2000, 0), (20, 4096, 64), (300, 4000, 30)]
)
def test_rows_that_warps_share(
    engine: TritonProcess, rows: int, length: int, first: int, dtype: DType
) -> None:
    """Which warp has what the interpreter does not know."""
    if engine.interprets:
        pytest.skip("one warp is as good as four")
    agrees(engine, sorted_rows(rows, length, dtype, first=first))


def rows_in_order(order: str, length: int, room: int, mine: torch.Tensor) -> torch.Tensor:
    """Two rows of numbers: one in random order, and one whose order is a bad one for elements that reach a
    bound.
    """
    rows = torch.stack([torch.randperm(length, generator=torch.Generator().manual_seed(k)) for k in range(2)])
    rows = rows.double()
    match order:
        case "rising" | "falling":
            rows[1] = torch.arange(length) if order == "rising" else torch.arange(length).flip(0)
        case "equal":
            rows[1] = 5
        case "few threads":
            # all first elements are those of few threads, more than there is room for
            assert mine.sum() > room
            rows[1] = torch.where(mine, rows[1] % 7, 100 + rows[1])
        case "not numbers":
            rows[1] = torch.where(rows[1] % 100 == 0, rows[1], torch.full_like(rows[1], NAN))
        case "some not numbers":
            rows[1] = torch.where(rows[1] % 100 == 0, torch.full_like(rows[1], NAN), rows[1])
        case "infinite":
            rows[1] = torch.where(
                rows[1] % 100 == 0, rows[1], torch.copysign(rows[1] + INF, rows[1] % 2 - 0.5)
            )
        case "zeros":
            rows[1] = torch.copysign(torch.zeros(length), rows[1] % 3 - 1)
        case "far apart":
            # and some equal ones, whose order must stay
            rows[1] = ((rows[1] // 2) - length / 4) * 2.0 ** (30 - length.bit_length())
            rows[1][:5] = torch.tensor([-(2.0**31), 2.0**31 - 256, 0, 0, -(2.0**31)])
    return rows


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F32, DType.I32])
@pytest.mark.parametrize(
    "order",
    ["random", "rising", "falling", "equal", "few threads", "not numbers", "some not numbers", "infinite",
    "zeros",
     "far apart"],
)  # fmt: skip
def test_first_elements_that_reach_a_bound(
    engine: TritonProcess, order: str, dtype: DType, descending: bool
) -> None:
    """Also where more elements reach it than there is room for, or fewer than are wanted."""
    if not dtype.is_float and order in ("not numbers", "some not numbers", "infinite", "zeros"):
        return
    length = 1000
    kernel = sorted_rows(2, length, dtype, first=24, descending=descending)
    meta = dict(TritonCodegen().emit(kernel, get_target("sm_90"), {}).configs[0].meta)
    assert meta["SORT_ROOM"] > 0
    mine = (torch.arange(length) // meta["SORT_WIDTH"]) % meta["SORT_THREADS"] < 8
    rows = rows_in_order(order, length, meta["SORT_ROOM"], mine)
    agrees(engine, kernel, rows.to(torch_dtype(dtype)))


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_few_of_several_rows_in_a_program(engine: TritonProcess, dtype: DType) -> None:
    # the last program has rows that are none; one row has more equal elements than there is room for
    rows = torch.randn(5, 1024, generator=torch.Generator().manual_seed(3))
    rows[1] = rows[1].round()
    for together in (2, 4):
        agrees(
            engine,
            sorted_rows(5, 1024, dtype, first=32),
            rows.flatten().to(torch_dtype(dtype)),
            rows=together,
        )


@pytest.mark.parametrize("dtype", [DType.F16, DType.I16, DType.I8, DType.U8, DType.BOOL])
@pytest.mark.parametrize("first", [1, 3, 13, 32])
def test_few_of_a_long_row(engine: TritonProcess, dtype: DType, first: int) -> None:
    for descending in (False, True):
        kernel = sorted_rows(3, 1024, dtype, first=first, descending=descending)
        meta = dict(TritonCodegen().emit(kernel, get_target("sm_90"), {}).configs[0].meta)
        assert meta["SORT_ROOM"] > 0
        agrees(engine, kernel)


def test_columns_are_sorted_as_rows_are(engine: TritonProcess) -> None:
    x0, r0 = along("x0", 50), along("r0", 12, "reduction")
    value = load("in0", [r0.symbol * 50 + x0.symbol], F32)
    kernel = Kernel(
        name="columns",
        ranges=(x0, r0),
        args=(arg("in0", F32, 600), arg("out0", F32, 600)),
        stores=(Store(buffer="out0", index=r0.symbol * 50 + x0.symbol, value=sort(value, r0.symbol)),),
    )
    agrees(engine, kernel)


def test_a_line_of_numbers(engine: TritonProcess) -> None:
    r0 = along("r0", 100, "reduction")
    kernel = Kernel(
        name="line",
        ranges=(r0,),
        args=(arg("in0", BF16, 100), arg("out0", BF16, 100)),
        stores=(
            Store(buffer="out0", index=r0.symbol, value=sort(load("in0", [r0.symbol], BF16), r0.symbol)),
        ),
    )
    agrees(engine, kernel)


def test_what_makes_a_row_and_what_follows_it(engine: TritonProcess) -> None:
    x0, r0 = along("x0", 4), along("r0", 40, "reduction")
    flat = x0.symbol * 40 + r0.symbol
    element = op("neg", load("in0", [flat], F32))
    top = reduce("max", [element], [r0.symbol])
    shifted = op("sub", element, top)
    ordered, places = sort(shifted, r0.symbol), sort(shifted, r0.symbol, output=1)
    tenth = op("eq", index_value(r0.symbol), const(10, I64))
    picked = reduce("max", [where(tenth, places, const(0, I64))], [r0.symbol])
    kernel = Kernel(
        name="around",
        ranges=(x0, r0),
        args=(arg("in0", F32, 160), arg("out0", F32, 160), arg("out1", I64, 160), arg("out2", I64, 4)),
        stores=(
            Store(buffer="out0", index=flat, value=op("mul", ordered, const(2.0, F32))),
            Store(buffer="out1", index=flat, value=places),
            Store(buffer="out2", index=x0.symbol, value=picked),
        ),
    )
    agrees(engine, kernel)


def test_one_value_for_all_of_a_row(engine: TritonProcess) -> None:
    x0, r0 = along("x0", 3), along("r0", 16, "reduction")
    same: Scalar = load("in0", [x0.symbol], F32)
    kernel = Kernel(
        name="same",
        ranges=(x0, r0),
        args=(arg("in0", F32, 3), arg("out0", I64, 48)),
        stores=(
            Store(buffer="out0", index=x0.symbol * 16 + r0.symbol, value=sort(same, r0.symbol, output=1)),
        ),
    )
    agrees(engine, kernel)


@pytest.mark.parametrize(
    "kernel, code", [(sorted_rows(4, 32, DType.F64), "sort-type"), (sorted_rows(4, 1 << 16, F32), "sort-row")]
)
def test_refusals_name_the_cause(kernel: Kernel, code: str) -> None:
    with pytest.raises(EmitError) as caught:
        TritonCodegen().emit(kernel, get_target("sm_90"), {})
    assert caught.value.code == code


@pytest.mark.slow
def test_most_exchanges_stay_within_a_thread(compiler: TritonProcess) -> None:
    source = TritonCodegen().emit(sorted_rows(32768, 1024, BF16), get_target("sm_90"), {})
    text = compile_source(compiler, source, "sm_90")
    # 32 elements per thread; of 55 rounds of exchanges 15 are between threads
    assert text.count("shfl.sync.bfly") == 15 * 32
    assert 55 * 32 <= text.count("min.s32") + text.count("max.s32") <= 70 * 32


@pytest.mark.slow
def test_fewer_elements_take_fewer_exchanges(compiler: TritonProcess) -> None:
    def exchanges(first: int) -> int:
        source = TritonCodegen().emit(sorted_rows(32768, 1024, BF16, first=first), get_target("sm_90"), {})
        text = compile_source(compiler, source, "sm_90")
        return text.count("min.s32") + text.count("max.s32")

    assert exchanges(8) < exchanges(64) < exchanges(1000) / 1.2
