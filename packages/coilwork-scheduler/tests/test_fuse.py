"""What becomes one kernel, and what does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops import Check, Mutation, Scan, Scatter
from coilwork_ir.scalar import Reduce, const, op, placeholder, postorder
from coilwork_ir.scalar import Scan as ScanValue
from coilwork_ir.target import target as target_of

F64 = DType.F64


def c(value, dtype=F64):
    return const(value, dtype)


def calls(made):
    return [step for step in made.steps if isinstance(step, KernelCall)]


def softmax(build, rows, columns, source="x", prefix=""):
    at = build.at
    m, e, s, y = (prefix + n for n in ("m", "e", "s", "y"))
    build.reduce(m, "max", [rows], [columns], lambda i, r: at(source, i, r), op="aten._softmax.default")
    build.pointwise(e, [rows, columns], lambda i, j: op("exp", op("sub", at(source, i, j), at(m, i))))
    build.reduce(s, "sum", [rows], [columns], lambda i, r: at(e, i, r))
    build.pointwise(y, [rows, columns], lambda i, j: op("div", at(e, i, j), at(s, i)))


def test_softmax_is_one_kernel(build, compare):
    build.input("x", 6, 20)
    softmax(build, 6, 20)
    made = compare(build.graph("y"))
    (call,) = calls(made)
    assert call.args == ("x", "y")
    assert call.kernel.startswith("softmax_")
    assert [r.kind for r in made.kernels[0].ranges] == ["parallel", "reduction"]


def test_softmax_of_symbolic_size_is_one_kernel(build, compare):
    rows, columns = symbol("s0", lo=2), symbol("s1", lo=2)
    build.input("x", rows, columns)
    softmax(build, rows, columns)
    made = compare(build.graph("y", symbols=(rows, columns)), sizes={"s0": 3, "s1": 5})
    (call,) = calls(made)
    assert call.sizes == (rows, columns)


@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("room", [64, 65536])
def test_softmax_of_rows_that_do_not_stay_on_chip_reads_them_twice(build, compare, room, target, numerics):
    build.input("x", 6, 20)
    softmax(build, 6, 20)
    made = compare(build.graph("y"), name=target, kept_bytes=room, numerics=numerics)
    (kernel,) = made.kernels
    scalars = postorder(tuple(store.value for store in kernel.stores))
    kinds = [node.kind for node in scalars if isinstance(node, Reduce)]
    one_reading = room == 64 and target == "sm_90" and numerics == "fast"
    assert set(kinds) == ({"online_softmax"} if one_reading else {"max", "sum"})


def layer_norm(build, batch, time, width):
    at = build.at
    flat = [batch * time]
    build.reduce(["mean", "m2"], "welford", flat, [width], lambda i, r: at("x", i, r))
    build.pointwise(
        "rstd", flat, lambda i: op("rsqrt", op("add", op("div", at("m2", i), c(float(width))), c(1e-5)))
    )
    build.pointwise(
        "y",
        [batch, time, width],
        lambda b, t, k: op(
            "add",
            op(
                "mul",
                op(
                    "mul",
                    op("sub", at("x", b * time + t, k), at("mean", b * time + t)),
                    at("rstd", b * time + t),
                ),
                at("w", k),
            ),
            at("b", k),
        ),
    )


def test_layer_norm_is_one_kernel_though_its_parts_have_other_shapes(build, compare):
    build.input("x", 6, 8)
    build.input("w", 8)
    build.input("b", 8)
    layer_norm(build, 2, 3, 8)
    made = compare(build.graph("y", "mean", "rstd"))
    assert len(calls(made)) == 1
    assert set(calls(made)[0].args) == {"x", "w", "b", "y", "mean", "rstd"}


def test_residual_and_rms_norm_are_one_kernel(build, compare):
    at = build.at
    for name in ("x", "y"):
        build.input(name, 4, 8)
    build.pointwise("h", [4, 8], lambda i, j: op("add", at("x", i, j), at("y", i, j)))
    build.reduce("ss", "sum", [4], [8], lambda i, r: op("mul", at("h", i, r), at("h", i, r)))
    build.pointwise("scale", [4], lambda i: op("rsqrt", op("add", op("div", at("ss", i), c(8.0)), c(1e-6))))
    build.pointwise("z", [4, 8], lambda i, j: op("mul", at("h", i, j), at("scale", i)))
    made = compare(build.graph("h", "z"))
    assert calls(made)[0].args == ("x", "y", "h", "z")


def test_bias_and_gelu_are_one_kernel_with_one_range(build, compare):
    at = build.at
    build.input("x", 4, 8)
    build.pointwise("u", [4, 8], lambda i, j: op("add", at("x", i, j), c(0.5)))
    build.pointwise("half", [4, 8], lambda i, j: op("mul", at("u", i, j), c(0.5)))
    build.pointwise("erf", [4, 8], lambda i, j: op("erf", op("mul", at("u", i, j), c(0.7))))
    build.pointwise("y", [4, 8], lambda i, j: op("mul", at("half", i, j), op("add", at("erf", i, j), c(1.0))))
    made = compare(build.graph("y"))
    assert len(calls(made)) == 1
    (only,) = made.kernels[0].ranges
    assert only.symbol.name == "x0" and only.symbol.extent.value == 32


def test_batch_norm_statistics_join_under_a_permutation(build, compare):
    at = build.at
    build.input("x", 2, 3, 4)
    build.pointwise("t", [2, 3, 4], lambda n, k, p: op("tanh", at("x", n, k, p)))
    build.reduce("s", "sum", [3], [2, 4], lambda k, n, p: at("t", n, k, p))
    made = compare(build.graph("t", "s"), inline=False)
    assert len(calls(made)) == 1


def test_row_and_column_sums_stay_apart(build, compare):
    at = build.at
    build.input("x", 4, 6)
    build.reduce("rows", "sum", [4], [6], lambda i, r: at("x", i, r))
    build.reduce("columns", "sum", [6], [4], lambda i, r: at("x", r, i))
    assert len(calls(compare(build.graph("rows", "columns")))) == 2


def test_rows_and_columns_of_a_square_matrix_stay_apart_though_they_have_a_common_space(build):
    """Both sums of a contrastive loss share its diagonal, which is next to nothing."""
    at, size = build.at, 16384
    build.input("x", size, size, dtype=DType.BF16)
    for name, element in (("rows", lambda i, r: at("x", i, r)), ("columns", lambda i, r: at("x", r, i))):
        greatest, total = f"{name}_max", f"{name}_sum"
        build.reduce(greatest, "max", [size], [size], element, dtype=DType.F32)

        def scaled(i, r, element=element, greatest=greatest):
            return op("exp", op("sub", element(i, r), at(greatest, i)))

        def own(i, greatest=greatest, total=total):
            return op("sub", op("sub", at("x", i, i), at(greatest, i)), at(total, i))

        build.reduce(total, "sum", [size], [size], scaled, dtype=DType.F32)
        build.pointwise(name, [size], own, dtype=DType.F32)
    made = schedule(build.graph("rows", "columns"), target_of("sm_90"))
    assert [call.args for call in calls(made)] == [("x", "rows"), ("x", "columns")]


def test_column_sums_of_one_buffer_share_a_kernel(build, compare):
    at = build.at
    build.input("g", 5, 6)
    build.input("x", 5, 6)
    build.reduce("db", "sum", [6], [5], lambda i, r: at("g", r, i))
    build.reduce("dw", "sum", [6], [5], lambda i, r: op("mul", at("g", r, i), at("x", r, i)))
    made = compare(build.graph("db", "dw"))
    assert len(calls(made)) == 1
    assert any(d.rule == "fuse-horizontal" and d.accepted for d in made.decisions)
    assert len(calls(compare(build.graph("db", "dw"), horizontal=False))) == 2


def test_a_copy_and_a_transposed_copy_of_other_elements_stay_apart(build, compare):
    at = build.at
    build.input("x", 8, 8)
    build.pointwise("q", [8, 4], lambda t, d: at("x", t, d))
    build.pointwise("k", [4, 8], lambda d, t: at("x", t, d + 4))
    made = compare(build.graph("q", "k"))
    assert [[r.symbol.extent.value for r in k.ranges] for k in made.kernels] == [[8, 4], [4, 8]]


def test_two_views_of_the_same_elements_share_a_kernel_in_a_crossed_space(build, compare):
    at = build.at
    build.input("x", 48)
    build.pointwise("rows", [2, 24], lambda i, j: op("exp", at("x", 24 * i + j)))
    build.pointwise("columns", [12, 4], lambda i, j: op("tanh", at("x", 4 * i + j)))
    assert len(calls(compare(build.graph("rows", "columns")))) == 1


def test_a_long_single_row_does_not_swallow_what_follows_it(build, compare):
    at = build.at
    n = 1 << 22
    build.input("x", n)
    build.reduce("s", "sum", [], [n], lambda r: at("x", r))
    build.pointwise("y", [n], lambda i: op("mul", at("x", i), at("s")))
    from declared import schedule

    from coilwork_ir.target import target
    from coilwork_scheduler import ScheduleOptions

    made = schedule(build.graph("y"), target("sm_90"), ScheduleOptions(split=False))
    assert len(calls(made)) == 2
    refused = [d for d in made.decisions if d.rule == "reject-bytes"]
    assert refused and dict(refused[0].numbers)["fused_us"] > dict(refused[0].numbers)["apart_us"]
    # nor does the reduction of its pieces' results
    made = schedule(build.graph("y"), target("sm_90"))
    assert [call.args for call in calls(made)] == [("x", "s_part"), ("s_part", "s"), ("x", "s", "y")]


def test_no_fusion_around_an_external_call_in_between(build, compare):
    at = build.at
    build.input("x", 4, 6)
    build.pointwise("a", [4, 6], lambda i, j: op("tanh", at("x", i, j)))
    build.extern("test.neg", ["a"], [build.buffer("n", 4, 6)])
    build.pointwise("b", [4, 6], lambda i, j: op("add", at("a", i, j), at("n", i, j)))
    made = compare(build.graph("b"))
    assert [type(s).__name__ for s in made.steps] == ["KernelCall", "Extern", "KernelCall"]
    assert any(d.rule == "reject-cycle" for d in made.decisions)


def test_readers_of_old_contents_run_before_the_overwrite(build, compare):
    at = build.at
    build.input("x", 4, 4)
    build.pointwise("before", [4, 4], lambda i, j: op("tanh", at("x", j, i)))
    build.pointwise("after", [4, 4], lambda i, j: op("add", at("x", i, j), c(1.0)), into="x")
    build.pointwise("y", [4, 4], lambda i, j: op("mul", at("before", i, j), at("after", i, j)))
    made = compare(build.graph("y"))
    written = next(k for k, s in enumerate(calls(made)) if s.into)
    assert all("x" not in call.args for call in calls(made)[written:])


def test_an_update_in_place_is_one_kernel(build, compare):
    at = build.at
    build.input("p", 4, 4)
    build.input("g", 4, 4)
    build.pointwise("step", [4, 4], lambda i, j: op("mul", at("g", i, j), c(0.1)))
    build.pointwise("new", [4, 4], lambda i, j: op("sub", at("p", i, j), at("step", i, j)))
    build.pointwise("q", [4, 4], lambda i, j: at("new", i, j), into="p")
    made = compare(build.graph())
    (call,) = calls(made)
    assert call.into == (("q", "p"),)
    assert [(a.name, a.role) for a in made.kernels[0].args] == [("in0", "in"), ("io0", "inout")]


def test_a_transposed_update_in_place_gets_a_temporary(build, compare):
    build.input("x", 4, 4)
    build.pointwise("y", [4, 4], lambda i, j: build.at("x", j, i), into="x")
    assert len(calls(compare(build.graph()))) == 2


def checked(build, name, condition):
    """Give the last node a check of `condition`."""
    build.nodes[-1] = replace(build.nodes[-1], checks=(Check(condition=condition, message=name),))


def test_a_check_of_a_reduction_runs_in_a_kernel_after_it(build, compare):
    at = build.at
    build.input("x", 4, 6)
    build.reduce("most", "max", [4], [6], lambda i, r: at("x", i, r))
    build.pointwise("twice", [4], lambda i: op("add", at("most", i), at("most", i)))
    build.pointwise("y", [4], lambda i: op("exp", at("most", i)))
    checked(build, "positive", op("ge", at("twice", *build.ranges(4)), c(0.0)))
    made = compare(build.graph("y", "twice"), inline=False)
    (with_check,) = [k for k in made.kernels if k.checks]
    assert not any(isinstance(v, Reduce) for v in postorder([check.condition for check in with_check.checks]))
    assert len(calls(made)) == 2
    (refused,) = [d for d in made.decisions if d.rule == "reject-check"]
    assert not refused.accepted and "%twice" in refused.reason


def test_a_check_of_a_scan_runs_in_a_kernel_after_it(build, compare):
    at = build.at
    build.input("x", 4, 6)
    ranges = build.ranges(4, 6)
    total = build.buffer("total", 4, 6)
    build.nodes.append(
        Scan(outputs=(total,), kind="sum", ranges=ranges, axis=ranges[1], body=at("x", *ranges))
    )
    build.pointwise("y", [4, 6], lambda i, j: op("exp", at("total", i, j)))
    checked(build, "positive", op("ge", at("total", *ranges), c(-1e9)))
    made = compare(build.graph("y"), inline=False)
    (with_check,) = [k for k in made.kernels if k.checks]
    assert not any(
        isinstance(v, ScanValue) for v in postorder([check.condition for check in with_check.checks])
    )
    assert len(calls(made)) == 2


def test_a_check_of_an_input_shares_a_kernel_with_a_reduction(build, compare):
    at = build.at
    build.input("x", 4, 6)
    build.reduce("most", "max", [4], [6], lambda i, r: at("x", i, r))
    build.pointwise("y", [4, 6], lambda i, j: op("sub", at("x", i, j), at("most", i)))
    checked(build, "positive", op("ge", at("x", *build.ranges(4, 6)), c(0.0)))
    made = compare(build.graph("y"))
    assert len(calls(made)) == 1


def test_random_calls_keep_their_order_and_are_not_removed(build, compare):
    for k in range(3):
        build.extern(f"test.draw{k}", [], [build.buffer(f"d{k}", 4)], random=True)
    made = compare(build.graph("d2"))
    assert [s.target for s in made.steps] == ["test.draw0", "test.draw1", "test.draw2"]


def test_a_mutating_call_waits_for_readers(build, compare):
    build.input("x", 4)
    build.pointwise("y", [4], lambda i: op("tanh", build.at("x", i)))
    change = Mutation(output=build.buffer("x2", 4), source="x")
    build.extern("test.double_", ["x"], [], mutates=(change,))
    made = compare(build.graph("y", "x2"))
    assert [type(s).__name__ for s in made.steps] == ["KernelCall", "Extern"]


def test_intermediates_stay_wide_only_in_fast_numerics(build, compare):
    at = build.at
    build.input("x", 4)
    build.pointwise("a", [4], lambda i: op("mul", at("x", i), c(1.01)), dtype=DType.F32)
    graph_of = {}
    for numerics in ("fast", "eager"):
        fresh = type(build)()
        fresh.input("x", 4, dtype=DType.BF16)
        fresh.pointwise("a", [4], lambda i, b=fresh: op("tanh", b.at("x", i)), dtype=DType.BF16)
        fresh.pointwise("y", [4], lambda i, b=fresh: op("exp", b.at("a", i)), dtype=DType.BF16)
        from declared import schedule

        from coilwork_ir.scalar import Op, postorder
        from coilwork_ir.target import target
        from coilwork_scheduler import ScheduleOptions

        made = schedule(fresh.graph("y"), target("sm_90"), ScheduleOptions(numerics=numerics))
        (kernel,) = made.kernels
        graph_of[numerics] = sum(
            1 for n in postorder([kernel.stores[0].value]) if isinstance(n, Op) and n.op == "cast"
        )
    assert graph_of == {"fast": 2, "eager": 4}


def stored_at(build, name, into, value, *shape):
    """A scatter of rows of `value` into `into`, at positions that data say."""
    ranges = build.ranges(*shape)
    build.nodes.append(
        Scatter(
            output=build.buffer(name, *shape),
            into=into,
            ranges=ranges,
            index=(placeholder(0), *ranges[1:]),
            indirect=(build.at("ids", ranges[0]),),
            value=value(*ranges),
            mode="store",
        )
    )


def quantised_into_a_cache(build):
    """Rows divided by the largest of each, and these, put where `ids` says."""
    at = build.at
    build.input("x", 4, 6)
    build.input("ids", 4, dtype=DType.I64)
    build.input("cache", 4, 6)
    build.input("scales", 4)
    build.reduce("m", "max", [4], [6], lambda i, r: at("x", i, r))
    stored_at(build, "cache_new", "cache", lambda i, j: op("div", at("x", i, j), at("m", i)), 4, 6)
    stored_at(build, "scales_new", "scales", lambda i: at("m", i), 4)
    return build.graph("cache_new", "scales_new")


def test_a_scatter_shares_the_kernel_of_what_it_stores_on_a_gpu(build):
    made = schedule(quantised_into_a_cache(build), target_of("sm_90"))
    (call,) = calls(made)
    assert dict(call.into) == {"cache_new": "cache", "scales_new": "scales"}


def test_a_cpu_stores_in_the_order_of_the_points(build):
    assert len(calls(schedule(quantised_into_a_cache(build), target_of("x86-64-avx2")))) > 1


def test_what_a_scatter_overwrites_is_read_by_a_kernel_before(build, compare):
    at = build.at
    build.input("ids", 4, dtype=DType.I64)
    build.input("x", 4, 6)
    build.reduce("m", "max", [4], [6], lambda i, r: at("x", i, r))
    stored_at(build, "x_new", "x", lambda i, j: op("mul", at("m", i), c(2.0)), 4, 6)
    assert len(calls(compare(build.graph("x_new")))) == 2


def scans_of_columns(build, *, reverse):
    """`y`: a running sum of what follows from another one, as the decays of a linear recurrence."""
    at = build.at
    build.input("x", 6, 4)
    build.input("g", 6, 4)

    def scan(name, value, *, reverse=False):
        ranges = build.ranges(6, 4)
        build.nodes.append(
            Scan(
                outputs=(build.buffer(name, 6, 4),),
                kind="sum",
                ranges=ranges,
                axis=ranges[0],
                body=value(*ranges),
                reverse=reverse,
            )
        )

    scan("decay", lambda i, j: at("g", i, j))
    scan("s", lambda i, j: op("mul", at("x", i, j), op("exp", op("neg", at("decay", i, j)))), reverse=reverse)
    build.pointwise("y", [6, 4], lambda i, j: op("mul", at("s", i, j), op("exp", at("decay", i, j))))
    return build.graph("y")


def test_a_scan_of_what_follows_from_another_one_shares_its_kernel(build, compare):
    (call,) = calls(compare(scans_of_columns(build, reverse=False)))
    assert set(call.args) == {"g", "x", "y"}


def test_scans_in_both_directions_stay_apart(build, compare):
    assert len(calls(compare(scans_of_columns(build, reverse=True)))) == 2


def test_what_is_stored_where_data_say_is_read_by_a_kernel_after(build):
    """Along a dimension of one element the index says nothing of the position, and looks like that of who
    reads it.
    """
    at = build.at
    build.input("ids", 1, dtype=DType.I64)
    build.input("x", 4, 6)
    build.pointwise("old", [4, 6], lambda i, j: op("neg", at("x", i, j)))
    ranges = build.ranges(4, 6)
    build.nodes.append(
        Scatter(
            output=build.buffer("new", 4, 6),
            into="old",
            ranges=ranges,
            index=ranges,
            indirect=(at("ids", 0),),
            value=at("x", *ranges),
            mode="store",
        )
    )
    build.pointwise("y", [4, 6], lambda i, j: op("add", at("new", i, j), c(1.0)))
    made = schedule(build.graph("y"), target_of("sm_90"))
    (last,) = [call for call in calls(made) if "y" in call.args]
    assert "new" in last.args and not last.into
