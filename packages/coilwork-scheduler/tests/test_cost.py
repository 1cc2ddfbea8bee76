"""What would make index arithmetic too long, or memory traffic too large, is stored instead of inlined."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from declared import schedule
from graph_builder import Builder, Compare

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, measure_tree
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.loops import Graph, Pointwise
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    Scalar,
    cast,
    const,
    index_value,
    iterate_postorder,
    load,
    op,
    where,
)
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.inlining import inline as inlining
from coilwork_scheduler.inlining.cost import BodySize, read_bytes
from coilwork_scheduler.options import make_size_hints

F64, I64 = DType.F64, DType.I64
# Offsets are sums of coordinates times strides.
_OF_OFFSETS = 2


def reshaped(build: Builder, length: int, rows: int = 4, columns: int = 6) -> Graph:
    """`x.t().reshape(x.shape)`, again and again."""
    build.input("c0", rows, columns)
    for k in range(length):

        def value(i: Expr, j: Expr, k: int = k) -> Scalar:
            flat = i * columns + j
            return build.at(f"c{k}", flat % rows, flat // rows)

        build.pointwise(f"c{k + 1}", [rows, columns], value)
    return build.graph(f"c{length}")


def joined(build: Builder, length: int, rows: int = 8) -> Graph:
    """`cat([x, x.flip(0)])[rows // 2 :][:rows]`, again and again: conditions in conditions."""
    build.input("c0", rows)
    for k in range(length):

        def value(i: Expr, k: int = k) -> Scalar:
            at = i + rows // 2
            first = op("lt", index_value(at), const(rows, I64))
            second = op("ge", index_value(at), const(rows, I64))
            then = load(f"c{k}", (at,), F64, mask=first)
            return where(first, then, load(f"c{k}", (2 * rows - 1 - at,), F64, mask=second))

        build.pointwise(f"c{k + 1}", [rows], value)
    return build.graph(f"c{length}")


def doubled(build: Builder, length: int, rows: int = 30) -> Graph:
    """A value read at two places, `x[(3 * i) % n] + x[(7 * i) // n]`, again and again."""
    build.input("c0", rows)
    for k in range(length):
        build.pointwise(
            f"c{k + 1}",
            [rows],
            lambda i, k=k: op(
                "add",
                build.at(f"c{k}", (3 * i + 1) % rows),
                build.at(f"c{k}", (7 * i) // (rows // 4) % rows),
            ),
        )
    return build.graph(f"c{length}")


CHAINS = {"reshaped": reshaped, "joined": joined, "doubled": doubled}


def rolled(build: Builder, length: int, rows: int = 24) -> Graph:
    """`x + x.roll(1)`, again and again: a value, and two parts of it, in every step."""
    build.input("c0", rows)
    for k in range(length):

        def value(i: Expr, k: int = k) -> Scalar:
            first = op("lt", index_value(i), const(rows - 1, I64))
            then = load(f"c{k}", (i + 1,), F64, mask=first)
            last = op("ge", index_value(i), const(rows - 1, I64))
            both = where(first, then, load(f"c{k}", (i + 1 - rows,), F64, mask=last))
            return op("add", build.at(f"c{k}", i), both)

        build.pointwise(f"c{k + 1}", [rows], value)
    return build.graph(f"c{length}")


def read_twice(build: Builder, length: int, rows: int = 24) -> Graph:
    """A chain of sines, each of which is reversed and summed up, too: results of kernels of their own."""
    build.input("c0", rows)
    for k in range(length):
        build.pointwise(f"c{k + 1}", [rows], lambda i, k=k: op("sin", build.at(f"c{k}", i)))
        build.pointwise(f"r{k}", [k + 1], lambda i, k=k: build.at(f"c{k + 1}", as_expr(rows - 1) - i % rows))
    return build.graph(f"c{length}", *(f"r{k}" for k in range(length)))


def sizes_of(made: Schedule) -> tuple[int, int]:
    """Of all kernels: nodes of the longest index expression, and of the largest body, index expressions
    written out.
    """
    longest = total = 0
    for kernel in made.kernels:
        body = 0
        for value in iterate_postorder(list_kernel_roots(kernel)):
            exprs = value.index if isinstance(value, Load) else ()
            exprs = (value.expr,) if isinstance(value, IndexValue) else exprs
            sizes = [measure_tree(e).nodes for e in exprs]
            body += 1 + sum(sizes)
            longest = max(longest, *sizes, 0)
        total = max(total, body)
    return longest, total


def calls(made: Schedule) -> list[KernelCall]:
    return [step for step in made.steps if isinstance(step, KernelCall)]


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx2"])
@pytest.mark.parametrize("chain", CHAINS)
def test_expressions_and_bodies_stay_short_however_long_the_chain(
    build: Builder, chain: str, device: str
) -> None:
    options = ScheduleOptions()
    made = schedule(CHAINS[chain](build, 60), get_target(device))
    longest, total = sizes_of(made)
    assert longest <= _OF_OFFSETS * options.max_index_size
    assert total <= _OF_OFFSETS * options.max_body_size
    assert 2 <= len(calls(made)) < 60


@pytest.mark.parametrize("chain", CHAINS)
def test_values_of_long_chains_are_right(build: Builder, compare: Compare, chain: str) -> None:
    compare(CHAINS[chain](build, 12))


def test_work_grows_with_the_length(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Substitutions and the nodes that they visit, counted."""
    visited: list[int] = []

    def counting(roots: Iterable[Scalar]) -> BodySize:
        found = inlining_size(tuple(roots))
        visited.append(found.total)
        return found

    inlining_size = inlining.measure_bodies
    monkeypatch.setattr(inlining, "measure_bodies", counting)
    work = []
    for length in (20, 80):
        visited.clear()
        schedule(reshaped(type(build)(), length), get_target("sm_90"))
        work.append((len(visited), sum(visited)))
    (few, little), (many, much) = work
    assert few and many <= 6 * few and much <= 6 * little


def written(made: Schedule) -> int:
    """Nodes of all kernels together."""
    return sum(sum(1 for _ in iterate_postorder(list_kernel_roots(kernel))) for kernel in made.kernels)


def test_what_is_read_at_several_places_is_not_computed_anew_at_each(build: Builder) -> None:
    """On a GPU, where storing a small value would cost more than computing it again."""
    device, options = "sm_90", ScheduleOptions(max_copied_size=64)
    few, many = (
        written(schedule(read_twice(type(build)(), length), get_target(device), options))
        for length in (64, 256)
    )
    copied = written(schedule(read_twice(type(build)(), 256), get_target(device), ScheduleOptions()))
    assert many <= 5 * few
    assert many < 0.6 * copied


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx2"])
def test_parts_of_a_value_are_not_computed_anew_at_each_step(build: Builder, device: str) -> None:
    """Without a bound each step would double what the one before computes."""
    bounded, unbounded = (ScheduleOptions(max_copied_size=most) for most in (96, 1 << 20))
    made = schedule(rolled(build, 40), get_target(device), bounded)
    assert 2 * written(made) < written(schedule(rolled(type(build)(), 40), get_target(device), unbounded))
    reasons = {d.reason for d in made.decisions if d.rule == "inline" and not d.accepted}
    # a GPU takes what has grown to many loads of one tensor for a window
    cause = (
        "its windows would be gone through again"
        if device == "sm_90"
        else "as much at several places would grow"
    )
    assert f"stored: {cause}" in reasons


def test_values_of_rolled_chains_are_right(build: Builder, compare: Compare) -> None:
    compare(rolled(build, 12))


def test_a_condition_is_weighed_once(build: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many decisions ask for how many points it lets through."""
    asked: list[object] = []
    weigh = inlining.estimate_share

    def counting(mask: Scalar) -> float:
        asked.append(mask)
        return weigh(mask)

    monkeypatch.setattr(inlining, "estimate_share", counting)
    work = []
    for length in (20, 80):
        asked.clear()
        schedule(rolled(type(build)(), length), get_target("x86-64-avx2"))
        work.append(len(asked))
    few, many = work
    assert few > 0 and many <= 5 * few


def test_the_decision_says_why(build: Builder) -> None:
    made = schedule(reshaped(build, 40), get_target("sm_90"))
    reasons = {d.reason: dict(d.numbers) for d in made.decisions if d.rule == "inline" and not d.accepted}
    (reason,) = [r for r in reasons if "index arithmetic would" in r]
    assert reason.startswith("stored: ") and reasons[reason]["index_size"] > 96


def test_long_index_arithmetic_at_many_points_costs_more_than_a_copy(build: Builder) -> None:
    """For a few points a launch takes longer than anything that is computed at them."""
    few = len(calls(schedule(reshaped(build, 40), get_target("sm_90"))))
    many = len(calls(schedule(reshaped(type(build)(), 40, 3 << 10, 5 << 10), get_target("sm_90"))))
    assert few < many < 40


def test_what_cancels_is_one_kernel_however_long(build: Builder) -> None:
    """`x.flip(0).t()` twice over: each four steps give `x` again."""
    rows = 5
    build.input("c0", rows, rows)
    for k in range(400):
        build.pointwise(
            f"c{k + 1}", [rows, rows], lambda i, j, k=k: build.at(f"c{k}", as_expr(rows - 1) - j, i)
        )
    (call,) = calls(schedule(build.graph("c400"), get_target("sm_90")))
    assert set(call.args) == {"c0", "c400"}


def assigned(build: Builder, length: int, rows: int, columns: int = 8, height: int = 4) -> Graph:
    """`x[k : k + height] = x[k : k + height] * 2`, for one `k` after the other: slices that overlap."""
    build.input("x0", rows, columns)
    for k in range(length):
        build.pointwise(
            f"part{k}",
            [height, columns],
            lambda i, j, k=k: op("mul", build.at(f"x{k}", i + k, j), const(2.0, F64)),
        )

        def value(i: Expr, j: Expr, k: int = k) -> Scalar:
            inside = op(
                "bitwise_and",
                op("ge", index_value(i), const(k, I64)),
                op("lt", index_value(i), const(k + height, I64)),
            )
            return where(inside, load(f"part{k}", (i - k, j), F64, mask=inside), build.at(f"x{k}", i, j))

        build.pointwise(f"x{k + 1}", [rows, columns], value)
    return build.graph(f"x{length}")


@pytest.mark.parametrize("length", [20, 40])
def test_slices_of_a_tall_tensor_need_no_more_than_those_of_a_short_one(build: Builder, length: int) -> None:
    """How many rows there are beside a slice says nothing of how often a slice is computed."""
    tall, short = (
        schedule(assigned(type(build)(), length, rows), get_target("x86-64-avx512")) for rows in (4000, 64)
    )
    assert len(calls(tall)) <= len(calls(short))
    assert written(tall) <= written(short)


F32 = DType.F32
SIZES = make_size_hints(ScheduleOptions())
EXTENTS = {"b": 4, "i": 6, "j": 12}


@pytest.mark.parametrize(
    ("used", "resident", "times"),
    [
        ("ij", 287, 4),
        ("ij", 288, 1),
        ("bj", 47, 6),
        ("bj", 48, 1),
        ("bi", 4, 1),
        ("j", 47, 24),
        ("bij", 4, 1),
    ],
)
def test_what_lies_inside_of_a_repetition_is_read_again_unless_held(
    build: Builder, used: str, resident: int, times: int
) -> None:
    """Along all of `b`, `i` and `j`, in this order, an element at some of them is read."""
    shape = [EXTENTS[name] for name in used]
    build.input("x", *shape, dtype=F32)

    def body(*point: Expr) -> Scalar:
        place = dict(zip(EXTENTS, point, strict=True))
        return build.at("x", *(place[name] for name in used))

    build.pointwise("y", list(EXTENTS.values()), body, dtype=F32)
    (node,) = build.graph("y").nodes
    assert isinstance(node, Pointwise)
    size = 4
    for extent in shape:
        size *= extent
    assert read_bytes(node, "x", size, SIZES, resident) == size * times


def test_distances_between_tokens_are_computed_for_every_batch(build: Builder) -> None:
    """Attention scores of 4 batches and 16 heads with a bias by distance: it is 134 MB, and some
    operations.
    """
    at = build.at
    build.input("scores", 4, 16, 2048, 2048, dtype=DType.BF16)
    build.input("slope", 16, dtype=F32)

    def bias(h: Expr, i: Expr, j: Expr) -> Scalar:
        distance = op("abs", cast(op("sub", index_value(i), index_value(j)), F32))
        return cast(op("mul", op("mul", distance, distance), at("slope", h)), DType.BF16)

    build.pointwise("bias", [16, 2048, 2048], bias, dtype=DType.BF16)

    def exponential(b: Expr, h: Expr, i: Expr, j: Expr) -> Scalar:
        score, bias = (cast(v, F32) for v in (at("scores", b, h, i, j), at("bias", h, i, j)))
        return op("exp", op("sub", score, bias))

    build.reduce("y", "sum", [4, 16, 2048], [2048], exponential, dtype=F32)
    made = schedule(build.graph("y"), get_target("sm_90"))
    calls = [step for step in made.steps if isinstance(step, KernelCall)]
    assert not any("bias" in call.args for call in calls)
