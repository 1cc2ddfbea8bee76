"""Which reductions are split on a GPU, into what kernels, and that the numbers stay the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import pytest
import torch
from declared import GRIDS, schedule
from graph_builder import Builder
from known_values import kernel_calls, number_of, tensors_of

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, evaluate, find_stride, multiply_all, symbol
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import Decision
from coilwork_ir.kernels.text import format_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Check, Graph
from coilwork_ir.loops import Reduce as ReduceNode
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.ops import REDUCE_OPS, ReduceKind
from coilwork_ir.scalar import Load, Op, Reduce, Scalar, cast, const, iterate_postorder, op
from coilwork_ir.target import get_target
from coilwork_scheduler import RooflineCost, ScheduleOptions
from coilwork_scheduler.splitting.pieces import cut_axes

BF16, F32 = DType.BF16, DType.F32
H200 = get_target("sm_90")
# launches cost nothing and memory is slow: whatever may be split is
EAGER = replace(H200, launch_us=1e-6, bandwidth_gb_s=1.0)


def args_of(made: Schedule) -> list[tuple[str, ...]]:
    return [step.args for step in made.steps if isinstance(step, KernelCall)]


def splits(made: Schedule) -> list[Decision]:
    return [d for d in made.decisions if d.rule == "split"]


def ways(made: Schedule) -> list[str]:
    """In which ways reductions are cut."""
    return [d.rule for d in made.decisions if d.rule.startswith("split") and d.accepted]


def ranges_of(made: Schedule, step: int) -> tuple[list[int], list[int]]:
    """Extents of the kernel's parallel and reduction ranges."""
    (kernel,) = (k for k in made.kernels if k.name == kernel_calls(made)[step].kernel)
    sizes = {
        kind: [number_of(r.symbol.extent) for r in kernel.ranges if r.kind == kind]
        for kind in ("parallel", "reduction")
    }
    return sizes["parallel"], sizes["reduction"]


def image_strides(n: int, c: int, h: int, w: int, *, channels_last: bool) -> tuple[int, ...]:
    return (h * w * c, 1, w * c, c) if channels_last else (c * h * w, h * w, w, 1)


def batch_norm_forward(build: Builder, n: int, c: int, h: int, w: int, *, channels_last: bool) -> Graph:
    """As lowered: moments of f32 values, an update of the running mean, and the normalised image."""
    at, shape = build.at, [n, c, h, w]
    strides = image_strides(n, c, h, w, channels_last=channels_last)
    build.input("x", *shape, dtype=BF16, strides=strides)
    build.input("weight", c, dtype=F32)
    build.input("running", c, dtype=F32)
    build.reduce(["mean", "m2"], "welford", [c], [n, h, w], lambda i, a, b, d: at("x", a, i, b, d), dtype=F32)
    epsilon, count = const(1e-5, F32), const(float(n * h * w), F32)
    build.pointwise(
        "rstd", [c], lambda i: op("rsqrt", op("add", op("div", at("m2", i), count), epsilon)), dtype=F32
    )
    build.pointwise("updated", [c], lambda i: op("add", at("running", i), at("mean", i)), dtype=F32)
    build.pointwise(
        "y",
        shape,
        lambda a, i, b, d: op(
            "mul",
            op("mul", op("sub", at("x", a, i, b, d), at("mean", i)), at("rstd", i)),
            at("weight", i),
        ),
        dtype=BF16,
        strides=strides,
    )
    return build.graph("y", "updated")


def batch_norm_backward(build: Builder, n: int, c: int, h: int, w: int, *, channels_last: bool) -> Graph:
    """The gradient passes a relu first; both sums read it, and so does the gradient of the image."""
    at, shape = build.at, [n, c, h, w]
    strides = image_strides(n, c, h, w, channels_last=channels_last)
    for name in ("x", "dy", "out"):
        build.input(name, *shape, dtype=BF16, strides=strides)
    for name in ("mean", "rstd"):
        build.input(name, c, dtype=F32)
    build.pointwise(
        "g",
        shape,
        lambda a, i, b, d: _kept(at, (a, i, b, d)),
        dtype=BF16,
        strides=strides,
    )
    centred = lambda a, i, b, d: op("sub", at("x", a, i, b, d), at("mean", i))  # noqa: E731
    build.reduce("bias_grad", "sum", [c], [n, h, w], lambda i, a, b, d: at("g", a, i, b, d), dtype=F32)
    build.reduce(
        "dot",
        "sum",
        [c],
        [n, h, w],
        lambda i, a, b, d: op("mul", at("g", a, i, b, d), centred(a, i, b, d)),
        dtype=F32,
    )
    build.pointwise("weight_grad", [c], lambda i: op("mul", at("dot", i), at("rstd", i)), dtype=F32)
    scale = const(1.0 / (n * h * w), F32)
    build.pointwise(
        "dx",
        shape,
        lambda a, i, b, d: op(
            "sub",
            op("sub", at("g", a, i, b, d), op("mul", at("bias_grad", i), scale)),
            op("mul", centred(a, i, b, d), op("mul", at("weight_grad", i), at("rstd", i))),
        ),
        dtype=BF16,
        strides=strides,
    )
    return build.graph("dx", "bias_grad", "weight_grad")


def _kept(at: Callable[..., Scalar], point: Sequence[Expr]) -> Scalar:
    from coilwork_ir.scalar import where

    zero = const(0.0, F32)
    return where(op("lt", zero, at("out", *point)), at("dy", *point), zero)


@pytest.mark.parametrize("channels_last", [False, True])
def test_forward_of_batch_norm_is_three_kernels_of_full_width(build: Builder, channels_last: bool) -> None:
    graph = batch_norm_forward(build, 256, 64, 56, 56, channels_last=channels_last)
    made = schedule(graph, H200, observe=lambda _, passed: verify_graph(passed))
    verify_schedule(made)
    assert args_of(made) == [
        ("x", "mean_mean", "mean_within"),
        ("mean_mean", "mean_within", "running", "mean", "rstd", "updated"),
        ("x", "mean", "rstd", "weight", "y"),
    ]
    parallel, reduced = ranges_of(made, 0)
    assert reduced != [] and 64 in parallel
    first = next(k for k in made.kernels if k.name == kernel_calls(made)[0].kernel)
    # the pieces of few channels stay in registers
    assert GRIDS.rows.keeps(
        prod(number_of(r.extent) for r in first.ranges if r.kind == "reduction"), across=channels_last
    )
    # nothing of the image's size rides along with the 64 results
    assert ranges_of(made, 1)[0] == [64]
    assert ranges_of(made, 2) == (([802816, 64] if channels_last else [256, 64, 3136]), [])


@pytest.mark.parametrize("channels_last", [False, True])
def test_backward_of_batch_norm_reads_the_image_twice_in_three_kernels(
    build: Builder, channels_last: bool
) -> None:
    graph = batch_norm_backward(build, 256, 64, 56, 56, channels_last=channels_last)
    made = schedule(graph, H200, observe=lambda _, passed: verify_graph(passed))
    verify_schedule(made)
    # the gradient behind the relu is computed inside both kernels that read the image, and stored by none
    assert [set(args) for args in args_of(made)] == [
        {"out", "dy", "x", "mean", "bias_grad_part", "dot_part"},
        {"bias_grad_part", "dot_part", "rstd", "bias_grad", "weight_grad"},
        {"out", "dy", "x", "mean", "bias_grad", "weight_grad", "rstd", "dx"},
    ]
    assert [d.subjects for d in splits(made)] == [("bias_grad", "dot")]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("which", [batch_norm_forward, batch_norm_backward])
def test_batch_norm_keeps_its_numbers(
    build: Builder, which: Callable[..., Graph], channels_last: bool
) -> None:
    graph = which(build, 8, 3, 28, 28, channels_last=channels_last)
    made = schedule(graph, EAGER, kept_bytes=16)
    assert splits(made)[0].accepted
    agree(graph, made)


@pytest.mark.parametrize("name", ["x86-64-avx512", "x86-64-avx2", "aarch64-neon"])
@pytest.mark.parametrize("which", [batch_norm_forward, batch_norm_backward])
def test_schedules_for_cpus_are_untouched(build: Builder, which: Callable[..., Graph], name: str) -> None:
    graph = which(build, 32, 64, 28, 28, channels_last=True)
    made = [schedule(graph, get_target(name), ScheduleOptions(split=split)) for split in (False, True)]
    assert format_schedule(made[0]) == format_schedule(made[1])
    assert not splits(made[1])


@pytest.mark.parametrize(
    ("kept", "axes", "why"),
    [
        ([512], [4096], "enough rows"),
        ([16384], [16384], "enough rows"),
        ([64], [8192], "a row fits on chip"),
        ([4], [64], "short"),
        ([], [2048], "short"),
    ],
)
def test_what_fills_the_device_or_is_small_stays_whole(
    build: Builder, kept: list[int], axes: list[int], why: str
) -> None:
    build.input("x", *kept, *axes, dtype=F32)
    build.reduce("s", "sum", kept, axes, lambda *r: build.at("x", *r), dtype=F32)
    assert len(args_of(schedule(build.graph("s"), H200))) == 1, why


def test_enough_columns_fill_the_device(build: Builder) -> None:
    build.input("x", 4096, 65536, dtype=F32)
    build.reduce("s", "sum", [65536], [4096], lambda i, r: build.at("x", r, i), dtype=F32)
    assert len(args_of(schedule(build.graph("s"), H200))) == 1


def test_a_softmax_with_enough_rows_stays_one_kernel(build: Builder) -> None:
    at = build.at
    build.input("x", 512, 8192, dtype=F32)
    build.reduce("m", "max", [512], [8192], lambda i, r: at("x", i, r), dtype=F32)
    shifted = lambda i, j: op("exp", op("sub", at("x", i, j), at("m", i)))  # noqa: E731
    build.reduce("s", "sum", [512], [8192], shifted, dtype=F32)
    build.pointwise("y", [512, 8192], lambda i, j: op("div", shifted(i, j), at("s", i)), dtype=F32)
    assert len(args_of(schedule(build.graph("y"), H200))) == 1


def long_softmax(build: Builder, rows: int, columns: int, *, dtype: DType = F32) -> Graph:
    at = build.at
    build.input("x", rows, columns, dtype=dtype)
    wide = lambda i, j: cast(at("x", i, j), F32)  # noqa: E731
    build.reduce("m", "max", [rows], [columns], wide, dtype=F32)
    shifted = lambda i, j: op("exp", op("sub", wide(i, j), at("m", i)))  # noqa: E731
    build.reduce("s", "sum", [rows], [columns], shifted, dtype=F32)
    build.pointwise("y", [rows, columns], lambda i, j: op("div", shifted(i, j), at("s", i)), dtype=F32)
    return build.graph("m", "y")


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_softmax_of_few_long_rows_reads_them_twice(build: Builder, dtype: DType) -> None:
    made = schedule(long_softmax(build, 64, 262144, dtype=dtype), H200, observe=lambda _, g: verify_graph(g))
    assert args_of(made) == [
        ("x", "m_part", "m_sum"),
        ("m_part", "m_sum", "m", "s"),
        ("x", "m", "s", "y"),
    ]
    assert [d.subjects for d in splits(made)] == [("m", "s")]


@pytest.mark.parametrize("length", [4096, 5003])
def test_a_split_softmax_keeps_its_numbers(build: Builder, length: int) -> None:
    graph = long_softmax(build, 3, length)
    made = schedule(graph, EAGER, kept_bytes=16)
    assert [d.subjects for d in splits(made)] == [("m", "s")]
    agree(graph, made)


def test_numerics_of_eager_keep_the_two_reductions_of_a_softmax_apart(build: Builder) -> None:
    graph = long_softmax(build, 64, 262144)
    made = schedule(graph, H200, ScheduleOptions(numerics="eager"))
    assert len(args_of(made)) == 5


def test_an_exponential_of_something_else_stays(build: Builder) -> None:
    at = build.at
    for name in ("x", "z"):
        build.input(name, 4, 1 << 20, dtype=F32)
    build.reduce("m", "max", [4], [1 << 20], lambda i, r: at("z", i, r), dtype=F32)
    body = lambda i, r: op("exp", op("sub", at("x", i, r), at("m", i)))  # noqa: E731
    build.reduce("s", "sum", [4], [1 << 20], body, dtype=F32)
    made = schedule(build.graph("m", "s"), H200)
    assert ("m",) in [d.subjects for d in splits(made)]


def test_a_sum_of_everything_is_two_kernels(build: Builder) -> None:
    build.input("x", 1 << 26, dtype=F32)
    build.reduce("s", "sum", [], [1 << 26], lambda r: build.at("x", r), dtype=F32)
    made = schedule(build.graph("s"), H200)
    assert args_of(made) == [("x", "s_part"), ("s_part", "s")]
    assert ranges_of(made, 0) == ([4096], [16384])
    (decision,) = splits(made)
    numbers = dict(decision.numbers)
    assert decision.accepted and numbers["pieces"] == 4096 and numbers["split_us"] < numbers["whole_us"] / 50


def test_a_refusal_is_recorded_with_its_figures(build: Builder) -> None:
    build.input("x", 8192, 64, dtype=F32)
    build.reduce("s", "sum", [64], [8192], lambda i, r: build.at("x", r, i), dtype=F32)
    made = schedule(build.graph("s"), replace(H200, launch_us=1000.0))
    (decision,) = splits(made)
    assert not decision.accepted and dict(decision.numbers)["whole_us"] > 0
    assert len(args_of(made)) == 1


def test_a_model_of_the_caller_decides(build: Builder) -> None:
    class Launches:
        def kernel_us(self, work: object) -> float:
            return 1.0

    build.input("x", 1 << 24, dtype=F32)
    build.reduce("s", "sum", [], [1 << 24], lambda r: build.at("x", r), dtype=F32)
    assert len(args_of(schedule(build.graph("s"), H200, model=Launches()))) == 1
    assert len(args_of(schedule(build.graph("s"), H200, model=RooflineCost(target=H200)))) == 2
    assert len(args_of(schedule(build.graph("s"), H200, ScheduleOptions(split=False)))) == 1


def test_a_stored_producer_shares_the_kernel_of_the_pieces(build: Builder) -> None:
    """As the gradient of an activation, which matrix products need, and its bias's gradient."""
    at, many = build.at, [8, 1024, 3072]
    for name in ("x", "dy"):
        build.input(name, *many, dtype=BF16)
    slope = lambda i, j, k: op("mul", op("erf", at("x", i, j, k)), at("dy", i, j, k))  # noqa: E731
    build.pointwise("g", many, slope, dtype=BF16)
    build.reduce("db", "sum", [3072], [8, 1024], lambda k, i, j: at("g", i, j, k), dtype=F32)
    made = schedule(build.graph("g", "db"), H200, observe=lambda _, passed: verify_graph(passed))
    assert args_of(made) == [("x", "dy", "g", "db_part"), ("db_part", "db")]


def test_so_does_one_that_the_sum_reads_through_a_view(build: Builder) -> None:
    """As linear layers sum the rows of all sequences of a batch."""
    at, many = build.at, [8, 1024, 3072]
    for name in ("x", "dy"):
        build.input(name, *many, dtype=BF16)
    slope = lambda i, j, k: op("mul", op("erf", at("x", i, j, k)), at("dy", i, j, k))  # noqa: E731
    build.pointwise("g", many, slope, dtype=BF16)
    build.reduce("db", "sum", [3072], [8192], lambda k, r: at("g", r // 1024, r % 1024, k), dtype=F32)
    made = schedule(build.graph("g", "db"), H200, observe=lambda _, passed: verify_graph(passed))
    assert args_of(made) == [("x", "dy", "g", "db_part"), ("db_part", "db")]
    # the sum adds what is stored, so that nothing is needed to more digits than those
    (total,) = [
        n for n in iterate_postorder([s.value for s in made.kernels[0].stores]) if isinstance(n, Reduce)
    ]
    (stored,) = [s.value for s in made.kernels[0].stores if s.value.dtype is BF16]
    assert total.operands[0] is cast(stored, F32)


def test_unrelated_reductions_of_one_shape_are_judged_apart(build: Builder) -> None:
    for name in ("x", "z"):
        build.input(name, 1 << 22, dtype=F32)
        build.reduce(f"s{name}", "sum", [], [1 << 22], lambda r, n=name: build.at(n, r), dtype=F32)
    made = schedule(build.graph("sx", "sz"), H200)
    assert [d.subjects for d in splits(made)] == [("sx",), ("sz",)]


def crossed_sums(build: Builder, n: int, c: int, h: int, w: int, *, last: Sequence[str]) -> Graph:
    """Both sums of a batch norm's backward, of a gradient and an image; `last` has its channels last."""
    at, shape = build.at, [n, c, h, w]
    for name in ("dy", "x"):
        build.input(name, *shape, dtype=BF16, strides=image_strides(n, c, h, w, channels_last=name in last))
    wide = lambda name, i, a, b, d: cast(at(name, a, i, b, d), F32)  # noqa: E731
    build.reduce("total", "sum", [c], [n, h, w], lambda *i: wide("dy", *i), dtype=F32)
    build.reduce("dot", "sum", [c], [n, h, w], lambda *i: op("mul", wide("dy", *i), wide("x", *i)), dtype=F32)
    return build.graph("total", "dot")


@pytest.mark.parametrize("last", ["dy", "x"])
@pytest.mark.parametrize(
    "shape", [(64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14), (128, 3, 224, 224)]
)
def test_sums_of_two_layouts_fill_the_device_from_one_reading(
    build: Builder, last: str, shape: tuple[int, ...]
) -> None:
    """A program has a block of neighbouring results, as half of what is read lies so: blocks are cut."""
    made = schedule(crossed_sums(build, *shape, last=[last]), H200, observe=lambda _, g: verify_graph(g))
    assert [set(args) & {"dy", "x"} for args in args_of(made)] == [{"dy", "x"}, set()]
    parallel, _ = ranges_of(made, 0)
    # the narrowest block is a sector of memory
    assert prod(parallel) // 16 >= H200.multiprocessors


@pytest.mark.parametrize("last", ["dy", "x"])
def test_sums_of_two_layouts_keep_their_numbers(build: Builder, last: str) -> None:
    graph = crossed_sums(build, 8, 4, 16, 16, last=[last])
    made = schedule(graph, EAGER)
    assert len(made.kernels) > 1
    agree(graph, made)


def squared_error(build: Builder, n: int, c: int, h: int, w: int) -> Graph:
    """The sum over everything of what two images, one of them channels-last, differ by."""
    at, shape = build.at, [n, c, h, w]
    for name in ("x", "y"):
        build.input(name, *shape, dtype=BF16, strides=image_strides(n, c, h, w, channels_last=name == "x"))
    wide = lambda name, *i: cast(at(name, *i), F32)  # noqa: E731
    off = lambda *i: op("sub", wide("x", *i), wide("y", *i))  # noqa: E731
    build.reduce("s", "sum", [], shape, lambda *i: op("mul", off(*i), off(*i)), dtype=F32)
    return build.graph("s")


def middle_dots(build: Builder, a: int, b: int, c: int) -> Graph:
    """Sums around a kept axis of a cube times another one, which is turned."""
    at = build.at
    build.input("x", a, b, c, dtype=BF16)
    build.input("y", b, c, a, dtype=BF16)
    wide = lambda name, *i: cast(at(name, *i), F32)  # noqa: E731
    product = lambda j, i, k: op("mul", wide("x", i, j, k), wide("y", j, k, i))  # noqa: E731
    build.reduce("s", "sum", [b], [a, c], product, dtype=F32)
    return build.graph("s")


CROSSED = {
    "everything": lambda build: squared_error(build, 64, 256, 56, 56),
    "few channels": lambda build: squared_error(build, 64, 96, 28, 28),
    "one image": lambda build: squared_error(build, 1, 4096, 64, 64),
    "kept axis": lambda build: middle_dots(build, 512, 256, 512),
    "few results": lambda build: middle_dots(build, 2048, 3, 4096),
    "a square": lambda build: squared_error(build, 1, 16384, 128, 128),
}


@pytest.mark.parametrize("name", CROSSED)
def test_blocks_have_neighbours_of_both_layouts(build: Builder, name: str) -> None:
    """One operand has its neighbours along the rows of a block, the other one along what is summed, so that
    both are read by lines; the pieces lie side by side in memory as well.
    """
    made = schedule(CROSSED[name](build), H200, observe=lambda _, g: verify_graph(g))
    assert ways(made) == ["split-crossed"] and len(made.kernels) == 2
    pieces, _ = made.kernels
    unit = lambda index, r: find_stride(index, r.symbol) == as_expr(1)  # noqa: E731
    loads = [n for n in iterate_postorder([s.value for s in pieces.stores]) if isinstance(n, Load)]
    near = [{r.kind for r in pieces.ranges if unit(load.index[0], r)} for load in loads]
    assert sorted(near, key=min) == [{"parallel"}, {"reduction"}]
    innermost = [r for r in pieces.ranges if r.kind == "parallel"][-1]
    assert unit(pieces.stores[0].index, innermost)
    assert number_of(innermost.symbol.extent) >= H200.machine.memory.fetched_bytes // 2
    # as many blocks of 32 neighbours as multiprocessors, and rows that one program sums up
    parallel, _ = ranges_of(made, 0)
    assert prod(parallel) // 32 >= H200.multiprocessors
    assert prod(ranges_of(made, 1)[1]) <= H200.machine.reductions.most_pieces


def test_an_axis_of_less_than_a_sector_stays_in_each_piece(build: Builder) -> None:
    made = schedule(squared_error(build, 128, 3, 224, 224), H200)
    assert ways(made) == ["split"]
    assert 3 in ranges_of(made, 0)[1]


@pytest.mark.parametrize("shape", [(8, 64, 64), (64, 8, 16)])
def test_a_little_read_across_memory_is_not_worth_a_kernel(build: Builder, shape: tuple[int, ...]) -> None:
    made = schedule(middle_dots(build, *shape), H200)
    assert len(made.kernels) == 1


@pytest.mark.parametrize(("kind", "most"), [("sum", 8192), ("max", 8192), ("welford", 8192), ("sum", 24)])
def test_sums_of_both_layouts_keep_their_numbers(build: Builder, kind: ReduceKind, most: int) -> None:
    """Of an axis whose pieces are single points, or points of one remainder if there would be too many,
    beside pieces of another axis.
    """
    at, shape = build.at, [6, 48, 17, 5]
    for name in ("x", "y"):
        build.input(name, *shape, dtype=BF16, strides=image_strides(*shape, channels_last=name == "x"))
    outputs = ["s", "t"] if kind == "welford" else ["s"]
    body = lambda *i: op("sub", cast(at("x", *i), F32), cast(at("y", *i), F32))  # noqa: E731
    build.reduce(outputs, kind, [], shape, body, dtype=F32)
    graph = build.graph(*outputs)
    reductions = replace(
        EAGER.machine.reductions, lines_per_us=1e-6, least_across=4, most_pieces=most, block_results=16
    )
    machine = replace(EAGER.machine, reductions=reductions)
    made = schedule(graph, replace(EAGER, model=machine), kept_bytes=16)
    assert ways(made) == ["split-crossed"]
    agree(graph, made)


@pytest.mark.parametrize("step", [2, 3])
def test_columns_of_every_second_element_are_columns(build: Builder, step: int) -> None:
    """Neighbours some elements apart share sectors of memory, too."""
    build.input("x", 131072, 512, dtype=BF16, strides=(512 * step, step))
    build.reduce("s", "sum", [512], [131072], lambda i, r: build.at("x", r, i), dtype=F32)
    made = schedule(build.graph("s"), H200)
    pieces = made.kernels[0]
    (load,) = (n for n in iterate_postorder([s.value for s in pieces.stores]) if isinstance(n, Load))
    inner = [r.symbol for r in pieces.ranges if r.kind == "parallel"][-1]
    assert find_stride(load.index[0], inner) == as_expr(step) and len(made.kernels) == 2


def test_rows_and_columns_of_a_square_are_judged_apart(build: Builder) -> None:
    build.input("x", 2048, 2048, dtype=BF16)
    for name, at in (("rows", lambda i, r: (i, r)), ("columns", lambda i, r: (r, i))):
        build.reduce(name, "sum", [2048], [2048], lambda i, r, at=at: build.at("x", *at(i, r)), dtype=F32)
    made = schedule(build.graph("rows", "columns"), H200)
    assert all(len(decision.subjects) == 1 for decision in splits(made))


def test_a_reduction_with_checks_stays_whole(build: Builder) -> None:
    build.input("x", 1 << 22, dtype=F32)
    build.reduce("s", "sum", [], [1 << 22], lambda r: build.at("x", r), dtype=F32)
    (node,) = build.nodes
    assert isinstance(node, ReduceNode)
    build.nodes[0] = replace(
        node, checks=(Check(condition=op("lt", node.body, const(9.0, F32)), message="too large"),)
    )
    assert not splits(schedule(build.graph("s"), H200))


def test_names_of_pieces_are_free(build: Builder) -> None:
    build.input("s_part", 1 << 22, dtype=F32)
    build.reduce("s", "sum", [], [1 << 22], lambda r: build.at("s_part", r), dtype=F32)
    assert args_of(schedule(build.graph("s"), H200)) == [("s_part", "s_part_2"), ("s_part_2", "s")]


def test_pieces_do_not_depend_on_what_else_is_in_the_graph(build: Builder) -> None:
    """Nor on the run: equal arguments give equal text."""
    graph = batch_norm_backward(build, 64, 96, 20, 20, channels_last=True)
    assert len({format_schedule(schedule(graph, H200)) for _ in range(3)}) == 1


@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("kind", ["sum", "welford"])
def test_one_schedule_serves_every_batch(build: Builder, kind: ReduceKind, batch: int) -> None:
    """The batch stays whole in each piece where the image has points enough, else its last pieces
    are short.
    """
    s0 = symbol("s0", lo=1)
    shapes: dict[str, list[Expr | int]] = {"wide": [s0, 40, 40, 8], "flat": [s0, 8]}
    for name, shape in shapes.items():
        build.input(name, *shape, dtype=F32)
    outputs = 2 if kind == "welford" else 1
    for name, rest in (("wide", [40, 40]), ("flat", [])):
        build.reduce(
            [f"{name}{k}" for k in range(outputs)],
            kind,
            [8],
            [s0, *rest],
            lambda i, *r, n=name: build.at(n, *r, i),
            dtype=F32,
        )
    names = [f"{name}{k}" for name in ("wide", "flat") for k in range(outputs)]
    graph = build.graph(*names, symbols=[s0])
    made = schedule(graph, EAGER, ScheduleOptions(size_hints=(("s0", 1000),)))
    assert [d.accepted for d in splits(made)] == [True, True]
    agree(graph, made, {"s0": batch})


@pytest.mark.parametrize("kind", sorted(REDUCE_OPS))
@pytest.mark.parametrize(
    ("rows", "length", "across"), [(2, 4096, False), (1, 12289, False), (3, 4096, True), (2, 5003, True)]
)
def test_scheduled_pieces_give_what_the_graph_gives(
    build: Builder, kind: ReduceKind, rows: int, length: int, across: bool
) -> None:
    """Whole and uneven pieces of rows and columns, through every pass and the interpreter of kernels."""
    dtype = DType.BOOL if kind in ("any", "all") else F32
    build.input("x", *((length, rows) if across else (rows, length)), dtype=dtype)
    names = [f"y{k}" for k in range(REDUCE_OPS[kind].outputs)]
    result = DType.I64 if kind.startswith("arg") else dtype
    if kind == "xor_sum":
        result = DType.I64

    def body(i: Expr, r: Expr) -> Scalar:
        value = build.at("x", r, i) if across else build.at("x", i, r)
        return cast(value, DType.I64) if kind == "xor_sum" else value

    build.reduce(names, kind, [rows], [length], body, dtype=result)
    graph = build.graph(*names)
    made = schedule(graph, EAGER, kept_bytes=16)
    assert [d.accepted for d in splits(made)] == [True]
    agree(graph, made)


def agree(graph: Graph, made: Schedule, sizes: Mapping[str, int] | None = None) -> None:
    """The schedule verifies and gives what the graph gives."""
    verify_schedule(made)
    generator = torch.Generator().manual_seed(0)
    given_values = []
    for entry in graph.inputs:
        assert isinstance(entry, Buffer)
        shape = [evaluate(e, sizes or {}) for e in entry.shape]
        strides = [evaluate(s, sizes or {}) for s in entry.strides]
        kind = {BF16: torch.bfloat16, DType.BOOL: torch.bool}.get(entry.dtype, torch.float32)
        drawn = torch.randint(-3, 4, shape, generator=generator)
        drawn = (
            drawn > -3 if kind is torch.bool else (drawn * 0.25 + (1 if "x" in entry.name else 0)).to(kind)
        )
        given_values.append(torch.empty_strided(shape, strides, dtype=kind).copy_(drawn))
    expected = interpret_graph(graph, [v.clone() for v in given_values])
    got = interpret_schedule(made, [v.clone() for v in given_values])
    for one, other in zip(tensors_of(expected), tensors_of(got), strict=True):
        if one.dtype.is_floating_point:
            torch.testing.assert_close(
                other.double(), one.double(), rtol=2e-2 if one.dtype is torch.bfloat16 else 1e-4, atol=1e-3
            )
        else:
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("points", "open_size", "pieces"),
    [(512, 8, "2*s0"), (197, 64, "s0"), (512, 4096, "16"), (3, 4096, "")],
)
def test_rows_of_open_pictures_are_cut_within_each(points: int, open_size: int, pieces: str) -> None:
    s0 = symbol("s0", lo=2)
    axis = symbol("r0", extent=s0 * points)
    found = cut_axes((axis,), (axis,), {axis: open_size * points}, wanted=16)
    assert found is not None
    (cut,) = found.cuts
    assert cut.even == bool(pieces)
    assert (
        str(cut.count) == (pieces or "16") and multiply_all((cut.count, cut.length)) is s0 * points
    ) or not cut.even


def test_long_pieces_of_unequal_size_are_whole_blocks() -> None:
    """A loop's blocks then need no mask but that of what there is."""
    axis = symbol("r0", extent=16381)
    pieces = cut_axes((axis,), (axis,), {axis: 16381}, wanted=17)
    assert pieces is not None
    (cut,) = pieces.cuts
    assert (as_int(cut.count), as_int(cut.length)) == (16, 1024)


def test_sums_of_pieces_load_zeros_where_there_is_nothing(build: Builder) -> None:
    at = build.at
    build.input("x", 6007, 64, dtype=F32)
    build.reduce("s", "sum", [64], [6007], lambda i, r: at("x", r, i))
    made = schedule(build.graph("s"), EAGER)
    (value,) = [store.value for store in made.kernels[0].stores]
    assert isinstance(value, Reduce)
    assert any(isinstance(node, Load) and node.mask is not None for node in iterate_postorder((value,)))
    assert not any(isinstance(node, Op) and node.op == "where" for node in iterate_postorder((value,)))


def test_maxima_of_pieces_are_lowest_where_there_is_nothing(build: Builder) -> None:
    at = build.at
    build.input("x", 6007, 64, dtype=F32)
    build.reduce("m", "max", [64], [6007], lambda i, r: at("x", r, i))
    made = schedule(build.graph("m"), EAGER)
    (value,) = [store.value for store in made.kernels[0].stores]
    assert any(isinstance(node, Op) and node.op == "where" for node in iterate_postorder((value,)))


@pytest.mark.parametrize(
    ("rows", "columns", "beside"),
    [(4096, 2048, "results"), (16384, 4096, "pieces"), (32 * 56 * 56, 64, "pieces")],
)
def test_results_of_a_piece_lie_together_where_storing_them_is_much_of_its_time(
    build: Builder, rows: int, columns: int, beside: str
) -> None:
    """That is: not where more is read than stays in a cache, nor where so many pieces want a program that
    walks along them.
    """
    build.input("x", rows, columns, dtype=BF16)
    build.reduce("s", "sum", [columns], [rows], lambda i, r: cast(build.at("x", r, i), F32))
    made = schedule(build.graph("s"), H200)
    (store,) = made.kernels[0].stores
    ranges = {r.symbol: number_of(r.symbol.extent) for r in made.kernels[0].ranges if r.kind == "parallel"}
    (nearest,) = [r for r in ranges if find_stride(store.index, r) == as_expr(1)]
    assert (ranges[nearest] == columns) is (beside == "results")
