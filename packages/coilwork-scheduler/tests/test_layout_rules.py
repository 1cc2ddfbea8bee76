"""The table of the layout pass: what each rule decides, what one more row decides, and copies in front of
calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from coilwork_ir.buffers import Buffer, ListValue, Ref
from coilwork_ir.index import as_expr
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern, Graph, Node
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.layouts import Strides, make_nested_strides
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import TARGETS, Targets, get_target
from coilwork_scheduler import schedule
from coilwork_scheduler.contractions.registry import REGISTRY
from coilwork_scheduler.cost_model import RooflineCost
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.layouts.assign import (
    assign_layouts,
    collect_layout_facts,
    explain_layouts,
    list_sites,
)
from coilwork_scheduler.layouts.constraints import (
    IMPOSSIBLE,
    SCALE,
    Choice,
    Copy,
    LayoutContext,
    LayoutOf,
    LayoutRule,
    Site,
)
from coilwork_scheduler.layouts.one_dimension import widen_convolutions
from coilwork_scheduler.layouts.rules import RULES, format_rules, weigh_attention
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import ScheduleOptions, make_size_hints
from coilwork_scheduler.settings import Settings

DEVICES = ("sm_90", "x86-64-avx512")


def strides_after(
    graph: Graph,
    device: str,
    *,
    options: ScheduleOptions | None = None,
    rules: tuple[LayoutRule, ...] = RULES,
) -> tuple[dict[str, str], Graph, Remarks]:
    """Strides of all buffers as text, behind the pass alone."""
    verify_graph(graph)
    options = options or ScheduleOptions()
    remarks = Remarks(100)
    settings = Settings(
        targets=Targets(main=TARGETS[device]),
        model=RooflineCost(target=TARGETS[device]),
        sizes=make_size_hints(options),
        options=options,
        remarks=remarks,
        registry=REGISTRY,
    )
    after = assign_layouts(graph, analyse(graph), settings, rules)
    verify_graph(after)
    found = {
        b.name: " ".join(str(s) for s in b.strides)
        for node in after.nodes
        for b in list_defined_buffers(node)
    }
    return found, after, remarks


def check_schedule(graph: Graph, device: str) -> None:
    """Schedule `graph`, laid out, as the other passes would."""
    verify_schedule(schedule(graph, get_target(device)))


def survey_of(graph: Graph, device: str) -> LayoutContext:
    return collect_layout_facts(
        graph,
        analyse(graph),
        targets=Targets(main=TARGETS[device]),
        sizes=make_size_hints(ScheduleOptions()),
    )


def test_every_rule_has_a_name_and_a_reason() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    lines = format_rules().splitlines()
    assert [line.split()[0] for line in lines] == [rule.name for rule in RULES]
    assert all(rule.why and not rule.why.endswith(".") for rule in RULES)


# One row more

FLIPPED = """
graph @flipped {
  input %x: f32[640, 480]
  %a: f32[640, 480] = pointwise [i0: 640, i1: 480] {
    t0 = load %x[i0, i1] : f32
    t1 = exp(t0)
    yield t1
  }
  %v: f32[480, 640]{1, 480} = view %a offset `0`
  extern "mylib.columns.default" (%v) custom defines (%y: f32[640])
  return (%y)
}
"""


@dataclass(frozen=True)
class ColumnsSite:
    """A call that reads the columns of the transposed view, and copies rows first."""

    context: LayoutContext
    operand: Buffer
    choices: tuple[Choice, ...] = ()

    @property
    def obliges(self) -> tuple[str, ...]:
        return (self.operand.name,)

    @property
    def memory(self) -> tuple[str, ...]:
        return (self.context.roots[self.operand.name],)

    @property
    def form(self) -> None:
        return None

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        return ()

    def cost(self, layout: LayoutOf) -> int:
        strides = layout(self.memory[0], self.operand)
        if strides is None:
            return IMPOSSIBLE
        return self.least() * (1 if self.context.steps(strides)[-1] == 1 else 8)

    def least(self) -> int:
        return SCALE * self.context.sizes.size_bytes(self.operand)

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        return ()

    def propose(self, root: Buffer) -> Iterable[Strides]:
        return (make_nested_strides(root.shape, (1, 0)),)

    def list_copies(self, layout: LayoutOf) -> tuple[Copy, ...]:
        return ()


def weigh_columns(position: int, node: Node, context: LayoutContext) -> Site | None:
    if not isinstance(node, Extern) or node.target != "mylib.columns.default":
        return None
    (operand,) = (a for a in node.args if isinstance(a, Ref))
    return ColumnsSite(context, context.buffers[operand.name])


@pytest.mark.parametrize("device", DEVICES)
def test_one_row_decides_a_layout(device: str) -> None:
    graph = parse_graph(FLIPPED)
    before, _, _ = strides_after(graph, device)
    assert (before["a"], before["v"]) == ("480 1", "1 480")
    row = LayoutRule(
        name="columns", site=weigh_columns, why="the library reads columns, and copies rows first"
    )
    after, _, remarks = strides_after(graph, device, rules=(*RULES, row))
    assert (after["a"], after["v"]) == ("1 640", "640 1")
    (decision,) = (d for d in remarks.decisions if d.rule == "layout")
    assert decision.accepted and decision.subjects == ("a",)


# Rules of thumb

PRODUCT = """
graph @product {
  input %x: f32[512, 640]
  input %w: f32[512, 384]
  %a: f32[640, 512] = pointwise [i0: 640, i1: 512] {
    t0 = load %x[i1, i0] : f32
    t1 = exp(t0)
    yield t1
  }
  extern "aten.mm.default" (%a, %w) aten implements "product" defines (%y: f32[640, 384]) out "aten.mm.out" \
("out") fresh
  return (%y)
}
"""


@pytest.mark.parametrize("device", DEVICES)
def test_a_transposed_factor_is_free(device: str) -> None:
    found, _, _ = strides_after(parse_graph(PRODUCT), device)
    assert found["a"] == "1 640"
    assert found["y"] == "384 1"


def test_strict_numerics_keep_the_operands_of_calls() -> None:
    found, _, _ = strides_after(parse_graph(PRODUCT), "sm_90", options=ScheduleOptions(numerics="strict"))
    assert found["a"] == "512 1"


@pytest.mark.parametrize("device", DEVICES)
def test_a_result_of_a_product_lies_as_its_readers_like(device: str) -> None:
    text = """
    graph @heads {
      input %x: f32[12, 256, 64]
      input %w: f32[12, 64, 64]
      extern "aten.bmm.default" (%x, %w) aten implements "batched product" defines (%h: f32[12, 256, 64]) \
out "aten.bmm.out" ("out") fresh
      %o: f32[256, 64, 12] = pointwise [i0: 256, i1: 64, i2: 12] {
        t0 = load %h[i2, i0, i1] : f32
        t1 = exp(t0)
        yield t1
      }
      return (%o)
    }
    """
    found, _, _ = strides_after(parse_graph(text), device)
    # heads innermost are no product's layout: it would be copied
    assert found["h"] == "16384 64 1"


@pytest.mark.parametrize(
    ("device", "batch", "rows", "expected"),
    [
        ("x86-64-avx512", 64, 16, "256 16 1"),
        ("x86-64-avx512", 2, 256, "65536 1 256"),
        ("sm_90", 64, 256, "65536 1 256"),
    ],
)
def test_small_products_on_a_cpu_are_computed_together(
    device: str, batch: int, rows: int, expected: str
) -> None:
    """ATen takes the products of a batch one by one where their results lie by columns; that pays for large
    ones.
    """
    shape = f"[{batch}, {rows}, {rows}]"
    text = f"""
    graph @columns {{
      input %x: f32{shape}
      input %w: f32{shape}
      extern "aten.bmm.default" (%x, %w) aten implements "batched product" defines (%h: f32{shape}) out \
"aten.bmm.out" ("out") fresh
      %o: f32{shape} = pointwise [i0: {batch}, i1: {rows}, i2: {rows}] {{
        t0 = load %h[i0, i2, i1] : f32
        t1 = exp(t0)
        yield t1
      }}
      return (%o)
    }}
    """
    found, _, _ = strides_after(parse_graph(text), device)
    assert found["h"] == expected


def convolutions(*, dtype: str = "bf16", groups: int = 1, window: int = 3, returned: str = "") -> Graph:
    """A stack of two convolutions, between kernels that compute what they read and read what they make."""
    inner, pad = 64 // groups, window // 2
    call = f"[1, 1], [{pad}, {pad}], [1, 1], False, [0, 0], {groups}"
    return parse_graph(f"""
    graph @stack {{
      input %x: {dtype}[16, 64, 56, 56]
      input %u: {dtype}[64, {inner}, {window}, {window}]
      input %w: {dtype}[64, {inner}, {window}, {window}]
      %a: {dtype}[16, 64, 56, 56] = pointwise [i0: 16, i1: 64, i2: 56, i3: 56] {{
        t0 = load %x[i0, i1, i2, i3] : {dtype}
        t1 = neg(t0)
        yield t1
      }}
      extern "aten.convolution.default" (%a, %u, none, {call}) aten implements "convolution" defines (%b: \
{dtype}[16, 64, 56, 56]) fresh
      %c: {dtype}[16, 64, 56, 56] = pointwise [i0: 16, i1: 64, i2: 56, i3: 56] {{
        t0 = load %b[i0, i1, i2, i3] : {dtype}
        t1 = neg(t0)
        yield t1
      }}
      extern "aten.convolution.default" (%c, %w, none, {call}) aten implements "convolution" defines (%d: \
{dtype}[16, 64, 56, 56]) fresh
      %e: {dtype}[16, 64, 56, 56] = pointwise [i0: 16, i1: 64, i2: 56, i3: 56] {{
        t0 = load %d[i0, i1, i2, i3] : {dtype}
        t1 = neg(t0)
        yield t1
      }}
      return (%e{returned})
    }}
    """)


PIXELS = "200704 1 3584 64"
PLANES = "200704 3136 56 1"


@pytest.mark.parametrize(
    "device, groups, window",
    [("sm_90", 1, 3), ("sm_80", 1, 3), ("x86-64-avx512", 1, 3), ("sm_90", 64, 7)],
    ids=["gpu", "older-gpu", "cpu", "depthwise"],
)
def test_stacks_in_16_bits_run_channels_last(device: str, groups: int, window: int) -> None:
    found, after, _ = strides_after(convolutions(groups=groups, window=window), device)
    assert {name: found[name] for name in "abcd"} == dict.fromkeys("abcd", PIXELS)
    assert found["e"] == PLANES
    check_schedule(after, device)


WAVES = """
graph @waves {
  input %x: bf16[8, 64, 4096]
  input %u: bf16[64, 64, 3]
  %a: bf16[8, 64, 4096] = pointwise [i0: 8, i1: 64, i2: 4096] {
    t0 = load %x[i0, i1, i2] : bf16
    t1 = neg(t0)
    yield t1
  }
  extern "aten.convolution.default" (%a, %u, none, [1], [1], [1], False, [0], 1) aten implements \
"convolution" defines (%b: bf16[8, 64, 4096]) fresh
  %c: bf16[8, 64, 4096] = pointwise [i0: 8, i1: 64, i2: 4096] {
    t0 = load %b[i0, i1, i2] : bf16
    t1 = exp(t0)
    yield t1
  }
  extern "aten.convolution_backward.default" (%c, %a, %u, [0], [1], [1], [1], False, [0], 1, \
[True, True, False]) aten implements "convolution gradients" defines (%d: bf16[8, 64, 4096], \
%e: bf16[64, 64, 3], _) tuple fresh
  %f: bf16[8, 64, 4096] = pointwise [i0: 8, i1: 64, i2: 4096] {
    t0 = load %d[i0, i1, i2] : bf16
    t1 = neg(t0)
    yield t1
  }
  return (%f, %e)
}
"""


def widened(graph: Graph, device: str, options: ScheduleOptions) -> Graph:
    settings = Settings(
        targets=Targets(main=TARGETS[device]),
        model=RooflineCost(target=TARGETS[device]),
        sizes=make_size_hints(options),
        options=options,
        remarks=Remarks(100),
        registry=REGISTRY,
    )
    after = widen_convolutions(graph, analyse(graph), settings)
    verify_graph(after)
    return after


# of a weight of one tap no stride tells an order
ONE_TAP = WAVES.replace("64, 64, 3]", "64, 64, 1]").replace("[1], [1], [1]", "[1], [0], [1]")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("text, taps", [(WAVES, 3), (ONE_TAP, 1)])
def test_convolutions_over_one_dimension_run_channels_last(device: str, text: str, taps: int) -> None:
    wide = widened(parse_graph(text), device, ScheduleOptions())
    calls = [node for node in wide.nodes if isinstance(node, Extern)]
    strides = [call.args[3 + (len(call.args) > 9)] for call in calls]
    assert [str(one.items) for one in strides if isinstance(one, ListValue)] == ["(1, 1)"] * 2
    found, after, _ = strides_after(wide, device)
    assert {found[name] for name in "abcd"} == {"262144 1 64"}
    # results that the caller sees lie as captured
    assert (found["f"], found["e"]) == ("262144 4096 1", f"{64 * taps} {taps} 1")
    # a library reads the layout off all strides, that of the one element, too
    for call in (node for node in after.nodes if isinstance(node, Extern)):
        for name in (argument.name for argument in call.args if isinstance(argument, Ref)):
            if name in found and name.startswith(("a", "c")):
                assert found[name] == "262144 1 262144 64"
    check_schedule(after, device)


@pytest.mark.parametrize(
    "device, options",
    [
        ("sm_90", ScheduleOptions(convolution_layout="captured")),
        ("sm_90", ScheduleOptions(numerics="strict")),
        ("sm_90", ScheduleOptions(batch_invariant=True)),
        ("gfx942", ScheduleOptions()),
    ],
    ids=["captured", "strict", "batch-invariant", "other-library"],
)
def test_convolutions_over_one_dimension_stay_without_a_choice(device: str, options: ScheduleOptions) -> None:
    graph = parse_graph(WAVES)
    assert widened(graph, device, options) is graph


@pytest.mark.parametrize("device", DEVICES)
def test_convolutions_stay_where_that_is_asked_for(device: str) -> None:
    for options in (ScheduleOptions(convolution_layout="captured"), ScheduleOptions(numerics="strict")):
        found, _, _ = strides_after(convolutions(), device, options=options)
        assert {found[name] for name in "abcd"} == {PLANES}


def test_a_library_that_is_not_known_to_follow_gets_what_was_captured() -> None:
    found, _, _ = strides_after(convolutions(), "gfx942")
    assert {found[name] for name in "abcd"} == {PLANES}


def test_convolutions_in_f32_that_round_nothing_stay_on_gpus() -> None:
    found, _, _ = strides_after(convolutions(dtype="f32"), "sm_90")
    assert {found[name] for name in "abcd"} == {PLANES}


@pytest.mark.parametrize("groups, window", [(1, 3), (1, 1), (64, 7), (8, 3)])
def test_stacks_in_f32_run_channels_last_on_cpus(groups: int, window: int) -> None:
    graph = convolutions(dtype="f32", groups=groups, window=window)
    found, after, _ = strides_after(graph, "x86-64-avx512")
    assert {name: found[name] for name in "abcd"} == dict.fromkeys("abcd", PIXELS)
    # the library lays weights out by itself
    assert [node.args[1] for node in after.nodes if isinstance(node, Extern)] == [Ref("u"), Ref("w")]
    assert found["e"] == PLANES
    check_schedule(after, "x86-64-avx512")
    for options in (ScheduleOptions(convolution_layout="captured"), ScheduleOptions(numerics="strict")):
        found, _, _ = strides_after(graph, "x86-64-avx512", options=options)
        assert {found[name] for name in "abcd"} == {PLANES}


@pytest.mark.parametrize("batch, lies", [(16, "12544 1 896 64"), (1, "12544 196 14 1")])
def test_weights_that_outweigh_their_images_keep_calls_in_f32_as_captured_on_cpus(
    batch: int, lies: str
) -> None:
    """Copying such a weight to channels-last costs more than the image's conversion to blocks."""
    text = format_graph(convolutions(dtype="f32"))
    text = text.replace("[16, 64, 56, 56]", f"[{batch}, 64, 14, 14]")
    text = text.replace("i0: 16, i1: 64, i2: 56, i3: 56", f"i0: {batch}, i1: 64, i2: 14, i3: 14")
    found, _, _ = strides_after(parse_graph(text), "x86-64-avx512")
    assert {found[name] for name in "abcd"} == {lies}


def test_three_dimensions_run_channels_last_on_cpus() -> None:
    text = format_graph(convolutions(dtype="f32"))
    text = text.replace("[16, 64, 56, 56]", "[16, 64, 4, 14, 56]").replace(
        "[64, 64, 3, 3]", "[64, 64, 3, 3, 3]"
    )
    text = text.replace("i2: 56, i3: 56", "i2: 4, i3: 14, i4: 56").replace("i2, i3]", "i2, i3, i4]")
    text = text.replace("[1, 1]", "[1, 1, 1]").replace("[0, 0]", "[0, 0, 0]")
    found, after, _ = strides_after(parse_graph(text), "x86-64-avx512")
    assert {found[name] for name in "abcd"} == {"200704 1 50176 3584 64"}
    check_schedule(after, "x86-64-avx512")


@pytest.mark.parametrize(
    "device, groups, window, strides",
    [
        ("sm_90", 1, 3, PIXELS),
        ("sm_90", 64, 7, PLANES),
        ("gfx942", 1, 3, PLANES),
    ],
    ids=["gpu", "depthwise", "unknown"],
)
def test_stacks_in_f32_run_channels_last_where_they_round_to_tf32(
    device: str, groups: int, window: int, strides: str
) -> None:
    rounding = ScheduleOptions(tf32_convolutions=True)
    graph = convolutions(dtype="f32", groups=groups, window=window)
    found, after, _ = strides_after(graph, device, options=rounding)
    assert {found[name] for name in "abcd"} == {strides}
    check_schedule(after, device)
    for options in (replace(rounding, convolution_layout="captured"), replace(rounding, numerics="strict")):
        found, _, _ = strides_after(graph, device, options=options)
        assert {found[name] for name in "abcd"} == {PLANES}


def image_cost(graph: Graph, strides: str, order: int) -> int:
    """What the image of the first convolution of `graph` costs on a CPU where it lies so, in one order."""
    context = survey_of(graph, "x86-64-avx512")
    position = next(k for k, node in enumerate(graph.nodes) if isinstance(node, Extern))
    site = list_sites(context, RULES, ScheduleOptions())[position][0]
    (choice,) = site.choices
    lying = tuple(as_expr(int(step)) for step in strides.split())
    return site.cost(lambda name, _: choice.candidates[order] if name == choice.name else lying)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_image_in_neither_layout_is_copied_by_the_library(dtype: str) -> None:
    graph = convolutions(dtype=dtype)
    neither = "64 1 57344 1024"
    size = 16 * 64 * 56 * 56 * (4 if dtype == "f32" else 2)
    assert image_cost(graph, neither, 0) == image_cost(graph, PLANES, 0) + 2 * size * SCALE


def test_a_copy_in_forward_is_made_in_backward_once_more() -> None:
    graph = convolutions(dtype="f32")
    step = replace(graph, outputs=(*graph.outputs, Ref("a")), free_results=("a",))
    verify_graph(step)
    once = image_cost(graph, PIXELS, 0) - image_cost(graph, PLANES, 0)
    twice = image_cost(step, PIXELS, 0) - image_cost(step, PLANES, 0)
    assert twice > 1.5 * once > 0


def test_taps_of_a_window_meet_their_image_once() -> None:
    """Not nine times, beside which what a layout saves would be little."""
    loads = "\n".join(f"t{k} = load %x[i0, i1, i2 + {k // 3}, i3 + {k % 3}] : f32" for k in range(9))
    adds = "\n".join(f"t{9 + k} = add(t{k if k == 0 else 8 + k}, t{k + 1})" for k in range(8))
    graph = parse_graph(f"""
    graph @window {{
      input %x: f32[2, 8, 18, 18]
      %y: f32[2, 8, 16, 16] = pointwise [i0: 2, i1: 8, i2: 16, i3: 16] {{
        {loads}
        {adds}
        yield t16
      }}
      return (%y)
    }}
    """)
    context = survey_of(graph, "sm_90")
    (site,) = list_sites(context, RULES, ScheduleOptions())[0]
    assert site.least() == SCALE * 2 * 4 * 2 * 8 * 16 * 16


def training_step() -> Graph:
    """Two convolutions with an activation between them, under autocast, and all gradients, in one graph."""
    call = "[1, 1], [1, 1], [1, 1], False, [0, 0], 1"
    shape, weight = "bf16[16, 64, 56, 56]", "bf16[64, 64, 3, 3]"
    ranges = "[i0: 16, i1: 64, i2: 56, i3: 56]"
    taps = "[i0: 64, i1: 64, i2: 3, i3: 3]"
    index = "[i0, i1, i2, i3]"
    backward = '"aten.convolution_backward.default"'
    mask = "[True, True, False]"
    return parse_graph(f"""
    graph @step {{
      input %x: {shape}
      input %pu: f32[64, 64, 3, 3]
      input %pw: f32[64, 64, 3, 3]
      %u: {weight} = pointwise {taps} {{
        t0 = load %pu{index} : f32
        t1 = cast(t0) : bf16
        yield t1
      }}
      %w: {weight} = pointwise {taps} {{
        t0 = load %pw{index} : f32
        t1 = cast(t0) : bf16
        yield t1
      }}
      %a: {shape} = pointwise {ranges} {{
        t0 = load %x{index} : bf16
        t1 = neg(t0)
        yield t1
      }}
      extern "aten.convolution.default" (%a, %u, none, {call}) aten implements "convolution" defines (%b: \
{shape}) fresh
      %c: {shape} = pointwise {ranges} {{
        t0 = load %b{index} : bf16
        t1 = tanh(t0)
        yield t1
      }}
      extern "aten.convolution.default" (%c, %w, none, {call}) aten implements "convolution" defines (%d: \
{shape}) fresh
      %e: {shape} = pointwise {ranges} {{
        t0 = load %d{index} : bf16
        t1 = sign(t0)
        yield t1
      }}
      extern {backward} (%e, %c, %w, none, {call}, {mask}) aten implements "convolution gradients" defines \
(%f: {shape}, %g: {weight}, _) tuple fresh
      %h: {shape} = pointwise {ranges} {{
        t0 = load %f{index} : bf16
        t1 = load %c{index} : bf16
        t2 = mul(t0, t1)
        yield t2
      }}
      extern {backward} (%h, %a, %u, none, {call}, {mask}) aten implements "convolution gradients" defines \
(%k: {shape}, %l: {weight}, _) tuple fresh
      %m: {shape} = pointwise {ranges} {{
        t0 = load %k{index} : bf16
        t1 = neg(t0)
        yield t1
      }}
      %gu: {weight} = pointwise {taps} {{
        t0 = load %l{index} : bf16
        t1 = neg(t0)
        yield t1
      }}
      %gw: {weight} = pointwise {taps} {{
        t0 = load %g{index} : bf16
        t1 = neg(t0)
        yield t1
      }}
      return (%m, %gu, %gw)
    }}
    """)


@pytest.mark.parametrize("device", DEVICES)
def test_forward_and_backward_of_a_stack_are_one_problem(device: str) -> None:
    found, after, _ = strides_after(training_step(), device)
    activations = {name: found[name] for name in "abcdefhk"}
    assert activations == dict.fromkeys(activations, PIXELS)
    assert found["m"] == PLANES and found["gu"] == found["gw"] == "576 9 3 1"
    # little is saved by them alone, but they belong to calls
    assert found["u"] == found["w"] == "576 1 192 64"
    check_schedule(after, device)


# Copies between layouts


def test_a_kernel_stores_what_it_makes_once_more_for_a_call_that_wants_it_otherwise() -> None:
    graph = convolutions(returned=", %a")
    found, after, remarks = strides_after(graph, "sm_90")
    assert found["a"] == PLANES
    assert {found[name] for name in ("a_1", "b", "c", "d")} == {PIXELS}
    copies = {d.subjects[0]: d for d in remarks.decisions if d.rule == "layout-copy"}
    assert set(copies) == {"a", "u", "w"}
    copy = copies["a"]
    assert dict(copy.numbers)["copied_bytes"] == 2 * 16 * 64 * 56 * 56
    made = schedule(after, get_target("sm_90"))
    verify_schedule(made)
    # the copy shares the kernel that makes what is copied, and the weights' copies are one kernel
    assert len(made.kernels) == 4


def test_weights_are_copied_once_for_a_library_that_would_copy_them_in_each_call() -> None:
    graph = convolutions()
    found, after, _ = strides_after(graph, "sm_90")
    calls = [node for node in after.nodes if isinstance(node, Extern)]
    assert [call.args[:2] for call in calls] == [(Ref("a"), Ref("u_1")), (Ref("c"), Ref("w_1"))]
    assert found["u_1"] == found["w_1"] == "576 1 192 64"
    made = schedule(graph, get_target("sm_90"))
    verify_schedule(made)
    # both by one kernel
    assert len(made.kernels) == 4
    # libraries of CPUs pack weights from any layout
    found, after, _ = strides_after(graph, "x86-64-avx512")
    assert "u_1" not in found and found["b"] == PIXELS


def test_results_that_callers_see_are_copied_back() -> None:
    text = format_graph(convolutions()).replace("return (%e)", "return (%e, %b)")
    found, after, _ = strides_after(parse_graph(text), "sm_90")
    assert found["b"] == PLANES
    assert {found[name] for name in ("a", "b_1", "c", "d")} == {PIXELS}
    verify_schedule(schedule(after, get_target("sm_90")))


ATTENTION = """
graph @heads {
  input %x: bf16[2, 256, 8, 64]
  input %y: bf16[2, 256, 64, 8]
  %q: bf16[2, 8, 256, 64] = pointwise [i0: 2, i1: 8, i2: 256, i3: 64] {
    t0 = load %x[i0, i2, i1, i3] : bf16
    t1 = neg(t0)
    yield t1
  }
  %k: bf16[2, 8, 256, 64] = pointwise [i0: 2, i1: 8, i2: 256, i3: 64] {
    t0 = load %x[i0, i2, i1, i3] : bf16
    t1 = abs(t0)
    yield t1
  }
  %v: bf16[2, 8, 256, 64] = pointwise [i0: 2, i1: 8, i2: 256, i3: 64] {
    t0 = load %y[i0, i2, i3, i1] : bf16
    t1 = abs(t0)
    yield t1
  }
  extern "aten._scaled_dot_product_flash_attention_for_cpu.default" (%q, %k, %v, 0.0, False) aten implements \
"attention" defines (%o: bf16[2, 8, 256, 64], _) tuple random
  %r: bf16[2, 8, 256, 64] = pointwise [i0: 2, i1: 8, i2: 256, i3: 64] {
    t0 = load %o[i0, i1, i2, i3] : bf16
    t1 = neg(t0)
    yield t1
  }
  return (%r)
}
"""


@pytest.mark.parametrize("device", DEVICES)
def test_keys_and_values_keep_their_features_together(device: str) -> None:
    """A value that is made with heads innermost is turned when it is made, for no kernel reads it so."""
    graph = parse_graph(ATTENTION)
    found, after, _ = strides_after(graph, device)
    assert found["q"] == found["o"] == "131072 16384 64 1"
    assert found["k"].endswith(" 1") and found["v"].endswith(" 1")
    context = survey_of(graph, device)
    position = next(k for k, node in enumerate(graph.nodes) if isinstance(node, Extern))
    site = weigh_attention(position, graph.nodes[position], context)
    assert site is not None and site.obliges == ("k", "v")
    captured = site.cost(context.strides_of_capture)
    keys = context.buffers["k"]
    by_tokens = make_nested_strides(keys.shape, (0, 2, 1, 3))
    across = make_nested_strides(keys.shape, (0, 1, 3, 2))

    def cost_with(strides: Strides) -> int:
        return site.cost(lambda name, buffer: strides if name == "k" else buffer.strides)

    assert cost_with(by_tokens) == captured == site.least()
    assert cost_with(across) == IMPOSSIBLE
    assert all(context.steps(strides)[-1] == 1 for strides in site.propose(keys))
    verify_schedule(schedule(after, get_target(device)))


def test_the_query_of_a_kernel_whose_result_does_not_follow_it_may_lie_otherwise() -> None:
    for name, obliged in (("efficient", ("q", "k", "v")), ("cudnn", ("k", "v")), ("flash", ("k", "v"))):
        graph = parse_graph(ATTENTION.replace("flash_attention_for_cpu", f"{name}_attention"))
        context = survey_of(graph, "sm_90")
        position = next(k for k, node in enumerate(graph.nodes) if isinstance(node, Extern))
        site = weigh_attention(position, graph.nodes[position], context)
        assert site is not None and site.obliges == obliged


GRADIENTS = """
graph @gradients {{
  input %x: bf16[2, 8, 256, 64]
  input %q: bf16[2, 8, 256, 64]
  input %o: bf16[2, 8, 256, 64]{strides}
  input %l: f32[2, 8, 256]
  %g: bf16[2, 8, 256, 64] = pointwise [i0: 2, i1: 8, i2: 256, i3: 64] {{
    t0 = load %x[i0, i1, i2, i3] : bf16
    t1 = neg(t0)
    yield t1
  }}
  extern "aten._scaled_dot_product_{name}_attention_backward.default" ({args}) aten implements \
"attention gradient" defines (%dq: bf16[2, 8, 256, 64], %dk: bf16[2, 8, 256, 64], %dv: bf16[2, 8, 256, 64]) \
tuple
  return (%dq, %dk, %dv)
}}
"""


def gradients_of(name: str, *, strides: str = "") -> Graph:
    bias = "%l, " if name == "efficient" else ""
    return parse_graph(
        GRADIENTS.format(name=name, strides=strides, args=f"%g, %q, %q, %q, {bias}%o, %l, 0.0, False")
    )


@pytest.mark.parametrize(
    "name, strides, lies",
    [
        ("flash", "", "131072 64 512 1"),
        ("cudnn", "{131072, 64, 512, 1}", "131072 64 512 1"),
        ("cudnn", "", "131072 16384 64 1"),
        ("efficient", "{131072, 64, 512, 1}", "131072 16384 64 1"),
    ],
)
def test_the_gradient_of_a_result_lies_as_the_library_takes_it(name: str, strides: str, lies: str) -> None:
    """The kernel that makes it writes along its rows either way; the library's copy is not made."""
    found, after, _ = strides_after(gradients_of(name, strides=strides), "sm_90")
    assert found["g"] == lies
    assert found["dq"] == found["dk"] == found["dv"] == "131072 16384 64 1"
    check_schedule(after, "sm_90")


def test_a_gradient_is_copied_for_a_library_that_takes_others() -> None:
    for name, factor in (("flash", 3), ("cudnn", 1), ("efficient", 1)):
        graph = gradients_of(name)
        context = survey_of(graph, "sm_90")
        site = weigh_attention(1, graph.nodes[1], context)
        assert site is not None and site.obliges == ("g",)
        assert site.cost(context.strides_of_capture) == factor * site.least()


def test_all_buffers_are_told_with_their_reasons() -> None:
    steps: list[tuple[str, Graph]] = []
    graph = convolutions(returned=", %a")
    made = schedule(graph, get_target("sm_90"), observe=lambda name, after: steps.append((name, after)))
    table = explain_layouts(
        steps, made.decisions, targets=Targets(main=TARGETS["sm_90"]), options=ScheduleOptions()
    )
    layouts, moves = table.split("\n\n")
    lines = {line.split()[0]: line for line in layouts.splitlines()}
    assert list(lines) == ["buffer", "%x", "%u", "%w", "%a", "%a_1", "%u_1", "%b", "%c", "%w_1", "%d", "%e"]
    assert lines["%x"].endswith("fixed   an input")
    assert "fixed   a result whose strides the caller sees; copied for a call: 6422528 bytes" in lines["%a"]
    assert lines["%a_1"].endswith("copy    a copy between layouts")
    assert " moved " in lines["%b"] and " moved " in lines["%c"]
    assert lines["%e"].endswith("fixed   a result whose strides the caller sees")
    found = [line.split("  ")[0] for line in moves.splitlines()[1:]]
    # copies for calls, and the kernels that read across memory: these, and what makes a result
    assert found[:3] == ["%a_1 of %a", "%u_1 of %u", "%w_1 of %w"] and "%e" in found[3:]
    assert "a copy, which costs less" in moves


def test_what_a_library_converts_by_itself_is_told() -> None:
    steps: list[tuple[str, Graph]] = []
    options = ScheduleOptions(convolution_layout="captured")
    targets = Targets(main=TARGETS["sm_90"])
    made = schedule(convolutions(), targets, options, observe=lambda name, after: steps.append((name, after)))
    auto = explain_layouts(steps, made.decisions, targets=targets, options=ScheduleOptions())
    losses = {line.split()[0]: line for line in auto.split("\n\n")[1].splitlines()}
    # its image and its result, each read and written once more
    assert {"%b", "%d"} <= losses.keys() and "and convert what lies otherwise around each call" in losses[
        "%b"
    ]
    assert int(losses["%b"].split()[1]) > 2 * 2 * 6422528


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("channels", "step", "size", "sites"), [(3, 2, 1, 0), (16, 2, 1, 5), (3, 1, 1, 5), (3, 2, 2, 5)]
)
def test_gradients_that_onednn_would_write_out_of_bounds_stay_as_captured(
    channels: int, step: int, size: int, sites: int, dtype: str
) -> None:
    """Of a window of one tap with steps, and fewer channels than a vector holds."""
    side = (64 - size) // step + 1
    text = f"""graph @g {{
  input %g: {dtype}[2, 32, {side}, {side}]
  input %x: {dtype}[2, {channels}, 64, 64]
  input %w: {dtype}[32, {channels}, {size}, {size}]
  extern "aten.convolution_backward.default" (%g, %x, %w, [0], [{step}, {step}], [0, 0], [1, 1], False, \
[0, 0], 1, [True, True, False]) aten implements "convolution gradients" defines (%dx: {dtype}[2, {channels}, \
64, 64], %dw: {dtype}[32, {channels}, {size}, {size}], _) tuple fresh
  return (%dx, %dw)
}}
"""
    context = survey_of(parse_graph(text), "x86-64-avx512")
    found = list_sites(context, RULES, ScheduleOptions())
    assert sum(map(len, found.values())) == sites
