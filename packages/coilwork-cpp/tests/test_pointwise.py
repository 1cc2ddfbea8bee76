"""Nests without reductions, and the tiles that they transpose."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from cpp_fixtures import BuildSource, LoadKernel, Runner, Threads, TorchDType, named_arg

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.loops.nodes import Check
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, placeholder
from coilwork_ir.target import Target, get_target

F32, I64, BF16 = DType.F32, DType.I64, DType.BF16


def ranges(*extents: Expr | int) -> tuple[list[Range], list[Expr]]:
    symbols = [symbol(f"x{k}", extent=e) for k, e in enumerate(extents)]
    return [Range(symbol=s, kind="parallel") for s in symbols], symbols


def kernel(
    spaces: Sequence[Range],
    args: Sequence[TensorArg],
    stores: Sequence[Store],
    *,
    sizes: tuple[Expr, ...] = (),
    checks: tuple[Check, ...] = (),
) -> Kernel:
    return Kernel(
        name="pointwise",
        ranges=tuple(spaces),
        args=tuple(args),
        stores=tuple(stores),
        sizes=sizes,
        checks=checks,
    )


def test_broadcast_and_threads(load_kernel: LoadKernel, threads: Threads) -> None:
    n0, n1 = symbol("n0", lo=0), symbol("n1", lo=0)
    spaces, (i, j) = ranges(n0, n1)
    value = op("tanh", op("add", load("in0", [i * n1 + j], F32), load("in1", [j], F32)))
    k = kernel(
        spaces,
        [named_arg("in0"), named_arg("in1"), named_arg("out0")],
        [Store(buffer="out0", index=i * n1 + j, value=value)],
        sizes=(n0, n1),
    )
    run = load_kernel(k)
    for n, m in ((0, 3), (3, 0), (1, 1), (7, 13), (300, 1001), (2, 50_000)):
        x, b, out = torch.randn(n, m), torch.randn(m), torch.empty(n, m)

        def compute(x: torch.Tensor = x, b: torch.Tensor = b, out: torch.Tensor = out) -> list[torch.Tensor]:
            run(x, b, out, *x.shape)
            return [out]

        threads(compute)
        assert torch.allclose(out, torch.tanh(x + b), atol=1e-6)


def test_flat_index_is_split_at_its_divisors() -> None:
    spaces, (i,) = ranges(64 * 48)
    bias = load("in1", [i % 48], F32)
    scale = load("in2", [i // 48], F32)
    value = op("mul", op("add", load("in0", [i], F32), bias), scale)
    k = kernel(
        spaces,
        [named_arg("in0"), named_arg("in1"), named_arg("in2"), named_arg("out0")],
        [Store(buffer="out0", index=i, value=value)],
    )
    text = CppCodegen().emit(k, get_target("x86-64-avx512"), {}).text
    inner = text[text.index("#pragma omp simd\n") :]
    loop = inner[: inner.index("}")]
    assert "%" not in loop and "/" not in loop


def test_contiguous_ranges_become_one() -> None:
    spaces, (i, j) = ranges(30, 70)
    at = i * 70 + j
    k = kernel(
        spaces,
        [named_arg("in0"), named_arg("out0")],
        [Store(buffer="out0", index=at, value=load("in0", [at], F32))],
    )
    text = CppCodegen().emit(k, get_target("x86-64-avx2"), {}).text
    assert text.count("for (i64") == 2  # units and points
    assert "< 2100" in text


@pytest.mark.parametrize("shape", [(100, 70), (1, 33), (513, 129)])
def test_transposed_operands_are_added(load_kernel: LoadKernel, shape: tuple[int, int]) -> None:
    n, m = shape
    spaces, (i, j) = ranges(n, m)
    value = op("add", load("in0", [i * m + j], F32), load("in1", [j * n + i], F32))
    k = kernel(
        spaces,
        [named_arg("in0"), named_arg("in1"), named_arg("out0")],
        [Store(buffer="out0", index=i * m + j, value=value)],
    )
    x, y, out = torch.randn(n, m), torch.randn(m, n), torch.empty(n, m)
    load_kernel(k)(x, y, out)
    assert torch.equal(out, x + y.t())


def test_four_dimensional_permutation(load_kernel: LoadKernel) -> None:
    b, t, h, d = 3, 40, 5, 32
    spaces, (i, j, k_, l_) = ranges(b, h, t, d)
    source = i * (t * h * d) + k_ * (h * d) + j * d + l_
    at = i * (h * t * d) + j * (t * d) + k_ * d + l_
    k = kernel(
        spaces,
        [named_arg("in0", BF16), named_arg("out0")],
        [Store(buffer="out0", index=at, value=cast(load("in0", [source], BF16), F32))],
    )
    x, out = torch.randn(b, t, h, d).bfloat16(), torch.empty(b, h, t, d)
    load_kernel(k)(x, out)
    assert torch.equal(out, x.permute(0, 2, 1, 3).float())


def test_masked_load_stays_inside(load_kernel: LoadKernel) -> None:
    """A constant pad: the unmasked index runs from -3 on, before memory that a guard page could hold."""
    n = 1000
    spaces, (i,) = ranges(n + 6)
    at = index_value(i)
    inside = op("bitwise_and", op("ge", at, const(3, I64)), op("lt", at, const(n + 3, I64)))
    value = load("in0", [i - 3], F32, mask=inside, other=-2.5)
    k = kernel(spaces, [named_arg("in0"), named_arg("out0")], [Store(buffer="out0", index=i, value=value)])
    x, out = torch.randn(n), torch.empty(n + 6)
    load_kernel(k)(x, out)
    assert torch.equal(out, torch.nn.functional.pad(x, (3, 3), value=-2.5))


def test_masked_load_of_nothing(load_kernel: LoadKernel) -> None:
    spaces, (i,) = ranges(100)
    value = load("in0", [i * 1_000_000_000], F32, mask=load("in1", [i], DType.BOOL), other=7)
    k = kernel(
        spaces,
        [named_arg("in0"), named_arg("in1", DType.BOOL), named_arg("out0")],
        [Store(buffer="out0", index=i, value=value)],
    )
    keep = torch.zeros(100, dtype=torch.bool)
    keep[0] = True
    out = torch.empty(100)
    load_kernel(k)(torch.full((1,), 3.0), keep, out)
    assert out[0] == 3 and (out[1:] == 7).all()


def embedding(rows: int, width: int, count: Expr) -> Kernel:
    spaces, (i, j) = ranges(count, width)
    raw = load("in1", [i], I64)
    wrapped = op("where", op("lt", raw, const(0, I64)), op("add", raw, const(rows, I64)), raw)
    inside = op("bitwise_and", op("ge", wrapped, const(0, I64)), op("lt", wrapped, const(rows, I64)))
    value = load("in0", [placeholder(0) * width + j], F32, indirect=[wrapped])
    return kernel(
        spaces,
        [named_arg("in0"), named_arg("in1", I64), named_arg("out0")],
        [Store(buffer="out0", index=i * width + j, value=value)],
        sizes=(count,),
        checks=(
            Check(condition=op("ne", raw, const(-100, I64)), message="no -100"),
            Check(condition=inside, message="index out of range", error="IndexError"),
        ),
    )


def test_checks_stop_before_the_access(load_kernel: LoadKernel, threads: Threads) -> None:
    run = load_kernel(embedding(50, 24, symbol("n0", lo=0)))
    table = torch.randn(50, 24)
    for count in (0, 5, 40_000):
        index = torch.randint(-50, 50, (count,))
        out = torch.full((count, 24), -1.0)
        assert run(table, index, out, count) == 0
        assert torch.equal(out, table[index])
    for bad, number in ((10**12, 2), (-100, 1), (50, 2), (-51, 2)):
        index = torch.zeros(30_000, dtype=torch.int64)
        index[29_999] = bad
        out = torch.full((30_000, 24), -1.0)
        assert run(table, index, out, 30_000) == number
        assert (out == -1).all()


@pytest.mark.parametrize("mode", ["add", "mul", "min", "max"])
def test_scattered_rows_are_shared_by_columns(
    load_kernel: LoadKernel, threads: Threads, mode: StoreMode
) -> None:
    """`io0[in1[i], j] mode= in0[i, j]`: threads share the columns only."""
    n, rows, width = 500, 7, 300
    spaces, (i, j) = ranges(n, width)
    store = Store(
        buffer="io0",
        index=placeholder(0) * width + j,
        indirect=(load("in1", [i], I64),),
        value=load("in0", [i * width + j], F32),
        mode=mode,
    )
    run = load_kernel(kernel(spaces, [named_arg("in0"), named_arg("in1", I64), named_arg("io0")], [store]))
    index, x = torch.randint(0, rows, (n,)), torch.rand(n, width) + 0.5
    start = torch.rand(rows, width)
    out = torch.empty_like(start)

    def compute() -> list[torch.Tensor]:
        out.copy_(start)
        run(x, index, out)
        return [out]

    threads(compute)
    names = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}
    want = start.double().scatter_reduce(0, index[:, None].expand(n, width), x.double(), names[mode])
    assert torch.allclose(out.double(), want, rtol=1e-4)


def test_scatter_add_that_collides_everywhere(load_kernel: LoadKernel, threads: Threads) -> None:
    n = 100_000
    spaces, (i,) = ranges(n)
    store = Store(
        buffer="io0",
        index=placeholder(0),
        indirect=(load("in1", [i], I64),),
        value=load("in0", [i], BF16),
        mode="add",
    )
    run = load_kernel(
        kernel(spaces, [named_arg("in0", BF16), named_arg("in1", I64), named_arg("io0", BF16)], [store])
    )
    x, index = torch.ones(n).bfloat16(), torch.randint(0, 1000, (n,))
    out = torch.empty(1000).bfloat16()

    def compute() -> list[torch.Tensor]:
        out.zero_()
        run(x, index, out)
        return [out]

    threads(compute)
    assert torch.equal(out.long(), torch.bincount(index, minlength=1000))


def test_masked_store_and_iota(load_kernel: LoadKernel) -> None:
    spaces, (i,) = ranges(200)
    even = op("eq", op("mod", index_value(i), const(2, I64)), const(0, I64))
    stores = [
        Store(buffer="io0", index=i, value=cast(index_value(i * 3 - 7), F32), mask=even),
        Store(buffer="out0", index=199 - i, value=index_value(i // 7 - i % 5)),
    ]
    out, back = torch.full((200,), -1.0), torch.empty(200, dtype=torch.int64)
    load_kernel(kernel(spaces, [named_arg("io0"), named_arg("out0", I64)], stores))(out, back)
    at = torch.arange(200)
    assert torch.equal(out, torch.where(at % 2 == 0, at * 3 - 7, -1).float())
    assert torch.equal(back.flip(0), at // 7 - at % 5)


def test_stores_over_part_of_the_space(load_kernel: LoadKernel) -> None:
    """A plain one happens once; one that adds does so at every point."""
    spaces, (i, j) = ranges(20, 32)
    stores = [
        Store(buffer="io0", index=i, value=load("in0", [i], F32), mode="add"),
        Store(buffer="out0", index=i * 32 + j, value=load("in0", [i], F32)),
        Store(buffer="out1", index=i, value=op("neg", load("in0", [i], F32))),
    ]
    x, sums, out, once = torch.randn(20), torch.zeros(20), torch.empty(20, 32), torch.empty(20)
    of_kernel = kernel(
        spaces, [named_arg("in0"), named_arg("io0"), named_arg("out0"), named_arg("out1")], stores
    )
    load_kernel(of_kernel)(x, sums, out, once)
    torch.testing.assert_close(sums, 32 * x)
    assert torch.equal(out, x[:, None].expand(20, 32)) and torch.equal(once, -x)


def test_swap_in_place(load_kernel: LoadKernel) -> None:
    """Both values are read before either is written."""
    spaces, (i,) = ranges(333)
    stores = [
        Store(buffer="io0", index=i, value=load("io1", [i], F32)),
        Store(buffer="io1", index=i, value=load("io0", [i], F32)),
    ]
    x, y = torch.randn(333), torch.randn(333)
    a, b = x.clone(), y.clone()
    load_kernel(kernel(spaces, [named_arg("io0"), named_arg("io1")], stores))(a, b)
    assert torch.equal(a, y) and torch.equal(b, x)


def test_kernel_without_ranges_computes_one_element(load_kernel: LoadKernel) -> None:
    k = kernel(
        [],
        [named_arg("in0"), named_arg("out0")],
        [Store(buffer="out0", index=as_expr(0), value=op("sqrt", load("in0", [as_expr(0)], F32)))],
    )
    out = torch.empty(())
    load_kernel(k)(torch.tensor(9.0), out)
    assert out == 3


def test_errors_name_the_cause() -> None:
    spaces, (i,) = ranges(10)
    k = kernel(spaces, [named_arg("out0", DType.C64)], [Store(buffer="out0", index=i, value=const(0, F32))])
    with pytest.raises(EmitError, match="c64"):
        CppCodegen().emit(k, get_target("x86-64-avx2"), {})
    k = kernel(spaces, [named_arg("out0")], [Store(buffer="out0", index=i, value=load("in9", [i], F32))])
    with pytest.raises(EmitError, match="in9"):
        CppCodegen().emit(k, get_target("x86-64-avx2"), {})
    stray = symbol("q0", extent=4)
    k = kernel(
        spaces,
        [named_arg("in0"), named_arg("out0")],
        [Store(buffer="out0", index=i, value=load("in0", [stray], F32))],
    )
    with pytest.raises(EmitError, match="q0"):
        CppCodegen().emit(k, get_target("x86-64-avx2"), {})


def test_options_are_honoured_and_checked() -> None:
    spaces, (i,) = ranges(10)
    k = kernel(
        spaces,
        [named_arg("in0"), named_arg("out0")],
        [Store(buffer="out0", index=i, value=op("log", load("in0", [i], F32)))],
    )
    assert "simd(" in CppCodegen().emit(k, get_target("x86-64-avx2"), {}).text
    assert "simd(" not in CppCodegen().emit(k, get_target("x86-64-avx2"), {"vector_math": False}).text
    assert "simd(" not in CppCodegen().emit(k, get_target("aarch64-neon"), {}).text
    with pytest.raises(EmitError, match="vector_math"):
        CppCodegen().emit(k, get_target("x86-64-avx2"), {"vector_maths": True})
    with pytest.raises(EmitError, match="takes bool"):
        CppCodegen().emit(k, get_target("x86-64-avx2"), {"vector_math": 1})


def test_targets_of_other_back_ends_are_taken_by_their_traits() -> None:
    neon, gpu = get_target("aarch64-neon"), get_target("sm_90")
    for kind in (neon.kind, "somebody's"):
        assert CppCodegen().supports(replace(neon, kind=kind))
        assert not CppCodegen().supports(replace(gpu, kind=kind))


def truths(x: Scalar, flag: Scalar) -> dict[str, tuple[Scalar, Callable[..., torch.Tensor]]]:
    """Positions that are made of truth values, and what they are."""
    positive = op("gt", x, const(0.0, F32))
    wide = cast(positive, I64)
    below = op("lt", wide, const(0, I64))
    return {
        "cast": (wide, lambda x, flag: (x > 0).long()),
        "chosen": (op("where", positive, const(1, I64), const(0, I64)), lambda x, flag: (x > 0).long()),
        "counted from the end": (
            op("where", below, op("add", wide, const(5, I64)), wide),
            lambda x, flag: (x > 0).long(),
        ),
        "from memory": (cast(flag, I64), lambda x, flag: flag.long()),
        "two": (
            op("mul", wide, cast(op("lt", x, const(1.0, F32)), I64)),
            lambda x, flag: ((x > 0) & (x < 1)).long(),
        ),
    }


@pytest.mark.parametrize("kind", ["cast", "chosen", "counted from the end", "from memory", "two"])
@pytest.mark.parametrize("width", [5, 512])
def test_positions_that_are_truth_values(load_kernel: LoadKernel, kind: str, width: int) -> None:
    """Vectorising g++ 12 took a comparison in a position for -1 where it does not hold."""
    spaces, (i, j) = ranges(8, width)
    at = i * width + j
    position, known = truths(load("in0", [at], F32), load("in1", [at], DType.BOOL))[kind]
    value = load("in0", [placeholder(0) + i * width], F32, indirect=[position])
    k = kernel(
        spaces,
        [
            named_arg("in0", span=8 * width),
            named_arg("in1", DType.BOOL, 8 * width),
            named_arg("out0", span=8 * width),
        ],
        [Store(buffer="out0", index=at, value=value)],
    )
    x, out = torch.randn(8, width), torch.empty(8, width)
    flag = torch.rand(8, width) > 0.5
    load_kernel(k)(x, flag, out)
    assert torch.equal(out, x.gather(1, known(x, flag)))


N, M, B = symbol("n0", lo=0), symbol("n1", lo=0), symbol("n2", lo=0)
# around every size of squares, of blocks and of long blocks
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 100, 129, 255, 256, 257, 300)
TYPES = (DType.F32, DType.F64, DType.BF16, DType.F16, DType.I64, DType.I8, DType.BOOL, DType.F8E4M3)


def matrices(
    dtype: DType,
    value: Callable[[Scalar, Scalar], Scalar],
    n: Expr | int = N,
    m: Expr | int = M,
    batch: Expr | int = B,
) -> Kernel:
    """out[b, i, j] = value(in0[b, j, i], in1[b, i, j])"""
    b, i, j = symbol("x0", extent=batch), symbol("x1", extent=n), symbol("x2", extent=m)
    other, at = b * (n * m) + j * n + i, b * (n * m) + i * m + j
    result = value(load("in0", [other], dtype), load("in1", [at], dtype))
    return Kernel(
        name="matrices",
        ranges=tuple(Range(symbol=s, kind="parallel") for s in (b, i, j)),
        args=tuple(
            TensorArg(name=name, dtype=dtype, role="out" if name == "out0" else "in", span=as_expr(b * n * m))
            for name in ("in0", "in1", "out0")
        ),
        sizes=tuple(s for s in (B, N, M) if any(s is given for given in (batch, n, m))),
        stores=(Store(buffer="out0", index=at, value=result),),
    )


def moved(one: Scalar, other: Scalar) -> Scalar:
    return one


def both(one: Scalar, other: Scalar) -> Scalar:
    return op("where", op("eq", one, other), one, other)


def of_bytes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bytes as elements: whatever numbers, infinities and NaNs these are."""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape).bool()
    flat = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def targets(machine: Target) -> list[Target]:
    """What this machine runs: its own target, and the narrower one."""
    return [get_target(name) for name in sorted({machine.name, "x86-64-avx2"})]


@pytest.mark.parametrize("dtype", TYPES)
def test_moves_keep_every_bit(
    build_source: BuildSource, torch_dtype: TorchDType, machine: Target, dtype: DType
) -> None:
    own, chosen = torch_dtype(dtype), random.Random(str(dtype))
    for each in targets(machine):
        source = CppCodegen().emit(matrices(dtype, moved), each, {})
        assert "transpose_far(" in source.text and "simd" not in source.text.split("nest_0")[1]
        run = build_source(source)
        for n in SIZES:
            for m in chosen.sample(SIZES, 5):
                batch = chosen.randint(1, 2)
                x = of_bytes(own, batch, m, n)
                out = of_bytes(own, batch, n, m)
                run(x, x, out, batch, n, m)
                assert torch.equal(as_bytes(out), as_bytes(x.transpose(1, 2))), (each.name, n, m)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.I64, DType.BOOL])
def test_tiles_are_what_loops_read(
    build_source: BuildSource, torch_dtype: TorchDType, machine: Target, dtype: DType
) -> None:
    own, chosen = torch_dtype(dtype), random.Random(str(dtype))
    for each in targets(machine):
        source = CppCodegen().emit(matrices(dtype, both), each, {})
        assert "transpose(in0" in source.text
        run = build_source(source)
        for n in SIZES:
            for m in chosen.sample(SIZES, 5):
                x = torch.randint(0, 2, (2, m, n)).to(own)
                y = torch.randint(0, 2, (2, n, m)).to(own)
                out = torch.empty_like(y)
                run(x, y, out, 2, n, m)
                expected = torch.where(x.transpose(1, 2) == y, x.transpose(1, 2), y)
                assert torch.equal(out, expected), (each.name, n, m)


def test_nothing_is_written_beside(build_source: BuildSource, machine: Target) -> None:
    """Rows of the result that lie apart: what is between them stays."""
    n, m, apart = 77, 45, 48
    i, j = symbol("x0", extent=n), symbol("x1", extent=m)
    kernel = Kernel(
        name="apart",
        ranges=tuple(Range(symbol=s, kind="parallel") for s in (i, j)),
        args=(
            TensorArg(name="in0", dtype=DType.F32, role="in", span=as_expr(n * m)),
            TensorArg(name="out0", dtype=DType.F32, role="out", span=as_expr(n * apart)),
        ),
        stores=(Store(buffer="out0", index=i * apart + j, value=load("in0", [j * n + i], DType.F32)),),
    )
    for each in targets(machine):
        x, out = torch.randn(m, n), torch.full((n, apart), 7.0)
        build_source(CppCodegen().emit(kernel, each, {}))(x, out)
        assert torch.equal(out[:, :m], x.t())
        assert torch.equal(out[:, m:], torch.full((n, apart - m), 7.0))


def test_threads_share_tiles(load_kernel: LoadKernel, threads: Threads) -> None:
    n, m = 600, 1000
    for value in (moved, both):
        run = load_kernel(matrices(DType.F32, value, n, m, 1))
        x, y = torch.randn(m, n), torch.randn(n, m)

        def compute(run: Runner = run, x: torch.Tensor = x, y: torch.Tensor = y) -> list[torch.Tensor]:
            out = torch.empty(n, m)
            run(x, y, out)
            return [out]

        threads(compute)
        assert torch.equal(compute()[0], x.t() if value is moved else y)


def test_what_is_converted_or_computed_goes_by_tiles() -> None:
    text = CppCodegen().emit(matrices(DType.F32, both), get_target("x86-64-avx512"), {}).text
    assert "alignas(64) float tile_0[4096];" in text and "transpose_far" not in text
