"""Templates: a kernel of our own computes a convolution or attention as one node.

A template is one class. Nothing else of the scheduler knows it; what it takes runs in the kernel interpreter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import pytest
import torch
from declared import ScheduleFields, declare, schedule
from torch import Tensor
from torch.nn import functional

from coilwork_ir.buffers import Ref
from coilwork_ir.conformance import CONVOLUTION_CASES, check_attention, check_convolutions, format_failures
from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel, KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore, ConvolutionCore, Numerics
from coilwork_ir.kernels.text import format_schedule, parse_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Attention, AttentionGradient, Convolution, Extern, Graph
from coilwork_ir.loops.access import list_defined_buffers, list_read_buffers
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import Op, iterate_postorder, list_loads
from coilwork_ir.target import TARGETS, Target, Targets
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote
from coilwork_scheduler.contractions.registry import REGISTRY, CoreNode, explain_no_core

KINDS = frozenset({"convolution", "attention", "attention-gradient"})


@dataclass(frozen=True, slots=True)
class WindowsInBlocks:
    """A template: convolutions of forward, products of their windows block by block."""

    context: ImplementationContext

    def claims(self, node: CoreNode, target: Target) -> str | None:
        if not isinstance(node, Convolution) or node.gradient is not None or node.transposed:
            return "no convolution of forward"
        if any(isinstance(v, Op) and v.op == "tanh" for v in iterate_postorder((node.weight.value,))):
            return "weights are copied as they lie"
        return None

    def quote(self, node: CoreNode, target: Target) -> Quote:
        context = self.context
        given = sum(
            context.size(context.facts.buffers[name])
            for name in list_read_buffers(node)
            if name in context.facts.buffers
        )
        us = context.move_us(given, sum(context.size(buffer) for buffer in list_defined_buffers(node)))
        return Quote(us=0.5 * us, reason="windows are read once", numbers={"template_us": us})

    def least_gain_us(self, node: CoreNode, rival: Quote) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Attend:
    """A template: attention with an online softmax, with any score and any mask, and its gradient."""

    context: ImplementationContext

    def claims(self, node: CoreNode, target: Target) -> str | None:
        return "no attention" if isinstance(node, Convolution) else None

    def quote(self, node: CoreNode, target: Target) -> Quote:
        context = self.context
        given = sum(context.size(context.facts.buffers[name]) for name in list_read_buffers(node))
        us = context.move_us(given, sum(context.size(buffer) for buffer in list_defined_buffers(node)))
        return Quote(us=0.5 * us, reason="scores stay on chip", numbers={"template_us": us})

    def least_gain_us(self, node: CoreNode, rival: Quote) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Anything:
    """A template that takes whatever a kernel can have as its core."""

    context: ImplementationContext

    def claims(self, node: CoreNode, target: Target) -> str | None:
        return explain_no_core(node)

    def quote(self, node: CoreNode, target: Target) -> Quote:
        return Quote(us=0.0, reason="always")

    def least_gain_us(self, node: CoreNode, rival: Quote) -> float:
        return 0.0


def targets(name: str, kinds: frozenset[str] = KINDS) -> Targets:
    return declare(TARGETS[name], cores=kinds)


def scheduled(
    graph: Graph,
    *templates: type,
    target: str = "sm_90",
    kinds: frozenset[str] = KINDS,
    **options: Unpack[ScheduleFields],
) -> Schedule:
    verify_graph(graph)
    made = schedule(
        graph,
        targets(target, kinds),
        ScheduleOptions(**options),
        registry=replace(REGISTRY, templates=templates),
    )
    verify_schedule(made)
    text = format_schedule(made)
    assert format_schedule(parse_schedule(text)) == text
    return made


def kernels_of(made: Schedule) -> list[Kernel]:
    by_name = {kernel.name: kernel for kernel in made.kernels}
    return [by_name[step.kernel] for step in made.steps if isinstance(step, KernelCall)]


def decided(made: Schedule, rule: str) -> list[tuple[tuple[str, ...], bool]]:
    return [(d.subjects, d.accepted) for d in made.decisions if d.rule == rule]


def run(made: Schedule, inputs: Sequence[Tensor]) -> list[Tensor]:
    found = interpret_schedule(made, [value.clone() for value in inputs])
    assert all(isinstance(value, Tensor) for value in found)
    return [value for value in found if isinstance(value, Tensor)]


CONVOLUTION = """graph @g {
  input %x: f32[2, 4, 9, 8]
  input %w: f32[6, 2, 3, 3]
  input %s: f32[4]
  input %b: f32[6]
  input %e: f32[2, 6, 5, 8]
  %n: f32[2, 4, 9, 8] = pointwise [i0: 2, i1: 4, i2: 9, i3: 8] {
    t0 = load %x[i0, i1, i2, i3] : f32
    t1 = exp(t0)
    t2 = load %s[i1] : f32
    t3 = mul(t1, t2)
    yield t3
  }
  (%c: f32[2, 6, 5, 8]) =
      convolve f32 (stride 2 padding 1 dilation 1, stride 1 padding 1 dilation 1) groups 2 {
    value [x0: 2, x1: 4, x2: 9, x3: 8]
    weight [w0: 6, w1: 2, w2: 3, w3: 3]
    result [y0: 2, y1: 6, y2: 5, y3: 8]
    t0 = load %n[x0, x1, x2, x3] : f32
    t1 = load %w[w0, w1, w2, w3] : f32
    t2 = parameter 0 : f32
    t3 = load %b[y1] : f32
    t4 = add(t2, t3)
    multiply t0, t1
    yield t4
  }
  %r: f32[2, 6, 5, 8] = pointwise [i0: 2, i1: 6, i2: 5, i3: 8] {
    t0 = load %c[i0, i1, i2, i3] : f32
    t1 = load %e[i0, i1, i2, i3] : f32
    t2 = add(t0, t1)
    t3 = tanh(t2)
    yield t3
  }
  return (%r)
}
"""


def convolution_inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 9, 8), (6, 2, 3, 3), (4,), (6,), (2, 6, 5, 8))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("numerics", ["fast", "eager", "strict"])
def test_a_convolution_is_one_kernel_with_its_neighbours(target: str, numerics: Numerics) -> None:
    made = scheduled(parse_graph(CONVOLUTION), WindowsInBlocks, target=target, numerics=numerics)
    (kernel,) = kernels_of(made)
    core = kernel.core
    assert isinstance(core, ConvolutionCore) and core.makes == "features" and core.groups == 2
    # the prologue is a body of the operand, and the residual's sum and the activation are the epilogue
    assert {v.op for v in iterate_postorder(core.bodies) if isinstance(v, Op)} == {"exp", "mul"}
    assert {v.op for v in iterate_postorder((kernel.stores[0].value,)) if isinstance(v, Op)} == {
        "add",
        "tanh",
    }
    assert decided(made, "convolution") == [(("c",), True)]
    assert decided(made, "absorb") == [(("n",), True), (("r",), True)]
    x, w, s, b, e = inputs = convolution_inputs()
    value = x.exp() * s[:, None, None]
    eager = torch.tanh(functional.conv2d(value, w, b, stride=(2, 1), padding=1, groups=2) + e)
    torch.testing.assert_close(run(made, inputs), [eager])


def test_a_neighbour_that_the_template_does_not_claim_stays_apart() -> None:
    text = CONVOLUTION.replace("load %w[w0", "load %v[w0").replace(
        "  (%c:",
        """  %v: f32[6, 2, 3, 3] = pointwise [i0: 6, i1: 2, i2: 3, i3: 3] {
    t0 = load %w[i0, i1, i2, i3] : f32
    t1 = tanh(t0)
    yield t1
  }
  (%c:""",
    )
    made = scheduled(parse_graph(text), WindowsInBlocks)
    assert [kernel.core is not None for kernel in kernels_of(made)] == [False, True]
    assert dict(decided(made, "absorb"))[("v",)] is False
    x, w, s, b, e = inputs = convolution_inputs()
    value = x.exp() * s[:, None, None]
    eager = torch.tanh(functional.conv2d(value, w.tanh(), b, stride=(2, 1), padding=1, groups=2) + e)
    torch.testing.assert_close(run(made, inputs), [eager])


@pytest.mark.parametrize(
    ("limits", "kernels"), [({"max_args": 5}, 2), ({"max_args": 4}, 3), ({"max_ops": 1}, 3)]
)
def test_a_kernel_grows_no_larger_than_others_may(limits: ScheduleFields, kernels: int) -> None:
    made = scheduled(parse_graph(CONVOLUTION), WindowsInBlocks, **limits)
    assert len(kernels_of(made)) == kernels
    assert all(len(kernel.args) <= limits.get("max_args", 64) for kernel in made.kernels)
    inputs = convolution_inputs()
    torch.testing.assert_close(run(made, inputs), interpret_graph(parse_graph(CONVOLUTION), inputs))


@pytest.mark.parametrize(
    "change",
    [
        # another reads the result, too
        ("return (%r)", "return (%r, %c)"),
        # the reader is not at the same points
        ("load %c[i0, i1, i2, i3]", "load %c[i0, i1, 4 - i2, i3]"),
    ],
)
def test_a_result_that_is_read_otherwise_is_stored(change: tuple[str, str]) -> None:
    graph = parse_graph(CONVOLUTION.replace(*change))
    made = scheduled(graph, WindowsInBlocks)
    assert [kernel.core is not None for kernel in kernels_of(made)] == [True, False]
    inputs = convolution_inputs()
    torch.testing.assert_close(run(made, inputs), interpret_graph(graph, inputs))


def test_a_producer_that_is_overwritten_meanwhile_is_stored() -> None:
    text = CONVOLUTION.replace(
        "  (%c:",
        """  %x2: f32[2, 4, 9, 8] = pointwise [i0: 2, i1: 4, i2: 9, i3: 8] into %x {
    t0 = const 0.0 : f32
    yield t0
  }
  (%c:""",
    )
    graph = parse_graph(text)
    made = scheduled(graph, WindowsInBlocks)
    assert (("n",), True) not in decided(made, "absorb")
    inputs = convolution_inputs()
    torch.testing.assert_close(run(made, inputs), interpret_graph(graph, [v.clone() for v in inputs]))


def test_without_templates_or_capabilities_all_is_as_before() -> None:
    graph = parse_graph(CONVOLUTION)
    plain = schedule(graph, declare(TARGETS["sm_90"]), ScheduleOptions())
    for made in (scheduled(graph), scheduled(graph, WindowsInBlocks, kinds=frozenset({"attention"}))):
        assert format_schedule(made) == format_schedule(plain)
    assert [step.target for step in plain.steps if isinstance(step, Extern)] == ["aten.convolution.default"]


ATTENTION = """graph @g {
  input %x: f32[2, 4, 9, 8]
  input %k: f32[2, 2, 11, 8]
  input %v: f32[2, 2, 11, 6]
  input %h: f32[4]
  input %g: f32[2, 4, 9, 6]
  %q: f32[2, 4, 9, 8] = pointwise [i0: 2, i1: 4, i2: 9, i3: 8] {
    t0 = load %x[i0, i1, i2, i3] : f32
    t1 = tanh(t0)
    yield t1
  }
  %b: f32[4, 9, 11] = pointwise [i0: 4, i1: 9, i2: 11] {
    t0 = load %h[i0] : f32
    t1 = index [i2 - i1]
    t2 = cast(t1) : f32
    t3 = mul(t0, t2)
    yield t3
  }
  (%o: f32[2, 4, 9, 6], %l: f32[2, 4, 9]) = attention f32 [i0: 2, i1: 4, i2: 9, i3: 6 | r0: 11, r1: 8] {
    t0 = load %q[i0, i1, i2, r1] : f32
    t1 = load %k[i0, i1 // 2, r0, r1] : f32
    t2 = load %v[i0, i1 // 2, r0, i3] : f32
    t3 = parameter 0 : f32
    t4 = const 0.25 : f32
    t5 = mul(t3, t4)
    t6 = load %b[i1, i2, r0] : f32
    t7 = add(t5, t6)
    t8 = index [r0]
    t9 = index [i2 + 2]
    t10 = le(t8, t9)
    query t0, key t1, value t2
    score t7
    mask t10
    logsumexp at [i0, i1, i2]
  }
  %y: f32[2, 4, 9, 6] = pointwise [i0: 2, i1: 4, i2: 9, i3: 6] {
    t0 = load %o[i0, i1, i2, i3] : f32
    t1 = load %g[i0, i1, i2, i3] : f32
    t2 = sigmoid(t1)
    t3 = mul(t0, t2)
    yield t3
  }
  return (%y, %l)
}
"""


def attention_inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 9, 8), (2, 2, 11, 8), (2, 2, 11, 6), (4,), (2, 4, 9, 6))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
def test_attention_is_one_kernel_with_its_neighbours(target: str) -> None:
    made = scheduled(parse_graph(ATTENTION), Attend, target=target)
    (kernel,) = kernels_of(made)
    core = kernel.core
    assert isinstance(core, AttentionCore) and len(kernel.stores) == 2
    # the query's prologue, the bias in the score, and the gate behind
    assert any(isinstance(v, Op) and v.op == "tanh" for v in iterate_postorder((core.weights.query,)))
    assert {access.buffer for access in list_loads((core.weights.score,))} == {"in3"}
    assert any(isinstance(v, Op) and v.op == "sigmoid" for v in iterate_postorder((kernel.stores[0].value,)))
    assert sorted(decided(made, "absorb")) == [(("b",), True), (("q",), True), (("y",), True)]
    x, k, v, h, g = inputs = attention_inputs()
    place = torch.arange(11) - torch.arange(9)[:, None]
    scores = 0.25 * x.tanh() @ k.repeat_interleave(2, 1).mT + h[:, None, None] * place
    scores = scores.masked_fill(place > 2, float("-inf"))
    eager = scores.softmax(-1) @ v.repeat_interleave(2, 1) * g.sigmoid()
    torch.testing.assert_close(run(made, inputs), [eager, scores.logsumexp(-1)])


def test_a_logsumexp_that_nobody_reads_is_not_stored() -> None:
    graph = parse_graph(ATTENTION.replace("(%y, %l)", "(%y)"))
    made = scheduled(graph, Attend)
    (kernel,) = kernels_of(made)
    assert len(kernel.stores) == 1
    inputs = attention_inputs()
    torch.testing.assert_close(run(made, inputs), interpret_graph(graph, inputs))


def test_an_attention_whose_logsumexp_is_read_before_the_epilogue_keeps_that_apart() -> None:
    text = ATTENTION.replace(
        "  %y: f32",
        """  (%m: f32[2, 4]) = reduce max [i0: 2, i1: 4 | r0: 9] {
    t0 = load %l[i0, i1, r0] : f32
    yield t0
  }
  %y: f32""",
    ).replace("(%y, %l)", "(%y, %m)")
    graph = parse_graph(text)
    made = scheduled(graph, Attend)
    assert (("y",), True) not in decided(made, "absorb")
    inputs = attention_inputs()
    torch.testing.assert_close(run(made, inputs), interpret_graph(graph, inputs))


def test_what_an_epilogue_says_is_computed_without_a_template_too() -> None:
    """An attention with an epilogue that no template takes is a library's or loops, the rest behind it."""
    text = ATTENTION.replace("    logsumexp at", "    yield t12\n    logsumexp at").replace(
        "    query t0", "    t11 = parameter 0 : f32\n    t12 = tanh(t11)\n    query t0"
    )
    graph = parse_graph(text)
    inputs = attention_inputs()
    torch.testing.assert_close(run(scheduled(graph), inputs), interpret_graph(graph, inputs))
    torch.testing.assert_close(run(scheduled(graph, Attend), inputs), interpret_graph(graph, inputs))


def test_operands_of_a_gradient_stay_loads() -> None:
    graph = parse_graph(
        """graph @g {
  input %x: f32[3, 5, 4]
  input %k: f32[3, 7, 4]
  input %v: f32[3, 7, 6]
  input %p: f32[3, 5, 6]
  input %o: f32[3, 5, 6]
  input %l: f32[3, 5]
  %q: f32[3, 5, 4] = pointwise [i0: 3, i1: 5, i2: 4] {
    t0 = load %x[i0, i1, i2] : f32
    t1 = tanh(t0)
    yield t1
  }
  %g: f32[3, 5, 6] = pointwise [i0: 3, i1: 5, i2: 6] {
    t0 = load %p[i0, i1, i2] : f32
    t1 = tanh(t0)
    yield t1
  }
  (%dq: f32[3, 5, 4], %dk: f32[3, 7, 4], %dv: f32[3, 7, 6], _) =
      attention_gradient f32 [i0: 3, i1: 5, i2: 6 | r0: 7, r1: 4] {
    t0 = load %q[i0, i1, r1] : f32
    t1 = load %k[i0, r0, r1] : f32
    t2 = load %v[i0, r0, i2] : f32
    t3 = parameter 0 : f32
    t4 = load %o[i0, i1, i2] : f32
    t5 = load %l[i0, i1] : f32
    t6 = load %g[i0, i1, i2] : f32
    t7 = parameter 1 : f32
    query t0, key t1, value t2
    score t3
    output t4, logsumexp t5, gradient t6
    slope t7
  }
  return (%dq, %dk, %dv)
}
"""
    )
    made = scheduled(graph, Attend)
    assert [kernel.core is not None for kernel in kernels_of(made)] == [False, True]
    core = kernels_of(made)[1].core
    assert isinstance(core, AttentionGradientCore)
    assert any(isinstance(v, Op) and v.op == "tanh" for v in iterate_postorder((core.gradient,)))
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 5, 4), (3, 7, 4), (3, 7, 6), (3, 5, 6), (3, 5, 6), (3, 5))
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    torch.testing.assert_close(run(made, inputs), interpret_graph(graph, inputs))


def compute(graph: Graph, inputs: Sequence[Tensor]) -> Sequence[object]:
    made = scheduled(graph, Anything)
    wanted = 0
    for node in graph.nodes:
        if isinstance(node, Convolution):
            # the gradient of a bias is a reduction
            wanted += sum(output is not None for output in node.outputs[:2])
        wanted += isinstance(node, Attention | AttentionGradient)
    assert sum(kernel.core is not None for kernel in kernels_of(made)) == wanted
    return interpret_schedule(made, inputs)


def test_cores_mean_what_nodes_mean() -> None:
    """All convolutions and attentions of the conformance kit, as kernels with cores."""
    results = (*check_convolutions(compute), *check_attention(compute))
    assert not format_failures(results)
    assert all(result.status == "passed" for result in results)


GRADIENTS = [case for case in CONVOLUTION_CASES if case.gradients]


@pytest.mark.parametrize("wanted", ["dx", "dw"])
def test_one_gradient_of_a_convolution_is_a_core(wanted: str) -> None:
    """Of the image and of the weight, forward and transposed, in groups, with prologues."""
    made = set()
    for case in GRADIENTS:
        graph = parse_graph(case.text)
        (node,) = graph.nodes
        assert isinstance(node, Convolution)
        outputs = tuple(o if o is not None and o.name == wanted else None for o in node.outputs)
        graph = replace(graph, nodes=(replace(node, outputs=outputs),), outputs=(Ref(wanted),))
        found = scheduled(graph, Anything)
        (kernel,) = kernels_of(found)
        assert isinstance(kernel.core, ConvolutionCore)
        made.add(kernel.core.makes)
        inputs = case.make()
        torch.testing.assert_close(run(found, inputs), interpret_graph(graph, inputs), rtol=1e-2, atol=1e-2)
    assert made == ({"weight"} if wanted == "dw" else {"image", "features"})


@dataclass(frozen=True, slots=True)
class OfWeights(Anything):
    """A template that makes gradients of weights alone."""

    def claims(self, node: CoreNode, target: Target) -> str | None:
        is_one = isinstance(node, Convolution) and len(node.outputs) == 3 and node.outputs[1] is not None
        return explain_no_core(node) if is_one else "no gradient of a weight"


def test_gradients_are_split_for_templates_that_make_each_of_them() -> None:
    case = next(case for case in GRADIENTS if case.name == "groups-gradients")
    graph, inputs = parse_graph(case.text), case.make()
    made = scheduled(graph, Anything)
    cores = [kernel.core for kernel in kernels_of(made) if kernel.core is not None]
    assert [core.makes for core in cores if isinstance(core, ConvolutionCore)] == ["image", "weight"]
    assert not [step for step in made.steps if isinstance(step, Extern)]
    torch.testing.assert_close(run(made, inputs), interpret_graph(graph, inputs))
    # a library makes all in one call, which a template for some of them does not save
    left = scheduled(graph, OfWeights)
    assert [step.target for step in left.steps if isinstance(step, Extern)] == [
        "aten.convolution_backward.default"
    ]
    assert format_schedule(left) == format_schedule(scheduled(graph))


def test_kernels_of_open_sizes_are_called_with_them() -> None:
    text = CONVOLUTION.replace("graph @g {", "graph @g {\n  symbol s0 in [2, inf]\n  symbol s1 in [3, inf]")
    text = text.replace("[2, 4, 9, 8]", "[s0, 4, s1, 8]").replace(
        "[2, 6, 5, 8]", "[s0, 6, (s1 - 1) // 2 + 1, 8]"
    )
    text = text.replace("0: 2, ", "0: s0, ").replace("2: 9", "2: s1").replace("2: 5", "2: (s1 - 1) // 2 + 1")
    made = scheduled(parse_graph(text), WindowsInBlocks)
    (kernel,) = kernels_of(made)
    assert len(kernel.sizes) == 2 and kernel.core is not None
    inputs = convolution_inputs()
    torch.testing.assert_close(run(made, inputs), run(scheduled(parse_graph(CONVOLUTION)), inputs))


def test_equal_nodes_share_a_kernel() -> None:
    """Layers that are equal but for names are one kernel, called for each of them."""
    graph = parse_graph(
        """graph @g {
  input %x: f32[2, 3, 9]
  input %w: f32[3, 3, 3]
  input %v: f32[3, 3, 3]
"""
        + "".join(
            f"""
  (%c{k}: f32[2, 3, 9]) = convolve f32 (stride 1 padding 1 dilation 1) groups 1 {{
    value [x0: 2, x1: 3, x2: 9]
    weight [w0: 3, w1: 3, w2: 3]
    result [y0: 2, y1: 3, y2: 9]
    t0 = load %{given}[x0, x1, x2] : f32
    t1 = load %{weight}[w0, w1, w2] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }}
  %y{k}: f32[2, 3, 9] = pointwise [i0: 2, i1: 3, i2: 9] {{
    t0 = load %c{k}[i0, i1, i2] : f32
    t1 = tanh(t0)
    yield t1
  }}"""
            for k, given, weight in ((0, "x", "w"), (1, "y0", "v"))
        )
        + "\n  return (%y1)\n}"
    )
    made = scheduled(graph, WindowsInBlocks, aligned_inputs=("x", "w", "v"))
    assert len(made.kernels) == 1 and len(kernels_of(made)) == 2
    generator = torch.Generator().manual_seed(0)
    x, w, v = (torch.randn(shape, generator=generator) for shape in ((2, 3, 9), (3, 3, 3), (3, 3, 3)))
    eager = torch.tanh(functional.conv1d(torch.tanh(functional.conv1d(x, w, padding=1)), v, padding=1))
    torch.testing.assert_close(run(made, [x, w, v]), [eager])


def test_what_is_rounded_between_is_wide_in_fast_numerics_only() -> None:
    """In 16 bits the epilogue goes on from the sum itself; it is rounded before where that is asked for."""
    text = CONVOLUTION.replace("f32", "bf16").replace("convolve bf16", "convolve f32")
    text = text.replace("parameter 0 : bf16", "parameter 0 : f32").replace(
        "    t4 = add(t2, t3)\n    multiply t0, t1\n    yield t4",
        "    t4 = cast(t3) : f32\n    t5 = add(t2, t4)\n    t6 = cast(t5) : bf16\n"
        "    multiply t0, t1\n    yield t6",
    )
    text = text.replace(
        "    t1 = load %e[i0, i1, i2, i3] : bf16\n    t2 = add(t0, t1)\n    t3 = tanh(t2)\n    yield t3",
        "    t1 = cast(t0) : f32\n    t2 = load %e[i0, i1, i2, i3] : bf16\n    t3 = cast(t2) : f32\n"
        "    t4 = add(t1, t3)\n    t5 = cast(t4) : bf16\n    yield t5",
    )
    graph = parse_graph(text)
    inputs = [value.bfloat16() for value in convolution_inputs()]
    expected: tuple[tuple[Numerics, int], ...] = (("fast", 1), ("eager", 2))
    for numerics, roundings in expected:
        made = scheduled(graph, WindowsInBlocks, numerics=numerics)
        (kernel,) = kernels_of(made)
        values = iterate_postorder((kernel.stores[0].value,))
        assert (
            sum(isinstance(v, Op) and v.op == "cast" and v.dtype is DType.BF16 for v in values) == roundings
        )
        if numerics == "eager":
            torch.testing.assert_close(run(made, inputs), interpret_graph(graph, inputs), rtol=0, atol=0)
