"""Scans by a function: of rows and of columns, in registers and in loops, from both ends, of several values
and types.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

import pytest
import torch
from kernel_bench import (
    TARGETS,
    WALKS,
    TritonProcess,
    along,
    arg,
    compile_source,
    elements_of_a_thread,
    everything,
    run_source,
)

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import Combine, Scalar, cast, combine, const, load, op, parameter, scan
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

Hint = Literal["persistent", "looped"]
F32, F64, I64, BOOL = DType.F32, DType.F64, DType.I64, DType.BOOL


def recurrence(dtype: DType) -> Combine:
    """Two steps of `h = a * h + b` as one."""
    a, b, later_a, later_b = (parameter(k, dtype) for k in range(4))
    return combine([op("mul", a, later_a), op("add", op("mul", later_a, b), later_b)])


def kernel_for(
    function: Combine, shape: tuple[int, int], *, columns: bool, reverse: bool, dtype: DType
) -> Kernel:
    """`function` over `in0` and `in1`, results in `out0` and `out1`: along the rows of `shape`, or down its
    columns.
    """
    rows, length = shape
    if columns:
        x, r = along("x0", length), along("r0", rows, "reduction")
        at = r.symbol * length + x.symbol
    else:
        x, r = along("x0", rows), along("r0", length, "reduction")
        at = x.symbol * length + r.symbol
    first, second = (load(f"in{k}", [at], dtype) for k in range(2))
    wide = [cast(v, f.dtype) for v, f in zip((first, second), function.results, strict=True)]
    values = [scan(function, wide[0], r.symbol, others=wide[1:], output=k, reverse=reverse) for k in range(2)]
    return Kernel(
        name="running",
        ranges=(x, r),
        args=(
            *(arg(f"in{k}", dtype, rows * length) for k in range(2)),
            *(arg(f"out{k}", v.dtype, rows * length) for k, v in enumerate(values)),
        ),
        stores=tuple(Store(buffer=f"out{k}", index=at, value=v) for k, v in enumerate(values)),
    )


def common_divisors(dtype: DType) -> Combine:
    """A function that loops, and one that does not."""
    a, b, later_a, later_b = (parameter(k, dtype) for k in range(4))
    return combine([op("gcd", a, later_a), op("maximum", b, later_b)])


def running_recurrence(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of `recurrence` along dimension 1."""
    steps = [(a[:, 0], b[:, 0])]
    for k in range(1, a.shape[1]):
        before, h = steps[-1]
        steps.append((before * a[:, k], a[:, k] * h + b[:, k]))
    return torch.stack([s[0] for s in steps], 1), torch.stack([s[1] for s in steps], 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("hint", "shape"),
    [
        *itertools.product(("persistent", "looped"), ((5, 70), (1, 64))),
        # too long for registers
        ("looped", (3, 9000)),
    ],
)
def test_recurrence_along_rows(
    engine: TritonProcess, shape: tuple[int, int], hint: Hint, reverse: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.rand(shape, generator=generator), torch.randn(shape, generator=generator)
    kernel = kernel_for(recurrence(F32), shape, columns=False, reverse=reverse, dtype=F32)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])
    given = [a.reshape(-1), b.reshape(-1), torch.zeros(a.numel()), torch.zeros(a.numel())]
    found = [t.cpu().view(shape) for t in run_source(engine, source, given)[2:]]
    wide = (a.flip(1), b.flip(1)) if reverse else (a, b)
    wanted = running_recurrence(wide[0].double(), wide[1].double())
    for result, value in zip(found, wanted, strict=True):
        value = value.flip(1) if reverse else value
        torch.testing.assert_close(result, value.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize(
    ("dtype", "shape"), [(F32, (300, 40)), (F64, (300, 40)), (I64, (300, 40)), (F32, (512, 32))]
)
def test_recurrence_down_columns(
    engine: TritonProcess, dtype: DType, shape: tuple[int, int], hint: Hint, reverse: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(shape, generator=generator, dtype=torch.float64)
    b = torch.randn(shape, generator=generator, dtype=torch.float64)
    types = {F32: torch.float32, F64: torch.float64, I64: torch.int64}
    a, b = (a, b) if dtype.is_float else ((a * 5).round(), (b * 5).round())
    a, b = a.to(types[dtype]), b.to(types[dtype])
    kernel = kernel_for(recurrence(dtype), shape, columns=True, reverse=reverse, dtype=dtype)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])
    wide = (a.flip(0).t(), b.flip(0).t()) if reverse else (a.t(), b.t())
    wanted = running_recurrence(*wide)
    for number, config in enumerate(source.configs):
        assert dict(config.meta).get("RUN", 1) > 1
        given = [
            a.reshape(-1),
            b.reshape(-1),
            torch.zeros_like(a.reshape(-1)),
            torch.zeros_like(a.reshape(-1)),
        ]
        found = [t.cpu().view(shape) for t in run_source(engine, source, given, (), number)[2:]]
        for result, value in zip(found, wanted, strict=True):
            value = value.t().flip(0) if reverse else value.t()
            torch.testing.assert_close(result, value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("reverse", [False, True])
def test_truth_values_and_constants(engine: TritonProcess, hint: Hint, reverse: bool) -> None:
    # the parity of positive values since the last one above 1, and a number that is the same after the first
    # point
    odd, later_odd = parameter(0, BOOL), parameter(2, BOOL)
    function = combine([op("ne", odd, later_odd), const(3.0, F32)])
    shape = (4, 90)
    kernel = kernel_for(function, shape, columns=False, reverse=reverse, dtype=F32)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])
    x = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(2)).float()
    count = x.numel()
    given = [x.reshape(-1), x.reshape(-1), torch.zeros(count, dtype=torch.bool), torch.zeros(count)]
    found = [t.cpu().view(shape) for t in run_source(engine, source, given)[2:]]
    ahead = x.flip(1) if reverse else x
    parity = ahead.cumsum(1) % 2 == 1
    last = torch.full(shape, 3.0)
    last[:, 0] = ahead[:, 0]
    wanted = (parity.flip(1), last.flip(1)) if reverse else (parity, last)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("hint", ["persistent", "looped"])
@pytest.mark.parametrize("reverse", [False, True])
def test_functions_that_loop(engine: TritonProcess, hint: Hint, columns: bool, reverse: bool) -> None:
    """Along rows and down columns in runs: Triton's own scans cannot hold loops, so that these are written
    step by step.
    """
    shape = (600, 40) if columns else (3, 301)
    kernel = kernel_for(common_divisors(I64), shape, columns=columns, reverse=reverse, dtype=I64)
    source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])
    assert "associative_scan" not in source.text
    generator = torch.Generator().manual_seed(3)
    a = 4 * torch.randint(1, 1000, shape, generator=generator) * 2 ** torch.randint(0, 3, shape)
    b = torch.randint(-1000, 1000, shape, generator=generator)
    axis = 0 if columns else 1
    ahead = a.flip(axis) if reverse else a
    steps = list(ahead.unbind(axis))
    for k in range(1, len(steps)):
        steps[k] = torch.gcd(steps[k - 1], steps[k])
    largest = (b.flip(axis) if reverse else b).cummax(axis).values
    wanted = (torch.stack(steps, axis), largest)
    given = [a.reshape(-1), b.reshape(-1), torch.zeros_like(a).reshape(-1), torch.zeros_like(b).reshape(-1)]
    for found, value in zip(run_source(engine, source, given)[2:], wanted, strict=True):
        assert torch.equal(found.cpu().view(shape), value.flip(axis) if reverse else value)


def test_one_value_alone(engine: TritonProcess) -> None:
    function = combine([op("maximum", parameter(0, F32), parameter(1, F32))])
    x, r = along("x0", 3), along("r0", 70, "reduction")
    at = x.symbol * 70 + r.symbol
    value: Scalar = scan(function, load("in0", [at], F32), r.symbol)
    for hint in ("persistent", "looped"):
        kernel = Kernel(
            name="running",
            ranges=(x, r),
            args=(arg("in0", F32, 210), arg("out0", F32, 210)),
            stores=(Store(buffer="out0", index=at, value=value),),
        )
        source = TritonCodegen().emit(kernel, get_target("sm_90"), WALKS[hint])
        data = torch.randn(3, 70)
        found = run_source(engine, source, [data.reshape(-1), torch.zeros(210)])[1].cpu().view(3, 70)
        torch.testing.assert_close(found, data.cummax(1).values)


def test_functions_are_named_after_what_they_do() -> None:
    texts = [
        TritonCodegen()
        .emit(
            kernel_for(recurrence(F32), (5, 70), columns=False, reverse=reverse, dtype=F32),
            get_target("sm_90"),
            WALKS[hint],
        )
        .text
        for hint, reverse in (("persistent", False), ("looped", False), ("looped", True))
    ]
    names = {
        line.split("(")[0] for text in texts for line in text.splitlines() if line.startswith("def combine_")
    }
    plain, flagged = sorted(names, key=len)
    assert flagged == f"{plain}_if_any"
    # nothing is combined with nothing where all lanes that come first are in range
    assert [flagged.removeprefix("def ") in text for text in texts] == [False, False, True]


def narrow(source: KernelSource) -> KernelSource:
    """`source` in the configuration with the fewest elements for a thread: a function that is inlined stands
    there a few times, not dozens.
    """
    return replace(source, configs=(min(everything(source), key=elements_of_a_thread),))


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_scans_by_a_function_become_machine_code(
    compiler: TritonProcess, columns: bool, reverse: bool, name: str
) -> None:
    """One function in the configuration of the best guess, and others."""
    shape = (300, 40) if columns else (5, 9000)
    odd, later_odd = parameter(0, BOOL), parameter(2, BOOL)
    flags = combine([op("ne", odd, later_odd), const(3.0, F32)])
    functions = [(recurrence(F32), F32), (recurrence(I64), I64), (common_divisors(I64), I64), (flags, F32)]
    for number, (function, dtype) in enumerate(functions):
        kernel = kernel_for(function, shape, columns=columns, reverse=reverse, dtype=dtype)
        source = TritonCodegen().emit(kernel, get_target(name), WALKS["looped"])
        assert compile_source(compiler, narrow(source) if number else source, name)
