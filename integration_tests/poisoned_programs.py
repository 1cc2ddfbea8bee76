"""Programs of every kind of kernel, whose arguments lie amid numbers that no kernel may be influenced by, nor
change.

Rows are read in whole vectors, which end behind a tensor, and blocks have lanes that are no points. Whatever
those hold must not decide how often a loop runs, what a check says, which element is the largest, or where
something is stored. Each program runs amid harmless numbers first, then amid NaN, infinities, and the largest
and smallest of each type; results are the same to the bit, and the surroundings are left alone.

As a process, with a folder as its argument, this prints one line of JSON: what is wrong with each program,
empty if all is well. Where Triton's interpreter runs kernels, what a masked load without a default gives in
lanes that are off, which Triton leaves open, is bad, too.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.backends import resolve_backend
from integration_tests.model_checks import no_fallback

# Elements before and behind each argument: more than any vector has.
AROUND: Final = 64
# Where each turn begins among the bad numbers, and how far apart two arguments do: in the first two lanes
# behind an argument, or the third, a large number comes beside a moderate one of the next argument, or of the
# one before.
TURNS: Final = ((0, -2), (-2, 2), (4, 5))
LIMIT_S: Final = 60
# What is first makes functions loop that loop as often as a number says: large, and no infinity.
FLOATS: Final = (1e17, math.nan, 0.5, math.inf, -math.inf, 3e4, -1e17, 1.0, math.nan, -0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What is compiled, on tensors like `inputs`, with `options`; `dynamic` sizes are open."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    options: Mapping[str, Any]
    dynamic: bool


def program(function: Callable[..., Any], *inputs: Tensor, dynamic: bool = False, **options: Any) -> Program:
    return Program(function=function, inputs=inputs, options=options, dynamic=dynamic)


# ---- numbers
# -----------------------------------------------------------------------------------------------------------


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Positive numbers of which some are large enough to be degrees."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if not dtype.is_floating_point:
        return torch.randint(1, 100 if dtype is not torch.bool else 2, shape, generator=generator).to(dtype)
    return (torch.rand(shape, generator=generator) * 4 + 0.25).to(dtype)


def signed(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (drawn(*shape) - 2).to(dtype)


def degrees(*shape: int) -> Tensor:
    return drawn(*shape, seed=1).floor()


def places(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(count))


@cache
def bad_numbers(dtype: torch.dtype) -> Tensor:
    """The numbers that surround an argument."""
    if dtype is torch.bool:
        # bytes that are no truth values
        return torch.tensor([255, 2, 0, 1], dtype=torch.uint8).view(torch.bool)
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        values = torch.tensor((*FLOATS, info.max, info.min, info.tiny), dtype=torch.float64)
        # a finite number stays one, or it would not make anything loop
        return torch.where(values.isfinite(), values.clamp(info.min, info.max), values).to(dtype)
    whole = torch.iinfo(dtype)
    return torch.tensor(
        [whole.max, whole.min, 0, min(-1, whole.max), whole.max // 3, 1], dtype=torch.int64
    ).to(dtype)


def surroundings(dtype: torch.dtype, number: int, turn: int | None) -> Tensor:
    """`AROUND` elements for the argument with that `number`; harmless ones without a `turn`."""
    if turn is None:
        return torch.ones(AROUND, dtype=dtype)
    found = bad_numbers(dtype)
    first, apart = TURNS[turn]
    start = first + apart * number
    return found.roll(-start).repeat(-(-AROUND // len(found)))[:AROUND]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An argument amid surroundings: `whole` is all of it, `tensor` what a program gets."""

    whole: Tensor
    tensor: Tensor

    def edges(self) -> Tensor:
        """The bytes around the argument."""
        count = self.tensor.numel()
        return torch.cat([self.whole[:AROUND], self.whole[AROUND + count :]]).view(torch.uint8).cpu()


def placed(inputs: Sequence[Tensor], device: str, turn: int | None) -> list[Placed]:
    """`inputs`, all contiguous, each amid the surroundings of `turn`."""
    found = []
    for number, x in enumerate(inputs):
        around = surroundings(x.dtype, number, turn)
        # what is first is next to the argument
        whole = torch.cat([around.flip(0), x.reshape(-1), around]).to(device)
        found.append(Placed(whole=whole, tensor=whole[AROUND : AROUND + x.numel()].view(x.shape)))
    return found


@contextmanager
def at_ends_of_memory(inputs: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """`inputs`, on a CPU, each in memory of its own that ends within 16 bytes behind it: who reads or writes
    there stops the process.
    """
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    found, ends = [], []
    for x in inputs:
        size = x.numel() * x.element_size()
        inside = -(-size // page) * page
        memory = mmap.mmap(-1, inside + page)
        end = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + inside
        assert libc.mprotect(ctypes.c_void_p(end), page, 0) == 0
        ends.append(end)
        start = inside - size - -size % 16
        placed_here = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)
        found.append(placed_here.view(x.dtype).view(x.shape).copy_(x))
    try:
        yield found
    finally:
        for end in ends:
            libc.mprotect(ctypes.c_void_p(end), page, mmap.PROT_READ | mmap.PROT_WRITE)


# ---- programs
# ----------------------------------------------------------------------------------------------------------


def scanned(combine: Callable[..., list[Tensor]], *rows: Tensor, reverse: bool = False) -> list[Tensor]:
    moved = [row.movedim(-1, 0) for row in rows]
    if reverse:
        moved = [row.flip([0]) for row in moved]
    found: list[Tensor] = torch.ops.higher_order.associative_scan(combine, moved, ())
    return [(result.flip([0]) if reverse else result).movedim(0, -1) for result in found]


def updated(x: Tensor, y: Tensor) -> Tensor:
    return x.mul_(2).add_(y)


def added_at(count: int) -> Callable[[Tensor, Tensor], Tensor]:
    # whole numbers, whose sum does not depend on their order
    return lambda at, x: x.new_zeros(count).scatter_add(0, at, x.floor())


def windows(x: Tensor) -> tuple[Tensor, ...]:
    pooled = F.max_pool2d(x, 3, 2, 1)
    return pooled, F.avg_pool2d(x, 3, 1), F.interpolate(x, scale_factor=2, mode="nearest")


def normalised(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight)


def of_rows(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(-1), x.amax(-1), x.amin(-1), x.argmax(-1), x.argmin(-1), x.var(-1), x.prod(-1)


def true_of_rows(x: Tensor) -> tuple[Tensor, ...]:
    return (x > 0.1).any(-1), (x > 0.1).all(-1), (x > 3).sum(-1)


def of_columns(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(0), x.amax(0), x.argmin(0), x.var(0)


def running(x: Tensor) -> tuple[Tensor, ...]:
    back = x.flip(-1)
    return (
        *(x.cumsum(-1), back.cumsum(-1).flip(-1), x.cumprod(-1), x.logcumsumexp(-1)),
        *(back.logcumsumexp(-1).flip(-1), *x.cummax(-1), *x.cummin(-1)),
    )


SPECIAL: Final = torch.special
GCD: Final = torch.gcd
F16, BF16, F64, I8, I32, I64 = (
    *(torch.float16, torch.bfloat16, torch.float64),
    *(torch.int8, torch.int32, torch.int64),
)
INTERPRETED: Final[Mapping[str, torch.dtype]] = {
    "fp16": F16,
    "bf16": BF16,
    "fp32": torch.float32,
    "fp64": F64,
    "int1": torch.bool,
    "int8": I8,
    "int16": torch.int16,
    "int32": I32,
    "int64": I64,
    "uint8": torch.uint8,
}
ORTHOGONAL: Final = (
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
)


def iterated() -> Iterator[tuple[str, Program]]:
    """Functions that loop as often as their operands say."""
    x, n = drawn(705) / 5, degrees(705)
    for name in (*ORTHOGONAL, "chebyshev_polynomial_t", "chebyshev_polynomial_u"):
        yield name, program(getattr(SPECIAL, name), x, n)
    yield "zeta", program(SPECIAL.zeta, 1 + drawn(301), drawn(301))
    yield "polygamma", program(lambda x: SPECIAL.polygamma(2, x), drawn(301))
    yield (
        "igamma",
        program(lambda a, x: (torch.igamma(a, x), torch.igammac(a, x)), 9 * drawn(301), 8 * drawn(301)),
    )
    yield (
        "gcd",
        program(lambda a, b: (GCD(a, b), torch.lcm(a, b)), drawn(705, dtype=I64), drawn(705, dtype=I64)),
    )
    laguerre, legendre = SPECIAL.laguerre_polynomial_l, SPECIAL.legendre_polynomial_p
    yield "degrees by column", program(laguerre, drawn(5, 301) / 5, degrees(301))
    yield "degrees by row", program(legendre, drawn(7, 301) / 9, degrees(7, 1))
    yield (
        "degrees that are places",
        program(lambda x: laguerre(x, torch.arange(705.0, device=x.device) % 5), x),
    )
    yield "degrees that are looked up", program(lambda x, n, at: laguerre(x, n[at]), x, n, places(705, 705))
    yield (
        "sum of a polynomial",
        program(lambda x, n: laguerre(x, n).sum(-1), drawn(3, 705) / 5, degrees(3, 705)),
    )
    yield (
        "column sums of a polynomial",
        program(lambda x, n: legendre(x, n).sum(0), drawn(301, 37) / 5, degrees(301, 37)),
    )
    yield (
        "polynomial of a sum",
        program(lambda x, n: laguerre(x.mean(-1), n), drawn(301, 33) / 9, degrees(301)),
    )
    yield (
        "sums of long rows of a polynomial",
        program(lambda x, n: laguerre(x, n).sum(-1), drawn(1, 9001) / 5, degrees(1, 9001)),
    )
    yield "polynomial of open size", program(laguerre, x, n, dynamic=True)
    yield "polynomial in f64", program(legendre, x.double() / 5, n.double())
    yield (
        "polynomial that is added",
        program(
            lambda at, x, n: x.new_zeros(33).scatter_add(0, at, legendre(x, n).floor()), places(33, 705), x, n
        ),
    )
    yield (
        "scan by a common divisor",
        program(lambda x: scanned(lambda a, b: [GCD(a, b)], x), 6 * drawn(3, 45, dtype=I64)),
    )
    yield (
        "scan by a common divisor from the end",
        program(lambda x: scanned(lambda a, b: [GCD(a, b)], x, reverse=True), 6 * drawn(3, 45, dtype=I64)),
    )


def pointwise() -> Iterator[tuple[str, Program]]:
    for dtype in (torch.float32, BF16, F16, F64, I8, I64, torch.bool):
        yield (
            f"line of {dtype}",
            program(lambda x, y: torch.where(x > y, x, y), drawn(705, dtype=dtype), drawn(705, dtype=dtype)),
        )
    yield "rows", program(lambda x, w: (x * w).relu(), signed(5, 301), drawn(301))
    yield "line of open size", program(lambda x, y: x * y + 1, drawn(705), drawn(705), dynamic=True)
    yield (
        "quotients of integers",
        program(lambda a, b: (a // b, a % b, torch.fmod(a, b)), drawn(705, dtype=I32), drawn(705, dtype=I32)),
    )
    yield (
        "quotients of bytes",
        program(lambda a, b: (a // b, a % b), drawn(705, dtype=I8), drawn(705, dtype=I8)),
    )
    yield "in place", program(updated, drawn(705), drawn(705))
    yield (
        "together",
        program(
            lambda *x: torch._foreach_mul(torch._foreach_add(x, 1.5), 2), *(drawn(301 + k) for k in range(5))
        ),
    )
    yield "joined", program(lambda a, b: torch.cat([a, b * 2], -1), drawn(5, 301), drawn(5, 33))
    yield "alternating", program(lambda a, b: torch.stack([a, b], -1).flatten(-2), drawn(705), drawn(705))
    yield (
        "padded",
        program(lambda x: (F.pad(x, (3, 2)), F.pad(x, (3, 2), "reflect"), x.roll(3, -1)), drawn(3, 301)),
    )
    yield "transposed", program(lambda x: x.t().contiguous() * 2, drawn(37, 45))
    yield "windows", program(windows, drawn(1, 2, 17, 19))
    yield "random", program(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), drawn(705), random="generated")


def rows() -> Iterator[tuple[str, Program]]:
    for n, k in ((7, 305), (2, 9001), (33, 17)):
        yield f"reductions of {n} x {k}", program(of_rows, signed(n, k))
        yield f"softmax of {n} x {k}", program(lambda x: x.softmax(-1), signed(n, k))
    yield "truth of rows", program(true_of_rows, drawn(7, 305))
    yield "reductions of bf16", program(of_rows, signed(7, 305, dtype=BF16))
    yield (
        "reductions of integers",
        program(lambda x: (x.sum(-1), x.amax(-1), x.amin(-1), x.argmax(-1)), drawn(7, 305, dtype=I32)),
    )
    yield "layer norm", program(normalised, signed(7, 305), drawn(305))
    yield "layer norm of long rows", program(normalised, signed(2, 9001), drawn(9001))
    yield "rows of open size", program(lambda x: x.softmax(-1), signed(7, 305), dynamic=True)
    yield "all of a tensor", program(lambda x: (x.sum(), x.amax(), x.argmin()), signed(70_001))
    yield "logsumexp", program(lambda x: x.logsumexp(-1), signed(7, 305))
    yield "columns", program(of_columns, signed(301, 37))
    yield "columns of bf16", program(of_columns, signed(45, 301, dtype=BF16))
    yield "batch norm", program(lambda x: F.batch_norm(x, None, None, training=True), signed(5, 7, 33))
    yield (
        "gradient of a layer norm",
        program(
            lambda x, w, g: torch.ops.aten.native_layer_norm_backward(
                g, x, [305], x.mean(-1, keepdim=True), x.std(-1, keepdim=True), w, None, [True, True, False]
            )[:2],
            *(signed(33, 305), drawn(305), signed(33, 305)),
        ),
    )


def scans_and_sorts() -> Iterator[tuple[str, Program]]:
    yield "running", program(running, signed(3, 301))
    yield "running along a line", program(running, signed(705))
    yield (
        "running in long rows",
        program(lambda x: (x.cumsum(-1), x.flip(-1).logcumsumexp(-1)), signed(2, 9001)),
    )
    yield (
        "running down columns",
        program(lambda x: (x.cumsum(0), x.logcumsumexp(0), *x.cummax(0)), signed(65, 33)),
    )
    yield "running back up columns", program(lambda x: x.flip(0).logcumsumexp(0).flip(0), signed(65, 33))
    yield "running from minus infinity", program(lambda x: (x - 2).log().logcumsumexp(-1), drawn(7, 61))
    yield (
        "running by a function",
        program(
            lambda a, b: scanned(lambda p, q, r, s: [p * r, r * q + s], a, b), drawn(3, 45) / 4, drawn(3, 45)
        ),
    )
    yield (
        "sorts",
        program(
            lambda x: (*x.sort(dim=-1, stable=True), *x.sort(-1, True)), signed(5, 37), sorting="kernels"
        ),
    )
    yield (
        "sorts of bytes",
        program(lambda x: x.sort(dim=-1, stable=True), drawn(5, 45, dtype=I8), sorting="kernels"),
    )
    yield "first of rows", program(lambda x: x.topk(9, -1), signed(5, 300), sorting="kernels")
    yield "few of long rows", program(lambda x: x.topk(20, -1), signed(3, 1500), sorting="kernels")
    yield "few of computed rows", program(lambda x: x.log().topk(20, -1), drawn(3, 300), sorting="kernels")
    yield "median", program(lambda x: x.median(-1), signed(5, 45), sorting="kernels")


def lookups() -> Iterator[tuple[str, Program]]:
    at = places(77, 705)
    yield "looked up", program(lambda x, at: x[at], drawn(77), at)
    yield "looked up from the end", program(lambda x, at: x[at - 77], drawn(77), at)
    yield "looked up in i32", program(lambda x, at: x.index_select(0, at) * 2, drawn(77, 5), at.int())
    yield "embedding", program(lambda at, table: F.embedding(at, table), at, drawn(77, 33))
    yield (
        "embedding and norm",
        program(lambda at, table: F.rms_norm(F.embedding(at, table), (305,)), places(9, 7), drawn(9, 305)),
    )
    yield (
        "bags",
        program(
            lambda at, table: F.embedding_bag(at, table, mode="sum"), places(9, 45, 5), drawn(9, 33).floor()
        ),
    )
    yield "along rows", program(lambda x, at: x.gather(-1, at), drawn(5, 77), places(77, 5, 301))
    yield "one of each row", program(F.cross_entropy, signed(301, 33), places(33, 301))
    yield "added", program(added_at(77), at, drawn(705))
    yield (
        "added in rows",
        program(lambda at, x: x.new_zeros(9, 33).index_add(0, at, x.floor()), places(9, 45), drawn(45, 33)),
    )
    yield (
        "largest at places",
        program(lambda at, x: x.new_zeros(77).scatter_reduce(0, at, x, "amax"), at, drawn(705)),
    )
    yield (
        "put",
        program(lambda x, at, y: x.index_put((at,), y), drawn(705), torch.randperm(705)[:301], drawn(301)),
    )
    yield (
        "counted",
        program(lambda at: at.new_zeros(13).scatter_add(0, at, torch.ones_like(at)), places(13, 705)),
    )
    yield "counts", program(lambda at: torch.bincount(at, minlength=77), at)
    yield (
        "put at true places",
        program(lambda x, m: x.masked_fill(m, 0.5).sum(-1), drawn(5, 301), drawn(5, 301, dtype=torch.bool)),
    )


def products() -> Iterator[tuple[str, Program]]:
    chosen = {"contractions": "generated"}
    yield (
        "product",
        program(
            lambda x, w, b: F.gelu(F.linear(x, w, b)), signed(37, 45), signed(33, 45), signed(33), **chosen
        ),
    )
    yield (
        "product of widened bytes",
        program(
            lambda x, w, s: F.linear(x, w.to(x.dtype)) * s,
            signed(9, 45, dtype=BF16),
            drawn(33, 45, dtype=I8),
            drawn(33, dtype=BF16),
            **chosen,
        ),
    )
    yield (
        "batches of products",
        program(lambda a, b: (a @ b).softmax(-1), signed(3, 17, 23), signed(3, 23, 19), **chosen),
    )
    yield (
        "product of a polynomial",
        program(
            lambda x, n, w: SPECIAL.laguerre_polynomial_l(x, n) @ w,
            drawn(9, 37) / 5,
            degrees(9, 37),
            signed(37, 33),
            **chosen,
        ),
    )
    yield "product with a vector", program(lambda a, x: a @ x, signed(37, 301), signed(301))


def all_programs() -> dict[str, Program]:
    """By name."""
    return dict(
        pair for kind in (iterated, pointwise, rows, scans_and_sorts, lookups, products) for pair in kind()
    )


# ---- checks
# ------------------------------------------------------------------------------------------------------------


def bits(result: Any) -> list[Tensor]:
    """The bytes of each tensor of `result`."""
    tensors = [result] if isinstance(result, Tensor) else list(result)
    return [x.detach().contiguous().reshape(-1).view(torch.uint8).cpu() for x in tensors]


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError after `seconds`, unless native code has the time."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"no end within {seconds} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(case: Program, device: str) -> None:
    """Fail unless `case` gives the same, and leaves the same, whatever lies around its arguments."""
    torch._dynamo.reset()
    options = {"strict": True, **case.options}
    compiled = torch.compile(
        case.function, backend=resolve_backend("coilwork"), options=options, dynamic=case.dynamic or None
    )

    def outcome(turn: int | None) -> list[Tensor]:
        arguments = placed(case.inputs, device, turn)
        before = [argument.edges() for argument in arguments]
        torch.manual_seed(0)
        with bad_idle_lanes(turn):
            result = compiled(*(argument.tensor for argument in arguments))
        after = [argument.edges() for argument in arguments]
        changed = [k for k, (x, y) in enumerate(zip(before, after, strict=True)) if not torch.equal(x, y)]
        assert not changed, f"memory around the arguments {changed} was written"
        return [*bits(result), *bits([argument.tensor for argument in arguments])]

    with no_fallback():
        wanted = outcome(None)
        for turn in range(len(TURNS)):
            different = [
                k for k, (x, y) in enumerate(zip(outcome(turn), wanted, strict=True)) if not torch.equal(x, y)
            ]
            assert not different, f"turn {turn}: other results {different}"
        if device == "cpu" and not is_interpreted():
            # C++ has no lanes beyond an end
            torch.manual_seed(0)
            with at_ends_of_memory(case.inputs) as arguments:
                found = [*bits(compiled(*arguments)), *bits(arguments)]
            assert all(map(torch.equal, found, wanted)), "other results at the end of memory"


def is_interpreted() -> bool:
    """Triton's interpreter runs kernels of CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@contextmanager
def bad_idle_lanes(turn: int | None) -> Iterator[None]:
    """In Triton's interpreter, masked loads without a default give bad numbers where they are off; as it
    comes, zeros.

    Without a `turn`, harmless ones.
    """
    if not is_interpreted():
        yield
        return
    import numpy
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    original = interpreter_builder.create_masked_load
    number = count()

    def create_masked_load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        dtype = INTERPRETED.get(str(pointers.get_element_ty()))
        if other is None and dtype is not None:
            nothing = original(
                pointers, TensorHandle(numpy.zeros_like(mask.data), mask.dtype), None, *rest
            ).data
            bad = surroundings(dtype, next(number), turn).view(torch.uint8).numpy().view(nothing.dtype)
            other = TensorHandle(numpy.resize(bad, nothing.shape), pointers.get_element_ty())
        return original(pointers, mask, other, *rest)

    options = interpreter_builder.options
    interpreter_builder.create_masked_load = create_masked_load
    # checks are made
    interpreter_builder.options = replace(options, debug=True, sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter_builder.create_masked_load, interpreter_builder.options = original, options


def wrong_with(case: Program, device: str = "cpu") -> str:
    """What is wrong with `case`; empty if all is well."""
    try:
        with time_limit(LIMIT_S):
            check(case, device)
    except Exception:  # noqa: BLE001 - the test names the case and shows this
        return traceback.format_exc()
    return ""


def main() -> None:
    chosen = sys.argv[2:]
    programs = {name: case for name, case in all_programs().items() if not chosen or name in chosen}
    print(json.dumps({name: wrong_with(case) for name, case in programs.items()}))


if __name__ == "__main__":
    main()
