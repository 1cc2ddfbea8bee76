"""Kernels cut where their guards change, and unrolled over the remainders of strided windows."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable

import pytest
import torch
from cpp_fixtures import LoadKernel, TorchDType
from torch.nn import functional

from coilwork_cpp import CppCodegen
from coilwork_cpp.rewrites.piecewise import cut_into_pieces, has_bends
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, maximum, minimum, mod, multiply_all, symbol
from coilwork_ir.kernels import Kernel, Range, Store, TensorArg
from coilwork_ir.scalar import Load, Scalar, cast, const, index_value, iterate_postorder, load, op, where
from coilwork_ir.target import get_target

F32, BF16, I64 = DType.F32, DType.BF16, DType.I64
LOWEST = float("-inf")


def number(value: Expr | int) -> Scalar:
    return index_value(as_expr(value)) if isinstance(value, Expr) else const(value, I64)


def inside(at: Expr, size: int) -> Scalar:
    return op("bitwise_and", op("ge", number(at), number(0)), op("lt", number(at), number(size)))


def kernel_of(
    extents: tuple[int, ...], body: Callable[..., Scalar], *, dtype: DType = F32, sources: int = 1
) -> Kernel:
    """`out0` over `extents`, contiguous; `in0` and further sources have as many elements as anyone reads."""
    xs = [symbol(f"x{i}", extent=n) for i, n in enumerate(extents)]
    at = as_expr(0)
    for x, n in zip(xs, extents, strict=True):
        at = at * n + x
    value = body(*xs)
    names = [f"in{i}" for i in range(sources)]
    inputs = [TensorArg(name=n, dtype=dtype, role="in", span=as_expr(1 << 20)) for n in names]
    out = TensorArg(
        name="out0", dtype=value.dtype, role="out", span=multiply_all([as_expr(n) for n in extents])
    )
    return Kernel(
        name="cut",
        ranges=tuple(Range(symbol=x, kind="parallel") for x in xs),
        args=(*inputs, out),
        stores=(Store(buffer="out0", index=at, value=value),),
    )


def window_kernel(planes: int, size: int, window: int, step: int, padding: int, dtype: DType = F32) -> Kernel:
    """The maximum over square windows of `planes` images."""
    count = (size + 2 * padding - window) // step + 1

    def body(p: Expr, y: Expr, x: Expr) -> Scalar:
        best: Scalar | None = None
        for dy in range(window):
            for dx in range(window):
                iy, ix = y * step + dy - padding, x * step + dx - padding
                mask = op("bitwise_and", inside(iy, size), inside(ix, size))
                index = p * (size * size) + iy * size + ix
                element = cast(load("in0", [index], dtype, mask=mask, other=LOWEST), F32)
                best = element if best is None else op("maximum", best, element)
        assert best is not None
        return cast(best, dtype)

    return kernel_of((planes, count, count), body, dtype=dtype)


def masks_of(kernel: Kernel) -> int:
    roots = [store.value for store in kernel.stores]
    return sum(isinstance(v, Load) and v.mask is not None for v in iterate_postorder(roots))


def points_of(kernel: Kernel) -> int:
    points = as_int(multiply_all(r.symbol.extent for r in kernel.ranges if r.symbol.extent is not None))
    assert points is not None
    return points


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("size", "window", "step", "padding"), [(40, 3, 2, 1), (41, 3, 2, 1), (40, 3, 1, 1), (33, 5, 1, 2)]
)
def test_windows_over_borders(
    load_kernel: LoadKernel,
    torch_dtype: TorchDType,
    dtype: DType,
    size: int,
    window: int,
    step: int,
    padding: int,
) -> None:
    planes = 16384 // (size * size // step // step) + 1
    kernel = window_kernel(planes, size, window, step, padding, dtype)
    assert len(cut_into_pieces(kernel)) > 1
    x = torch.randn(planes, size, size).to(torch_dtype(dtype))
    x[0, 0, 0] = x[0, -1, -1] = x[1, 5, 5] = float("nan")
    x[2] = LOWEST
    x[3, 7] = float("inf")
    expected = functional.max_pool2d(x[None].float(), window, step, padding)[0].to(x.dtype)
    out = torch.empty_like(expected)
    load_kernel(kernel)(x, out)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def at_the_end_of_memory(value: torch.Tensor, *, before: bool) -> torch.Tensor:
    """`value` in memory that begins behind a page which nobody may read, or ends before one."""
    count = value.numel() * value.element_size()
    span = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
    room = mmap.mmap(-1, span + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    guard = address if before else address + span
    assert protect(ctypes.c_void_p(guard), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0, ctypes.get_errno()
    start = mmap.PAGESIZE if before else span - count
    placed = torch.frombuffer(room, dtype=value.dtype, count=value.numel(), offset=start).view(value.shape)
    return placed.copy_(value)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("size", [8, 24, 40, 41])
def test_guarded_accesses_stay_inside_the_buffer(
    load_kernel: LoadKernel, torch_dtype: TorchDType, size: int, dtype: DType, before: bool
) -> None:
    """G++ 12 reads whole vectors where it knows which lanes a guard leaves out."""
    x = torch.randn(3, size, size).to(torch_dtype(dtype))
    run = load_kernel(window_kernel(3, size, 3, 1, 1, dtype))
    expected = functional.max_pool2d(x[None].float(), 3, 1, 1)[0].to(x.dtype)
    given, out = (at_the_end_of_memory(one, before=before) for one in (x, torch.zeros_like(expected)))
    child = os.fork()
    if child == 0:
        # an access to the page ends the process
        run(given, out)
        os._exit(0 if torch.equal(out, expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def strided_gather(planes: int, size: int) -> Kernel:
    """The derivative of a sum over windows of 3 with step 2 and padding 1, along the last dimension."""
    count = size // 2

    def body(p: Expr, x: Expr) -> Scalar:
        total: Scalar | None = None
        for tap in range(2):
            at = (x + 1) // 2 - (1 - tap)
            reached = op("lt", number(mod(x + 1, as_expr(2)) + (1 - tap) * 2), number(3))
            mask = op("bitwise_and", inside(at, count), reached)
            element = load("in0", [p * count + at], F32, mask=mask)
            total = element if total is None else op("add", total, element)
        assert total is not None
        return total

    return kernel_of((planes, size), body)


def test_remainders_are_unrolled(load_kernel: LoadKernel) -> None:
    planes, size = 100, 512
    kernel = strided_gather(planes, size)
    middle = cut_into_pieces(kernel)[0]
    assert masks_of(middle) == 0
    assert len(middle.stores) == 2
    grad = torch.randn(planes, size // 2)
    x = torch.zeros(planes, 1, size, requires_grad=True)
    weight = torch.ones(1, 1, 3)
    functional.conv1d(x, weight, stride=2, padding=1).backward(grad[:, None])
    out = torch.empty(planes, size)
    load_kernel(kernel)(grad, out)
    assert x.grad is not None
    torch.testing.assert_close(out, x.grad[:, 0])


@pytest.mark.parametrize("first", [1, 100, 512, 1000])
def test_parts_of_a_concatenation(load_kernel: LoadKernel, first: int) -> None:
    rows, size = 33, 1024

    def body(i: Expr, x: Expr) -> Scalar:
        low = op("lt", number(x), number(first))
        a = load("in0", [i * first + x], F32, mask=low)
        b = load("in1", [i * (size - first) + x - first], F32, mask=op("bitwise_not", low))
        return where(low, a, op("neg", b))

    kernel = kernel_of((rows, size), body, sources=2)
    pieces = cut_into_pieces(kernel)
    assert len(pieces) == 2 and all(masks_of(piece) == 0 for piece in pieces)
    a, b, out = torch.randn(rows, first), torch.randn(rows, size - first), torch.empty(rows, size)
    load_kernel(kernel)(a, b, out)
    assert torch.equal(out, torch.cat([a, -b], 1))


def test_rotated_halves_are_walked_together(load_kernel: LoadKernel) -> None:
    rows, half = 512, 32

    def body(i: Expr, x: Expr) -> Scalar:
        low = op("lt", number(x), number(half))
        high = op("bitwise_not", low)
        at = i * (2 * half) + x
        first = op("sub", load("in0", [at], F32, mask=low), load("in0", [at + half], F32, mask=low))
        second = op("add", load("in0", [at], F32, mask=high), load("in0", [at - half], F32, mask=high))
        return where(low, first, second)

    kernel = kernel_of((rows, 2 * half), body)
    (piece,) = cut_into_pieces(kernel)
    assert len(piece.stores) == 2 and masks_of(piece) == 0 and points_of(piece) == rows * half
    x, out = torch.randn(rows, 2 * half), torch.empty(rows, 2 * half)
    load_kernel(kernel)(x, out)
    left, right = x.chunk(2, 1)
    assert torch.equal(out, torch.cat([left - right, right + left], 1))


@pytest.mark.parametrize("rows", [3, 5000])
def test_parts_of_complex_numbers_are_walked_together(load_kernel: LoadKernel, rows: int) -> None:
    """Vectors are filled along the numbers of a row, of which every other element is read and stored, not
    along rows.
    """

    def body(row: Expr, x: Expr, part: Expr) -> Scalar:
        a, b = (load("in0", [(row * 37 + x) * 2 + k], F32) for k in range(2))
        c, d = (load("in1", [x * 2 + k], F32) for k in range(2))
        real = op("sub", op("mul", a, c), op("mul", b, d))
        imaginary = op("add", op("mul", a, d), op("mul", b, c))
        return where(op("lt", number(part), number(1)), real, imaginary)

    kernel = kernel_of((rows, 37, 2), body, sources=2)
    (piece,) = cut_into_pieces(kernel)
    assert len(piece.stores) == 2
    text = CppCodegen().emit(kernel, get_target("x86-64-avx512"), {}).text
    assert "x1 < 37" in text.partition("#pragma omp simd")[2].splitlines()[1]
    left, right = torch.randn(rows, 37, 2), torch.randn(37, 2)
    out = torch.empty(rows, 37, 2)
    load_kernel(kernel)(left, right, out)
    expected = torch.view_as_real(torch.view_as_complex(left) * torch.view_as_complex(right))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_pieces_of_the_same_rows_share_a_nest() -> None:
    def nests(planes: int) -> int:
        text = CppCodegen().emit(window_kernel(planes, 56, 3, 1, 1), get_target("x86-64-avx512"), {}).text
        return text.count("static void nest_")

    assert nests(64) == 1
    # so few images that rows are units of work, of which the pieces have different numbers: the middle with
    # its sides has others than both ends
    assert nests(8) == 2


def one_dimension(position: Callable[[Expr], Expr], size: int, count: int, rows: int = 64) -> Kernel:
    return kernel_of((rows, count), lambda i, x: load("in0", [i * size + position(x)], F32))


POSITIONS: dict[str, tuple[Callable[[Expr], Expr], Callable[[torch.Tensor], torch.Tensor], int]] = {
    "rolled": (lambda x: mod(x - 7, as_expr(1024)), lambda x: x.roll(7, -1), 2),
    "rolled by half": (lambda x: mod(x + 512, as_expr(1024)), lambda x: x.roll(512, -1), 1),
    "rolled backwards": (
        lambda x: mod(as_expr(1020) - x, as_expr(1024)),
        lambda x: x.flip(-1).roll(-3, -1),
        2,
    ),
    "reflected": (
        lambda x: 1023 - maximum(1023 - maximum(x - 5, 5 - x), maximum(x - 5, 5 - x) - 1023),
        lambda x: functional.pad(x, (5, 9), mode="reflect"),
        3,
    ),
    "clamped": (
        lambda x: minimum(maximum(x - 5, as_expr(0)), as_expr(1023)),
        lambda x: functional.pad(x, (5, 9), mode="replicate"),
        3,
    ),
    "with a gap": (lambda x: x + (x + 24) // 1024 * 3, lambda x: torch.cat([x[:, :1000], x[:, 1003:]], 1), 2),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_indices_that_bend(load_kernel: LoadKernel, name: str) -> None:
    position, eager, count = POSITIONS[name]
    x = torch.randn(64, 1024)
    expected = eager(x)
    kernel = one_dimension(position, 1024, expected.shape[1])
    pieces = cut_into_pieces(kernel)
    assert len(pieces) == count
    assert not any(has_bends(piece) for piece in pieces)
    out = torch.empty_like(expected)
    load_kernel(kernel)(x, out)
    assert torch.equal(out, expected)


def test_ends_are_cut_as_well(load_kernel: LoadKernel) -> None:
    """Both ends of the rows, and at them the ends of the columns."""

    def body(p: Expr, y: Expr, x: Expr) -> Scalar:
        return load("in0", [p * 4096 + mod(y + 4, as_expr(64)) * 64 + mod(x + 60, as_expr(64))], F32)

    kernel = kernel_of((16, 64, 64), body)
    pieces = cut_into_pieces(kernel)
    assert len(pieces) == 4 and not any(has_bends(piece) for piece in pieces)
    assert sum(points_of(piece) for piece in pieces) == 16 * 4096
    x = torch.randn(16, 64, 64)
    out = torch.empty_like(x)
    load_kernel(kernel)(x, out)
    assert torch.equal(out, x.roll((-4, 4), (1, 2)))
