"""Sums that are linear in statistics of their rows: when these move behind the sum, and what it comes to."""

from __future__ import annotations

import math

import pytest
import torch
from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.interpret import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.scalar import cast, const, op
from coilwork_ir.target import target
from coilwork_scheduler import ScheduleOptions

F32, F64 = DType.F32, DType.F64
H200 = target("sm_90")
# rows of more than four elements are long
SHORT = 16


def losses(build, rows, columns, term, *, dtype=F64, inputs=("x",), log="rsqrt"):
    """The sum of `term`, of an element and its place, along rows of `x` whose log of sums of exponentials is
    `top` and `log`, or another function.
    """
    at = build.at
    for name in inputs:
        build.input(name, rows, columns, dtype=dtype)
    build.reduce("top", "max", [rows], [columns], lambda i, c: at("x", i, c), dtype=dtype)
    build.reduce(
        "total", "sum", [rows], [columns], lambda i, c: op("exp", op("sub", at("x", i, c), at("top", i))),
        dtype=dtype
    )  # fmt: skip
    build.pointwise("log", [rows], lambda i: op(log, at("total", i)), dtype=dtype)

    def log_softmax(i, c):
        return op("sub", op("sub", at("x", i, c), at("top", i)), at("log", i))

    build.reduce("loss", "sum", [rows], [columns], lambda i, c: term(i, c, log_softmax(i, c)), dtype=dtype)
    return build.graph("loss")


@pytest.mark.parametrize("kept", [(), (1,), (0,)])
def test_a_sum_over_rows_is_one_of_sums_of_rows(build, compare, kept):
    """As of a cross-entropy with soft labels, or a divergence, whose mean is taken."""
    at, shape = build.at, (3, 4, 37)
    for name in ("x", "w"):
        build.input(name, *shape, dtype=F64)
    build.reduce("top", "max", shape[:2], shape[2:], lambda *i: at("x", *i), dtype=F64)
    build.pointwise("log", shape[:2], lambda *i: op("rsqrt", op("abs", at("top", *i))), dtype=F64)
    along = [k for k in (0, 1) if k not in kept]

    def term(*i):
        place = dict(zip([*kept, *along, 2], i, strict=True))
        p = tuple(place[k] for k in range(3))
        return op("mul", at("w", *p), op("sub", at("x", *p), at("log", *p[:2])))

    build.reduce(
        "loss", "sum", [shape[k] for k in kept], [*(shape[k] for k in along), shape[2]], term, dtype=F64
    )
    made = compare(build.graph("loss"), name=H200, kept_bytes=SHORT)
    (decision,) = decided(made)
    assert decision.accepted
    longest = max(
        math.prod(r.symbol.extent.value for r in kernel.ranges if r.kind == "reduction")
        for kernel in made.kernels
    )
    assert longest == 37


def test_what_is_rounded_on_the_way_is_not(build):
    """A log-softmax in 16 bits, times weights."""
    graph = losses(
        build,
        6,
        37,
        lambda i, c, l: op("mul", cast(cast(l, DType.BF16), F32), cast(build.at("w", i, c), F32)),
        dtype=F32,
        inputs=("x", "w"),
    )
    assert decided(schedule(graph, H200, kept_bytes=SHORT))


def decided(made):
    return [d for d in made.decisions if d.rule == "linear-sums"]


TERMS = {
    "smoothed": lambda at: lambda i, c, l: l,
    "negated": lambda at: lambda i, c, l: op("neg", l),
    "scaled": lambda at: lambda i, c, l: op("mul", const(0.25, F64), l),
    "soft labels": lambda at: lambda i, c, l: op("mul", at("w", i, c), l),
    "labels last": lambda at: lambda i, c, l: op("mul", l, op("exp", at("w", i, c))),
    "both": lambda at: lambda i, c, l: op("sub", op("mul", at("w", i, c), l), l),
}
WEIGHTED = ("soft labels", "labels last", "both")


@pytest.mark.parametrize("name", TERMS)
def test_rows_are_read_once(build, compare, name):
    graph = losses(build, 6, 37, TERMS[name](build.at), inputs=("x", "w") if name in WEIGHTED else ("x",))
    made = compare(graph, name=H200, kept_bytes=SHORT)
    (decision,) = decided(made)
    assert decision.accepted and decision.subjects == ("loss",)
    verify_schedule(made)


@pytest.mark.parametrize(
    ("options", "kept_bytes"),
    [
        (ScheduleOptions(), None),
        (ScheduleOptions(numerics="strict"), SHORT),
        (ScheduleOptions(fuse=False), SHORT),
    ],
    ids=["rows that stay on chip", "as it is written", "nothing shares a kernel"],
)
def test_others_stay_as_they_are(build, options, kept_bytes):
    graph = losses(build, 6, 37, TERMS["smoothed"](build.at))
    assert not decided(schedule(graph, H200, options, kept_bytes=kept_bytes))


def test_cpus_do_as_before(build):
    graph = losses(build, 6, 37, TERMS["smoothed"](build.at))
    assert not decided(schedule(graph, target("x86-64-avx2"), kept_bytes=SHORT))


def test_what_waits_for_statistics_in_any_case_stays(build):
    """An entropy: the weights are probabilities."""
    graph = losses(build, 6, 37, lambda i, c, l: op("mul", op("exp", l), l))
    assert not decided(schedule(graph, H200, kept_bytes=SHORT))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: x, "finite"),
        (lambda x: x + 4096, "finite"),
        (lambda x: x.index_fill(1, torch.tensor([0]), -math.inf), "-inf"),
        (lambda x: x.index_fill(1, torch.tensor([3]), -math.inf), "-inf"),
        (lambda x: x.index_fill(1, torch.tensor([0]), math.inf), "nan"),
        (lambda x: x.index_fill(1, torch.tensor([0]), math.nan), "nan"),
        (lambda x: torch.full_like(x, -math.inf), "nan"),
    ],
)
def test_numbers_are_as_good_as_before(build, change, expected):
    """Also where all of a row have a large number in common, and what is infinite stays so."""
    graph = losses(build, 6, 4000, TERMS["smoothed"](build.at), dtype=F32, log="log")
    x = change(torch.randn(6, 4000, generator=torch.Generator().manual_seed(1)))
    made = schedule(graph, H200, kept_bytes=SHORT)
    assert decided(made)
    (found,) = interpret_schedule(made, [x], {})
    exact = torch.log_softmax(x.double(), 1).sum(1)
    if expected == "finite":
        torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=0)
    else:
        assert str(found[0].item()) == expected and bool((found.isnan() == exact.isnan()).all())
