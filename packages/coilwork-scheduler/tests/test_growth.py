"""What would make index arithmetic and conditions too long is stored."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, written_size
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.roots import kernel_roots
from coilwork_ir.loops import Graph
from coilwork_ir.scalar import IndexValue, Load, const, index_value, load, op, postorder, where
from coilwork_ir.target import target
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_scheduler.inlining import inline as inlining

F64, I64 = DType.F64, DType.I64
# Offsets are sums of coordinates times strides.
_OF_OFFSETS = 2


def reshaped(build, length: int, rows: int = 4, columns: int = 6) -> Graph:
    """`x.t().reshape(x.shape)`, again and again."""
    build.input("c0", rows, columns)
    for k in range(length):

        def value(i, j, k=k):
            flat = i * columns + j
            return build.at(f"c{k}", flat % rows, flat // rows)

        build.pointwise(f"c{k + 1}", [rows, columns], value)
    return build.graph(f"c{length}")


def joined(build, length: int, rows: int = 8) -> Graph:
    """`cat([x, x.flip(0)])[rows // 2 :][:rows]`, again and again: conditions in conditions."""
    build.input("c0", rows)
    for k in range(length):

        def value(i, k=k):
            at = i + rows // 2
            first = op("lt", index_value(at), const(rows, I64))
            second = op("ge", index_value(at), const(rows, I64))
            then = load(f"c{k}", (at,), F64, mask=first)
            return where(first, then, load(f"c{k}", (2 * rows - 1 - at,), F64, mask=second))

        build.pointwise(f"c{k + 1}", [rows], value)
    return build.graph(f"c{length}")


def doubled(build, length: int, rows: int = 30) -> Graph:
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


def sizes_of(made: Schedule) -> tuple[int, int]:
    """Of all kernels: nodes of the longest index expression, and of the largest body, index expressions written out."""
    longest = total = 0
    for kernel in made.kernels:
        body = 0
        for value in postorder(kernel_roots(kernel)):
            exprs = value.index if isinstance(value, Load) else ()
            exprs = (value.expr,) if isinstance(value, IndexValue) else exprs
            sizes = [written_size(e).nodes for e in exprs]
            body += 1 + sum(sizes)
            longest = max(longest, *sizes, 0)
        total = max(total, body)
    return longest, total


def calls(made: Schedule) -> list[KernelCall]:
    return [step for step in made.steps if isinstance(step, KernelCall)]


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx2"])
@pytest.mark.parametrize("chain", CHAINS)
def test_expressions_and_bodies_stay_short_however_long_the_chain(build, chain, device):
    options = ScheduleOptions()
    made = schedule(CHAINS[chain](build, 60), target(device))
    longest, total = sizes_of(made)
    assert longest <= _OF_OFFSETS * options.max_index_size
    assert total <= _OF_OFFSETS * options.max_body_size
    assert 2 <= len(calls(made)) < 60


@pytest.mark.parametrize("chain", CHAINS)
def test_values_of_long_chains_are_right(build, compare, chain):
    compare(CHAINS[chain](build, 12))


def test_work_grows_with_the_length(build, monkeypatch):
    """Substitutions and the nodes that they visit, counted."""
    visited: list[int] = []

    def counting(roots):
        found = inlining_size(roots := tuple(roots))
        visited.append(found.total)
        return found

    inlining_size = inlining.body_size
    monkeypatch.setattr(inlining, "body_size", counting)
    work = []
    for length in (20, 80):
        visited.clear()
        schedule(reshaped(type(build)(), length), target("sm_90"))
        work.append((len(visited), sum(visited)))
    (few, little), (many, much) = work
    assert few and many <= 6 * few and much <= 6 * little


def test_the_decision_says_why(build):
    made = schedule(reshaped(build, 40), target("sm_90"))
    reasons = {d.reason: dict(d.numbers) for d in made.decisions if d.rule == "inline" and not d.accepted}
    (reason,) = [r for r in reasons if "index arithmetic would" in r]
    assert reason.startswith("stored: ") and reasons[reason]["index_size"] > 96


def test_long_index_arithmetic_at_many_points_costs_more_than_a_copy(build):
    """For a few points a launch takes longer than anything that is computed at them."""
    few = len(calls(schedule(reshaped(build, 40), target("sm_90"))))
    many = len(calls(schedule(reshaped(type(build)(), 40, 3 << 10, 5 << 10), target("sm_90"))))
    assert few < many < 40


def test_what_cancels_is_one_kernel_however_long(build):
    """`x.flip(0).t()` twice over: each four steps give `x` again."""
    rows = 5
    build.input("c0", rows, rows)
    for k in range(400):
        build.pointwise(
            f"c{k + 1}", [rows, rows], lambda i, j, k=k: build.at(f"c{k}", as_expr(rows - 1) - j, i)
        )
    (call,) = calls(schedule(build.graph("c400"), target("sm_90")))
    assert set(call.args) == {"c0", "c400"}
