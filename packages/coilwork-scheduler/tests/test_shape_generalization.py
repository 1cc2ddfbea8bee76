"""Kernels that differ in numbers alone are one: which do, what becomes an argument, and that results stay."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import pytest
from declared import ScheduleFields, schedule
from graph_builder import Builder, Compare
from known_values import kernel_calls, number_of
from test_horizontal_fusion import launches

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, substitute
from coilwork_ir.kernels import Kernel
from coilwork_ir.loops import Graph
from coilwork_ir.scalar import IndexValue, Scalar, const, index_value, iterate_postorder, load, op, where
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.shape_generalization import find_pattern, generalize

# a kernel for each node
CPU = "x86-64-avx512"
ALONE: ScheduleFields = {"inline": False, "fuse": False}
STEPS = 12


def appended(build: Builder, steps: int) -> Graph:
    """Columns that sums of rows append: `x = cat([x, x.sum(1, keepdim=True)], 1)`."""
    build.input("x0", 3, 4)
    for k in range(steps):
        width = 4 + k
        build.reduce(f"s{k}", "sum", [3], [width], lambda i, r, k=k: build.at(f"x{k}", i, r))

        def body(i: Expr, j: Expr, k: int = k, width: int = width) -> Scalar:
            inside = op("lt", index_value(j), const(width, DType.I64))
            old = load(f"x{k}", [i, j], DType.F64, mask=inside)
            return where(inside, old, build.at(f"s{k}", i))

        build.pointwise(f"x{k + 1}", [3, width + 1], body)
    return build.graph(f"x{steps}")


def scaled(build: Builder, factors: Sequence[float], *, name: str = "mul", dtype: DType = DType.F32) -> Graph:
    """Results of one operation on a value and each of some numbers, one after the other."""
    build.input("y0", 40, dtype=dtype)
    for k, factor in enumerate(factors):
        build.pointwise(
            f"y{k + 1}",
            [40],
            lambda i, k=k, f=factor: op(name, build.at(f"y{k}", i), const(f, dtype)),
            dtype=dtype,
        )
    return build.graph(*(f"y{k + 1}" for k in range(len(factors))))


@pytest.mark.parametrize("steps", [STEPS, 3 * STEPS])
def test_steps_that_append_are_a_few_kernels_however_many_there_are(
    build: Builder, compare: Compare, steps: int
) -> None:
    made = compare(appended(build, steps), name=CPU, **ALONE)
    assert launches(made) == [1] * 2 * steps
    opened = [kernel for kernel in made.kernels if kernel.sizes]
    assert len(opened) == 2, "sums, and what puts them behind the rows"
    assert all(len(kernel.sizes) == 1 for kernel in opened), "width, stride and bound change together"
    assert len(made.kernels) <= 3 + 2 * (steps // 16 + 1), "rows of whole vectors have texts of their own"


def test_a_few_steps_are_worth_a_text_each(build: Builder, compare: Compare) -> None:
    made = compare(appended(build, STEPS), name=CPU, inline=False, fuse=False, most_sizes=3 * STEPS)
    assert len(made.kernels) == 2 * STEPS


def test_gpus_keep_a_text_for_each(build: Builder, compare: Compare) -> None:
    made = compare(appended(build, STEPS), inline=False, fuse=False)
    assert not any(kernel.sizes for kernel in made.kernels)


FLOATS = (0.1, 0.0, 1e-42, 3.5, 2.0, 7.25, 1e30, 5.5, 0.3, math.inf)
SIGNED = (*FLOATS, *(-value for value in FLOATS))


@pytest.mark.parametrize(("dtype", "formats"), [(DType.F32, "<f<i"), (DType.F64, "<d<q")])
def test_constants_are_arguments_bit_for_bit(build: Builder, dtype: DType, formats: str) -> None:
    options = ScheduleOptions(inline=False, fuse=False)
    made = schedule(scaled(build, SIGNED, dtype=dtype), get_target(CPU), options)
    # nobody knows how the input lies that the first one reads
    assert len(made.kernels) == 2 and not made.kernels[0].sizes
    kernels = {kernel.name: kernel for kernel in made.kernels}
    calls = sorted(kernel_calls(made), key=lambda step: int(step.args[-1][1:]))
    for call, factor in list(zip(calls, SIGNED, strict=True))[1:]:
        kernel = kernels[call.kernel]
        (size,), (store,) = kernel.sizes, kernel.stores
        (bits,) = [node.expr for node in iterate_postorder((store.value,)) if isinstance(node, IndexValue)]
        found = number_of(substitute(bits, {size: call.sizes[0]}))
        assert number_of(size.lo) <= number_of(call.sizes[0]) <= number_of(size.hi)
        assert struct.pack(formats[2:], found) == struct.pack(formats[:2], factor)


def test_what_a_constant_decides_stays_in_the_text(build: Builder, compare: Compare) -> None:
    """Nothing is an argument of a division, which may become a product."""
    made = compare(scaled(build, [0.5 * k for k in range(2, 14)], name="div"), name=CPU, **ALONE)
    assert len(made.kernels) == 12 and not any(kernel.sizes for kernel in made.kernels)


def test_a_divisor_stays_a_number(build: Builder, compare: Compare) -> None:
    build.input("x", 40)
    for k in range(STEPS):
        build.pointwise(f"y{k}", [40], lambda i, k=k: build.at("x", i // (k + 3)))
    made = compare(build.graph(*(f"y{k}" for k in range(STEPS))), name=CPU, **ALONE)
    assert len(made.kernels) == STEPS and not any(kernel.sizes for kernel in made.kernels)
    (refused,) = [d for d in made.decisions if d.rule == "open-size"]
    assert not refused.accepted and "divisor" in refused.reason


def test_offsets_are_arguments(build: Builder, compare: Compare) -> None:
    """Rows taken from a tensor, each by a kernel: only where they begin differs."""
    build.input("x", 400)
    for k in range(STEPS):
        build.pointwise(f"y{k}", [8], lambda i, k=k: op("exp", build.at("x", i + 7 * k + 3)))
    made = compare(
        build.graph(*(f"y{k}" for k in range(STEPS))), name=CPU, inline=False, fuse=False, horizontal=False
    )
    (kernel,) = made.kernels
    assert (kernel.sizes[0].lo, kernel.sizes[0].hi) == (3, 7 * (STEPS - 1) + 3)
    assert as_int(kernel.ranges[0].extent) == 8


def test_the_general_kernel_with_its_numbers_is_each_of_them(build: Builder, compare: Compare) -> None:
    """Substituting what the new sizes are gives back the extents and spans of each kernel."""
    made = compare(appended(build, STEPS), name=CPU, inline=False, fuse=False, most_sizes=3 * STEPS)
    by_text: dict[str, list[tuple[Kernel, tuple[int, ...]]]] = {}
    for kernel in made.kernels:
        pattern = find_pattern(kernel)
        assert pattern is not None
        by_text.setdefault(pattern.text, []).append((kernel, pattern.numbers))
    family = max(by_text.values(), key=len)
    assert len(family) > STEPS // 2
    found = generalize(family[0][0], [numbers for _, numbers in family])
    assert found is not None
    general, values = found
    for (kernel, _), own in zip(family, values, strict=True):
        given = dict(zip(general.sizes, own, strict=True))
        assert all(number_of(size.lo) <= value <= number_of(size.hi) for size, value in given.items())
        exprs = {size: as_expr(value) for size, value in given.items()}
        for wide, narrow in zip(general.args, kernel.args, strict=True):
            assert as_int(substitute(wide.span, exprs)) == as_int(narrow.span)
        for whole, part in zip(general.ranges, kernel.ranges, strict=True):
            assert as_int(substitute(whole.extent, exprs)) == as_int(part.extent)
