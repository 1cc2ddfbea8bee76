"""What computes convolutions: calls of libraries, and sums over windows where these are faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Unpack

import pytest
import torch
from declared import ScheduleFields
from torch import Tensor
from torch.nn import functional

from coilwork_ir.buffers import Buffer, ListValue, Ref, make_contiguous_strides
from coilwork_ir.conformance import check_convolutions, format_failures
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernels import Decision, Kernel, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Body, Convolution, Extern, Graph, Node, Pointwise, View, Window
from coilwork_ir.loops.convolutions import make_result
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.layouts import make_nested_strides
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import const, load, op
from coilwork_ir.target import TARGETS, Targets
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_scheduler.contractions.convolutions import AtenConvolution
from coilwork_scheduler.contractions.depthwise_convolutions import DepthwiseGradientSums, DepthwiseSums
from coilwork_scheduler.contractions.implementations import ImplementationContext
from coilwork_scheduler.contractions.registry import REGISTRY
from coilwork_scheduler.cost_model import RooflineCost
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.options import make_size_hints

GPU, CPU = TARGETS["sm_90"], TARGETS["x86-64-avx512"]
FUNCTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A convolution of single channels, unless `groups` says otherwise."""

    value: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 0
    multiplier: int = 1
    transposed: bool = False

    @property
    def channels(self) -> int:
        return self.value[1]

    @property
    def settings(self) -> dict[str, Any]:
        rank = len(self.kernel)
        given = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return {"groups": self.groups or self.channels} | {k: v[:rank] for k, v in given.items()}

    @property
    def weight(self) -> tuple[int, ...]:
        groups = self.groups or self.channels
        if self.transposed:
            return (self.channels, self.multiplier, *self.kernel)
        return (self.multiplier * self.channels, self.channels // groups, *self.kernel)

    def run(self, value: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        functions = TRANSPOSED if self.transposed else FUNCTIONS
        return functions[len(self.kernel)](value, weight, bias, **self.settings)

    def node(self, value: Body, weight: Body, **fields: Any) -> Convolution:
        rank = len(self.kernel)
        lists = (self.stride[:rank], self.padding[:rank], self.dilation[:rank])
        return Convolution(
            value=value,
            weight=weight,
            windows=tuple(Window(stride=s, padding=p, dilation=d) for s, p, d in zip(*lists, strict=True)),
            groups=self.groups or self.channels,
            transposed=self.transposed,
            accumulate=DType.F64 if value.value.dtype is DType.F64 else DType.F32,
            **fields,
        )


CASES = {
    "causal": Case(value=(2, 6, 17), kernel=(4,), padding=(3,)),
    "square": Case(value=(2, 6, 9, 11), kernel=(3, 3), padding=(1, 1)),
    "steps": Case(value=(2, 6, 9, 11), kernel=(5, 5), padding=(2, 2), stride=(2, 2)),
    "uneven": Case(
        value=(2, 6, 9, 11), kernel=(3, 5), padding=(0, 2), stride=(2, 1), dilation=(2, 1), multiplier=3
    ),
    "one tap": Case(value=(2, 6, 4, 5), kernel=(1, 1)),
    "wide border": Case(value=(2, 6, 2, 2), kernel=(3, 3), padding=(4, 4)),
    "one row": Case(value=(1, 6, 1, 7), kernel=(3, 3), padding=(1, 0), multiplier=2),
    "volume": Case(value=(2, 6, 4, 5, 6), kernel=(2, 2, 2), padding=(1, 1, 1)),
    "wide": Case(value=(2, 6, 9, 11), kernel=(5, 5), padding=(2, 2)),
}


def drawn(shape: Sequence[int], dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def buffer(name: str, shape: Sequence[int], dtype: DType, *, channels_last: bool = False) -> Buffer:
    sizes = tuple(map(as_expr, shape))
    order = (0, *range(2, len(sizes)), 1)
    strides = make_nested_strides(sizes, order) if channels_last else make_contiguous_strides(sizes)
    return Buffer(name=name, dtype=dtype, shape=sizes, strides=strides)


def ranges(prefix: str, shape: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(symbol(f"{prefix}{k}", extent=size) for k, size in enumerate(shape))


def body(prefix: str, given: Buffer, prologue: str = "") -> Body:
    point = ranges(prefix, given.shape)
    value = load(given.name, point, given.dtype)
    return Body(ranges=point, value=op(prologue, value) if prologue else value)


def forward(
    case: Case,
    *,
    bias: bool = True,
    dtype: DType = DType.F64,
    channels_last: bool = False,
    prologue: str = "",
    behind: bool = True,
) -> Graph:
    """The convolution, and `relu` behind it if wanted."""
    result = case.run(torch.empty(case.value), torch.empty(case.weight)).shape
    x = buffer("x", case.value, dtype, channels_last=channels_last)
    w, b = buffer("w", case.weight, dtype), buffer("b", (result[1],), dtype)
    y = buffer("y", result, dtype, channels_last=channels_last)
    wide = DType.F64 if dtype is DType.F64 else DType.F32
    node = case.node(
        body("x", x, prologue),
        body("w", w),
        outputs=(y,),
        epilogue=make_result(ranges("i", y.shape), "b" if bias else "", dtype=dtype, accumulate=wide),
    )
    nodes: list[Node] = [node]
    if behind:
        z, point = replace(y, name="z"), ranges("i", y.shape)
        value = op("maximum", load("y", point, dtype), const(0.0, dtype))
        nodes.append(Pointwise(output=z, ranges=point, body=value))
    return made_graph((x, w, *((b,) if bias else ())), nodes, ["z" if behind else "y"])


def backward(case: Case, wanted: tuple[bool, bool, bool], prologue: str = "") -> Graph:
    result = case.run(torch.empty(case.value), torch.empty(case.weight)).shape
    x, w, g = (buffer(n, s, DType.F64) for n, s in zip("xwg", (case.value, case.weight, result), strict=True))
    all_outputs = (replace(x, name="dx"), replace(w, name="dw"), buffer("db", (result[1],), DType.F64))
    outputs = tuple(o if want else None for o, want in zip(all_outputs, wanted, strict=True))
    node = case.node(body("x", x, prologue), body("w", w), outputs=outputs, gradient=body("g", g))
    return made_graph((x, w, g), [node], [o.name for o in outputs if o is not None])


def made_graph(inputs: Sequence[Buffer], nodes: Sequence[Node], outputs: Sequence[str]) -> Graph:
    graph = Graph(
        name="g", inputs=tuple(inputs), nodes=tuple(nodes), outputs=tuple(Ref(name) for name in outputs)
    )
    verify_graph(graph)
    return graph


def scheduled(graph: Graph, target: str = "sm_90", **options: Unpack[ScheduleFields]) -> Schedule:
    made = schedule(graph, TARGETS[target], ScheduleOptions(**options))
    verify_schedule(made)
    return made


def calls(made: Schedule) -> list[Extern]:
    return [step for step in made.steps if isinstance(step, Extern)]


def decisions(made: Schedule) -> list[Decision]:
    return [one for one in made.decisions if one.rule == "convolution"]


def surroundings(graph: Graph) -> ImplementationContext:
    return ImplementationContext(
        graph=graph,
        facts=analyse(graph),
        views={},
        name=lambda wanted: wanted,
        targets=Targets(main=GPU),
        model=RooflineCost(target=GPU),
        sizes=make_size_hints(ScheduleOptions()),
        options=ScheduleOptions(),
    )


def given(graph: Graph) -> list[Tensor]:
    found = []
    for one in graph.inputs:
        assert isinstance(one, Buffer)
        shape, strides = ([size.value for size in sizes] for sizes in (one.shape, one.strides))
        dense = drawn(shape, torch_dtype(one.dtype))
        found.append(torch.empty_strided(shape, strides, dtype=dense.dtype).copy_(dense))
    return found


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_single_channels_are_sums_over_windows(case: Case, bias: bool) -> None:
    graph = forward(case, bias=bias)
    made = scheduled(graph)
    assert not calls(made) and len(made.kernels) == 1
    inputs = given(graph)
    (found,) = interpret_schedule(made, inputs)
    torch.testing.assert_close(found, case.run(*inputs).relu())
    (decision,) = decisions(made)
    assert decision.accepted and {"kernel_us", "call_us"} <= dict(decision.numbers).keys()


@pytest.mark.parametrize("dtype", [DType.F64, DType.BF16], ids=lambda one: one.text)
def test_side_by_side_channels_have_their_weights_laid_out_anew(dtype: DType) -> None:
    case = CASES["square"]
    graph = forward(case, dtype=dtype, channels_last=True)
    made = scheduled(graph)
    assert not calls(made) and len(made.kernels) == 2
    inputs = given(graph)
    (found,) = interpret_schedule(made, inputs)
    assert isinstance(found, Tensor) and found.is_contiguous(memory_format=torch.channels_last)
    expected = case.run(*(one.double() for one in inputs)).relu()
    torch.testing.assert_close(found, expected.to(torch_dtype(dtype)))


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "channels_last", "generated"),
    [
        ((128, 96, 56, 56), (3, 3), 1, False, True),
        ((128, 96, 56, 56), (7, 7), 1, True, False),
        ((128, 96, 56, 56), (5, 5), 2, True, True),
        ((128, 96, 56, 56), (5, 5), 2, False, False),
        ((1, 384, 14, 14), (7, 7), 1, True, True),
        ((1, 384, 14, 14), (9, 9), 1, True, False),
    ],
)
def test_many_taps_of_large_images_are_left_to_a_library(
    shape: tuple[int, ...], kernel: tuple[int, ...], stride: int, channels_last: bool, generated: bool
) -> None:
    case = Case(value=shape, kernel=kernel, stride=(stride, stride))
    graph = forward(case, dtype=DType.F32, channels_last=channels_last, behind=False)
    (node,) = graph.nodes
    assert isinstance(node, Convolution)
    row = DepthwiseSums(surroundings(graph))
    offered = row.claims(node, GPU) is None and row.quote(node, GPU).us < inf
    assert offered == generated
    if offered:
        assert row.quote(node, GPU).us < AtenConvolution(surroundings(graph)).quote(node, GPU).us


LIBRARY_CASES = {
    "mixed channels": Case(value=(2, 6, 9, 9), kernel=(3, 3), groups=3),
    "transposed": Case(value=(2, 6, 9, 9), kernel=(3, 3), transposed=True, stride=(2, 1)),
    "a row": Case(value=(2, 6, 9), kernel=(3,), groups=1, padding=(1,)),
}


@pytest.mark.parametrize("case", LIBRARY_CASES.values(), ids=LIBRARY_CASES.keys())
def test_what_else_is_a_call_of_a_library(case: Case) -> None:
    """On accelerators a bias is added by what follows the call; on CPUs it is the library's."""
    graph = forward(case)
    inputs = given(graph)
    for target, bias, kernels in (("sm_90", None, 1), ("gfx942", None, 1), ("x86-64-avx512", Ref("b"), 1)):
        made = scheduled(graph, target)
        (call,) = calls(made)
        assert call.target == "aten.convolution.default" and len(made.kernels) == kernels
        assert call.args[:3] == (Ref("x"), Ref("w"), bias) and call.fresh
        (found,) = interpret_schedule(made, inputs)
        torch.testing.assert_close(found, case.run(*inputs).relu())


def test_cpus_leave_single_channels_to_a_library() -> None:
    graph = forward(CASES["square"])
    made = scheduled(graph, "x86-64-avx512")
    (call,) = calls(made)
    pairs = [ListValue((1, 1)), ListValue((1, 1)), ListValue((1, 1)), False, ListValue((0, 0)), 6]
    assert call.args == (Ref("x"), Ref("w"), Ref("b"), *pairs)
    assert not decisions(made), "no kernel claims it"


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, False, False)], ids=str)
@pytest.mark.parametrize("case", [CASES["wide"], *LIBRARY_CASES.values()])
def test_gradients_are_one_call(case: Case, wanted: tuple[bool, bool, bool], target: str) -> None:
    """What one gradient does not depend on is an argument all the same: libraries ask how it lies. On
    accelerators the bias's is a sum, for which what makes the result's gradient has room.
    """
    sums_apart = wanted[2] and target == "sm_90"
    graph = backward(case, wanted)
    made = scheduled(graph, target)
    (call,) = calls(made)
    assert call.target == "aten.convolution_backward.default" and len(made.kernels) == sums_apart
    of_call = (*wanted[:2], wanted[2] and not sums_apart)
    assert call.args[:3] == (Ref("g"), Ref("x"), Ref("w")) and call.args[-1] == ListValue(of_call)
    x, w, g = given(graph)
    leaves = [x.requires_grad_(), w.requires_grad_(), torch.zeros(g.shape[1]).double().requires_grad_()]
    expected = torch.autograd.grad(case.run(*leaves), leaves, g)
    found = interpret_schedule(made, [x.detach(), w.detach(), g])
    torch.testing.assert_close(found, [one for one, want in zip(expected, wanted, strict=True) if want])


GRADIENT_CASES = {
    "causal": CASES["causal"],
    "square": CASES["square"],
    "steps": replace(CASES["steps"], kernel=(3, 3), padding=(1, 1)),
    "steps behind an even end": replace(CASES["steps"], value=(2, 6, 10, 8), kernel=(3, 3), padding=(1, 0)),
    "dilated": replace(CASES["uneven"], kernel=(3, 3), multiplier=1),
    "wide border": CASES["wide border"],
    "one row": replace(CASES["one row"], multiplier=1),
    "volume": CASES["volume"],
}


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, False, False)], ids=str)
@pytest.mark.parametrize("case", GRADIENT_CASES.values(), ids=GRADIENT_CASES.keys())
def test_gradients_of_single_channels_are_sums(case: Case, wanted: tuple[bool, bool, bool]) -> None:
    graph = backward(case, wanted)
    (node,) = graph.nodes
    assert isinstance(node, Convolution)
    names = map("made{}".format, itertools.count())
    row = DepthwiseGradientSums(replace(surroundings(graph), name=lambda wanted: next(names)))
    assert row.claims(node, GPU) is None
    sums = replace(graph, nodes=row.build(node, GPU))
    verify_graph(sums)
    x, w, g = given(graph)
    leaves = [x.requires_grad_(), w.requires_grad_(), torch.zeros(g.shape[1]).double().requires_grad_()]
    expected = torch.autograd.grad(case.run(*leaves), leaves, g)
    found = interpret_graph(sums, [x.detach(), w.detach(), g])
    torch.testing.assert_close(found, [one for one, want in zip(expected, wanted, strict=True) if want])


def test_gradients_of_large_images_are_sums() -> None:
    """One kernel reads both tensors for all taps of the weight's gradient."""
    case = Case(value=(16, 64, 64, 64), kernel=(3, 3), padding=(1, 1))
    made = scheduled(backward(case, (True, True, False)))
    assert not calls(made)
    reading = [k for k in made.kernels if len([a for a in k.args if a.role == "out"]) == 9]
    assert len(reading) == 2, "sums of pieces, and of their sums"
    (decision,) = decisions(made)
    assert decision.accepted and {"kernel_us", "call_us"} <= dict(decision.numbers).keys()


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=lambda one: one.text)
def test_what_no_library_takes_is_loops(dtype: DType, target: str) -> None:
    """An operand that is computed: 0 outside of the image, whatever the prologue makes of 0."""
    case = replace(LIBRARY_CASES["mixed channels"], padding=(1, 1))
    graph = forward(case, dtype=dtype, prologue="exp")
    made = scheduled(graph, target)
    assert not calls(made) and made.kernels
    (decision,) = decisions(made)
    assert decision.accepted and "no library" in decision.reason
    x, w, b = inputs = given(graph)
    (found,) = interpret_schedule(made, inputs)
    expected = case.run(x.exp().float(), w.float(), b.float()).relu().to(torch_dtype(dtype))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("case", LIBRARY_CASES.values(), ids=LIBRARY_CASES.keys())
def test_gradients_that_no_library_takes_are_loops(case: Case) -> None:
    graph = backward(case, (True, True, True), prologue="exp")
    made = scheduled(graph)
    assert not calls(made)
    inputs = given(graph)
    torch.testing.assert_close(interpret_schedule(made, inputs), interpret_graph(graph, inputs))


VIEWS = {
    # every second column, from the second row on
    "sliced": ((2, 6, 10, 12), (720, 120, 12, 2), 12, (2, 6, 9, 6)),
    "turned": ((2, 6, 7, 9), (378, 63, 1, 7), 0, (2, 6, 9, 7)),
    "one of two": ((2, 12, 5, 6), (360, 30, 6, 1), 180, (2, 6, 5, 6)),
    "reshaped": ((2, 378), (378, 63, 9, 1), 0, (2, 6, 7, 9)),
    "every sixth": ((2, 7, 9, 6), (378, 1, 54, 6), 0, (2, 6, 7, 9)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_sums_read_views_where_their_memory_lies(name: str) -> None:
    """What computes the memory of a view joins the sum."""
    source, strides, offset, shape = VIEWS[name]
    case = Case(value=shape, kernel=(3, 3), padding=(1, 1))
    plain = forward(case, behind=False)
    x, *others = plain.inputs
    assert isinstance(x, Buffer)
    memory = buffer("m", source, DType.F64)
    computed, point = replace(memory, name="c"), ranges("i", memory.shape)
    view = replace(x, strides=tuple(map(as_expr, strides)))
    nodes: list[Node] = [
        Pointwise(output=computed, ranges=point, body=op("neg", load("m", point, DType.F64))),
        View(output=view, source="c", offset=as_expr(offset)),
        *plain.nodes,
    ]
    graph = made_graph([memory, *(one for one in others if isinstance(one, Buffer))], nodes, ["y"])
    made = scheduled(graph)
    assert not calls(made) and len(made.kernels) == 1
    (kernel,) = made.kernels
    assert isinstance(kernel, Kernel)
    inputs = given(graph)
    (found,) = interpret_schedule(made, inputs)
    value = (-inputs[0]).as_strided(shape, strides, offset)
    torch.testing.assert_close(found, case.run(value, *inputs[1:]))


def test_each_row_says_what_it_does_not_compute() -> None:
    assert REGISTRY.convolutions == (AtenConvolution, DepthwiseSums, DepthwiseGradientSums)

    def said(graph: Graph, row: type[AtenConvolution | DepthwiseSums], target: str = "sm_90") -> str | None:
        (node,) = graph.nodes
        assert isinstance(node, Convolution)
        return row(surroundings(graph)).claims(node, TARGETS[target])

    square = forward(CASES["square"], behind=False)
    assert said(square, AtenConvolution) is None and said(square, DepthwiseSums) is None
    assert (
        said(square, DepthwiseSums, "x86-64-avx512") == "libraries for CPUs convolve single channels as fast"
    )
    mixed = forward(LIBRARY_CASES["mixed channels"], behind=False)
    assert said(mixed, DepthwiseSums) == "channels are mixed"
    turned = forward(LIBRARY_CASES["transposed"], behind=False)
    assert said(turned, DepthwiseSums) == "it is no forward convolution"
    large = forward(Case(value=(2, 6, 30, 30), kernel=(9, 9)), behind=False)
    assert said(large, DepthwiseSums) == "windows are large"
    computed = forward(CASES["square"], prologue="exp", behind=False)
    assert said(computed, AtenConvolution) == "a library reads operands as they lie in memory"
    assert said(computed, DepthwiseSums) == "operands and results are computed"


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
def test_the_conformance_kit_passes(target: str) -> None:
    results = check_convolutions(lambda graph, inputs: interpret_schedule(scheduled(graph, target), inputs))
    assert not format_failures(results) and {one.status for one in results} == {"passed"}
