"""Rows in order, their first elements, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel, Threads, TorchDType, named_arg

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Load, Scalar, cast, const, index_value, load, op, reduce, scan, sort
from coilwork_ir.target import get_target

DTYPES = (
    DType.F64, DType.F32, DType.F16, DType.BF16,
    DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.BOOL,
)  # fmt: skip
LENGTHS = (1, 2, 33, 128, 129, 300, 5000)
Values = Callable[[Load, Expr], list[Scalar]]


def sorting_kernel(
    values: Values,
    dtype: DType,
    rows: int,
    length: int | Expr,
    *,
    first: int | None = None,
    columns: bool = False,
) -> Kernel:
    """What `values` makes of `in0[rows, length]`, along dimension 1, or of `in0[length, rows]`, along
    dimension 0.
    """
    sizes = (length,) if isinstance(length, Expr) else ()
    x, r = symbol("x0", extent=rows), symbol("r0", extent=length)
    points = as_expr(rows) * length
    at = r * rows + x if columns else x * length + r
    kept = as_expr(rows * first) if first is not None else points
    place = at if columns or first is None else x * first + r
    mask = None if first is None else op("lt", index_value(r), index_value(as_expr(first)))
    results = values(load("in0", [at], dtype), r)
    return Kernel(
        name="sorts",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=dtype, role="in", span=points),
            *(TensorArg(name=f"out{k}", dtype=v.dtype, role="out", span=kept) for k, v in enumerate(results)),
        ),
        sizes=sizes,
        stores=tuple(Store(buffer=f"out{k}", index=place, value=v, mask=mask) for k, v in enumerate(results)),
    )


def both(*, descending: bool) -> Values:
    return lambda v, r: [sort(v, r, output=k, descending=descending) for k in (0, 1)]


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers with ties, and everything special that the type has."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = (torch.randn(shape, generator=generator, dtype=torch.float64) * 40).round()
    flat = x.view(-1)
    if dtype.is_floating_point:
        special = torch.tensor([-0.0, 0.0, math.nan, math.inf, -math.inf, -math.nan, -0.0, 1e-7, -1e-7])
        places = torch.randint(0, flat.numel(), (flat.numel() // 2,), generator=generator)
        flat[places] = special[torch.randint(0, 9, places.shape, generator=generator)].double()
        return x.to(dtype)
    if dtype is torch.bool:
        return x > 0
    info = torch.iinfo(dtype)
    x = x.to(torch.int64).clamp(info.min, info.max).to(dtype)
    x.view(-1)[::7], x.view(-1)[3::11] = info.min, info.max
    return x


def same(mine: torch.Tensor, its: torch.Tensor) -> None:
    torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)
    if its.dtype.is_floating_point:
        assert torch.equal(mine.signbit() & (mine == 0), its.signbit() & (its == 0))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_every_type_and_length(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType, descending: bool
) -> None:
    kind = torch_dtype(dtype)
    for length in LENGTHS:
        x = drawn((5, length), kind)
        found = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        load_kernel(sorting_kernel(both(descending=descending), dtype, 5, length))(x, *found)
        values, places = torch.sort(x, dim=1, stable=True, descending=descending)
        same(found[0], values)
        assert torch.equal(found[1], places)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_one_number(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType, descending: bool
) -> None:
    """A literal has C++'s type for it, an integer with a sign, whatever the type of the elements."""
    one = (
        const(1, dtype.compute)
        if dtype.is_integer or dtype.is_bool
        else cast(const(1.5, dtype.compute), dtype)
    )
    kernel = sorting_kernel(
        lambda v, r: [v, *(sort(one, r, output=k, descending=descending) for k in (0, 1))], dtype, 3, 5
    )
    found = [torch.empty(3, 5, dtype=torch_dtype(d)) for d in (dtype, dtype, DType.I64)]
    load_kernel(kernel)(torch.zeros(3, 5, dtype=torch_dtype(dtype)), *found)
    assert torch.equal(found[1], torch.full_like(found[1], 1.0 if dtype.is_integer or dtype.is_bool else 1.5))
    assert torch.equal(found[2], torch.arange(5).expand(3, 5))


def test_wide_keys_that_differ_anywhere(load_kernel: LoadKernel) -> None:
    """In all bytes, in the lower ones, in the lowest and the highest, in none; with many equal upper halves,
    in reverse.
    """
    generator = torch.Generator().manual_seed(0)
    length = 1500
    wide = torch.randint(-(1 << 62), 1 << 62, (length,), generator=generator)
    low = torch.randint(0, 1 << 30, (length,), generator=generator)
    rows = [
        wide,
        low,
        low % 200,
        (low % 200) + ((low % 3) << 60),
        wide * 0 + 7,
        (wide >> 40 << 40) + torch.arange(length, 0, -1),
        torch.arange(length, 0, -1) + ((low % 5) << 50),
        torch.arange(length) << 20,
    ]
    x = torch.stack(rows)
    for descending in (False, True):
        found = torch.empty_like(x), torch.empty_like(x)
        kernel = sorting_kernel(both(descending=descending), DType.I64, len(rows), length)
        load_kernel(kernel)(x, *found)
        values, places = torch.sort(x, dim=1, stable=True, descending=descending)
        assert torch.equal(found[0], values) and torch.equal(found[1], places)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.BF16])
def test_rows_of_unknown_length(load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType) -> None:
    run = load_kernel(sorting_kernel(both(descending=False), dtype, 3, symbol("n0", lo=0)))
    for length in LENGTHS:
        x = drawn((3, length), torch_dtype(dtype))
        found = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        run(x, *found, length)
        values, places = torch.sort(x, dim=1, stable=True)
        same(found[0], values)
        assert torch.equal(found[1], places)


@pytest.mark.parametrize("dtype", [DType.F64, DType.F32, DType.BF16, DType.I64, DType.U8])
@pytest.mark.parametrize("descending", [False, True])
def test_first_elements_of_rows_are_those_of_a_sort(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType, descending: bool
) -> None:
    for length, first in ((9, 4), (64, 1), (130, 64), (1000, 3), (1000, 300), (9001, 40)):
        x = drawn((4, length), torch_dtype(dtype))
        x[1] = x[1].sort().values
        x[2] = x[2].sort(descending=True).values
        x[3] = x[3, 0]
        found = torch.empty(4, first, dtype=x.dtype), torch.empty(4, first, dtype=torch.int64)
        kernel = sorting_kernel(both(descending=descending), dtype, 4, length, first=first)
        assert "sort_records<" not in body_of(kernel) and "first_records<" in body_of(kernel)
        load_kernel(kernel)(x, *found)
        values, places = torch.sort(x, dim=1, stable=True, descending=descending)
        same(found[0], values[:, :first])
        assert torch.equal(found[1], places[:, :first])


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64])
@pytest.mark.parametrize(("length", "first"), [(8, 2), (64, 8), (80, 1), (512, 3), (512, 40)])
def test_first_elements_as_topk_chooses_among_equals(
    load_kernel: LoadKernel, torch_dtype: TorchDType, dtype: DType, length: int, first: int
) -> None:
    """Rows of one number, of few, and of many different ones."""

    def values(v: Load, r: Expr) -> list[Scalar]:
        return [sort(v, r, output=k, descending=True, topk=first) for k in (0, 1)]

    run = load_kernel(sorting_kernel(values, dtype, 40, length, first=first))
    x = drawn((40, length), torch_dtype(dtype))
    x[:10], x[10:20] = 1, x[10:20].clamp(-1, 1)
    found = x.new_zeros(40, first), torch.zeros(40, first, dtype=torch.int64)
    run(x, *found)
    wanted = x.topk(first)
    assert torch.equal(found[1], wanted.indices)
    same(found[0], wanted.values)


def test_long_rows_whose_equals_are_topks_are_refused() -> None:
    kernel = sorting_kernel(lambda v, r: [sort(v, r, topk=2)], DType.F32, 2, 513, first=2)
    with pytest.raises(EmitError, match="rows of more than 512"):
        CppCodegen().emit(kernel, get_target("x86-64-avx2"), {})


def test_first_elements_of_rows_that_may_have_fewer(load_kernel: LoadKernel) -> None:
    run = load_kernel(sorting_kernel(both(descending=True), DType.F32, 1, symbol("n0", lo=0), first=10))
    for length in (3, 10, 50):
        x = drawn((1, length), torch.float32)
        found = torch.full((1, 10), 7.0), torch.full((1, 10), 7)
        run(x, *found, length)
        values, places = torch.sort(x, dim=1, stable=True, descending=True)
        kept = min(length, 10)
        same(found[0][:, :kept], values[:, :kept])
        assert torch.equal(found[1][:, :kept], places[:, :kept])
        assert (found[0][:, kept:] == 7).all() and (found[1][:, kept:] == 7).all()


def body_of(kernel: Kernel) -> str:
    """The part of the text that is the kernel's own."""
    text = CppCodegen().emit(kernel, get_target("x86-64-avx2"), {}).text
    return text[text.index("struct Arguments") :]


def test_of_what_is_not_stored_nothing_is_computed() -> None:
    places = body_of(sorting_kernel(lambda v, r: [sort(v, r, output=1)], DType.F32, 4, 100))
    assert "record_position" in places and "float_bits" not in places
    assert places.count("sort_records<") == 1


def test_columns_are_sorted_stably(load_kernel: LoadKernel) -> None:
    x = drawn((70, 40), torch.float32)
    found = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
    load_kernel(sorting_kernel(both(descending=True), DType.F32, 40, 70, columns=True))(x, *found)
    values, places = torch.sort(x, dim=0, stable=True, descending=True)
    same(found[0], values)
    assert torch.equal(found[1], places)


@pytest.mark.parametrize("length", [20, 700])
def test_what_makes_rows_and_what_follows(load_kernel: LoadKernel, length: int) -> None:
    """A softmax, in order, with running sums of it, scaled by the largest, and where both ends come from."""

    def values(v: Load, r: Expr) -> list[Scalar]:
        shifted = op("exp", op("sub", v, reduce("max", [v], [r])))
        p = op("div", shifted, reduce("sum", [shifted], [r]))
        ordered, places = sort(p, r, descending=True), sort(p, r, output=1, descending=True)
        scaled = op("div", ordered, reduce("max", [ordered], [r]))
        return [scan("sum", ordered, r), scaled, op("mul", places, const(2, DType.I64)), sort(v, r)]

    x = torch.randn(9, length, generator=torch.Generator().manual_seed(1))
    found = [
        torch.empty(9, length, dtype=d) for d in (torch.float32, torch.float32, torch.int64, torch.float32)
    ]
    load_kernel(sorting_kernel(values, DType.F32, 9, length))(x, *found)
    ordered, places = x.softmax(1).sort(dim=1, stable=True, descending=True)
    torch.testing.assert_close(found[0].double(), ordered.double().cumsum(1), rtol=1.3e-6, atol=1e-5)
    torch.testing.assert_close(found[1], ordered / ordered[:, :1])
    same(found[3], x.sort(1).values)
    assert torch.equal(found[2] // 2, places)


def test_an_element_by_rank(load_kernel: LoadKernel) -> None:
    def values(v: Load, r: Expr) -> list[Scalar]:
        here = op("eq", cast(index_value(r), DType.I64), const(3, DType.I64))
        picked = op("where", here, sort(v, r), const(float("-inf"), DType.F32))
        return [reduce("max", [picked], [r])]

    x, r = symbol("x0", extent=6), symbol("r0", extent=50)
    (value,) = values(load("in0", [x * 50 + r], DType.F32), r)
    kernel = Kernel(
        name="third",
        ranges=(Range(symbol=x, kind="parallel"), Range(symbol=r, kind="reduction")),
        args=(
            TensorArg(name="in0", dtype=DType.F32, role="in", span=as_expr(300)),
            TensorArg(name="out0", dtype=DType.F32, role="out", span=as_expr(6)),
        ),
        stores=(Store(buffer="out0", index=x, value=value),),
    )
    given, found = torch.randn(6, 50), torch.empty(6)
    load_kernel(kernel)(given, found)
    assert torch.equal(found, given.sort(1).values[:, 3])


def test_rows_are_sorted_in_place(load_kernel: LoadKernel) -> None:
    """Rows are read before any of their elements is overwritten, by other results, too."""

    def values(v: Load, r: Expr) -> list[Scalar]:
        return [sort(v, r), op("add", sort(v, r), v)]

    kernel = sorting_kernel(values, DType.F32, 8, 90)
    kernel = Kernel(
        name=kernel.name,
        ranges=kernel.ranges,
        args=kernel.args,
        stores=kernel.stores,
        aliasing=(("out0", "in0"),),
    )
    given, other = torch.randn(8, 90), torch.empty(8, 90)
    wanted = given.sort(1).values
    total = wanted + given
    load_kernel(kernel)(given, given, other)
    assert torch.equal(given, wanted) and torch.equal(other, total)


def test_any_number_of_threads(load_kernel: LoadKernel, threads: Threads) -> None:
    run = load_kernel(sorting_kernel(both(descending=False), DType.F32, 300, 400))
    x = drawn((300, 400), torch.float32)

    def compute() -> list[torch.Tensor]:
        found = [torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)]
        run(x, *found)
        return found

    threads(compute)


def test_types_without_keys_are_refused() -> None:
    kernel = sorting_kernel(lambda v, r: [sort(v, r)], DType.F8E5M2, 2, 4)
    with pytest.raises(EmitError, match="sort of f8e5m2") as caught:
        CppCodegen().emit(kernel, get_target("x86-64-avx2"), {})
    assert caught.value.code == "sort"


def test_rows_over_two_ranges_are_refused() -> None:
    s, r = symbol("r0", extent=3), symbol("r1", extent=4)
    kernel = Kernel(
        name="two",
        ranges=(Range(symbol=s, kind="reduction"), Range(symbol=r, kind="reduction")),
        args=(named_arg("in0", span=12), named_arg("out0", span=12)),
        stores=(Store(buffer="out0", index=4 * s + r, value=sort(load("in0", [4 * s + r], DType.F32), r)),),
    )
    with pytest.raises(EmitError, match="several ranges"):
        CppCodegen().emit(kernel, get_target("x86-64-avx2"), {})
