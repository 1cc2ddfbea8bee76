"""Large products in chunks: the same results, no buffer as large as the product, and why some stay whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import pytest
import torch
from declared import ScheduleFields, declare, schedule
from torch import Tensor

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_int
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.loops import Contraction, Extern, Graph, Scatter
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.parser import parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.machine import change_figures
from coilwork_ir.target import Target, get_target
from coilwork_scheduler import RooflineCost, ScheduleOptions
from coilwork_scheduler.chunking.chunk_barrier import find_chunk_barrier
from coilwork_scheduler.chunking.chunk_products import ChunkedGraph, chunk_products
from coilwork_scheduler.contractions.registry import REGISTRY
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import make_size_hints
from coilwork_scheduler.pipeline import Settings

ROWS, INNER, COLUMNS = 64, 8, 96
SMALL = {
    "products.chunked_bytes": 4096,
    "products.chunked_share": 1.0,
    "products.chunk_room_bytes": 8192,
    "products.row_tile": 16,
}

LOGITS = """
  %logits: f32[64, 96] = contract f32 [i0: 64, i1: 96 | r0: 8] {
    t0 = load %h[i0, r0] : f32
    t1 = load %w[i1, r0] : f32
    t2 = parameter 0 : f32
    t3 = load %bias[i1] : f32
    t4 = add(t2, t3)
    multiply t0, t1
    yield t4
  }"""
# libraries take a matrix [inner, columns]
INPUTS = """
  input %h: f32[64, 8]
  input %w_rows: f32[96, 8]
  input %bias: f32[96]
  input %labels: i64[64]"""
VIEW = "\n  %w: f32[8, 96]{1, 8} = view %w_rows offset `0`"
LOGITS = LOGITS.replace("%w[i1, r0]", "%w[r0, i1]")

FORWARD = f"""graph @g {{{INPUTS}{VIEW}{LOGITS}
  (%top: f32[64]) = reduce max [i0: 64 | r0: 96] {{
    t0 = load %logits[i0, r0] : f32
    yield t0
  }}
  %exp: f32[64, 96] = pointwise [i0: 64, i1: 96] {{
    t0 = load %logits[i0, i1] : f32
    t1 = load %top[i0] : f32
    t2 = sub(t0, t1)
    t3 = exp(t2)
    yield t3
  }}
  (%sum: f32[64]) = reduce sum [i0: 64 | r0: 96] {{
    t0 = load %exp[i0, r0] : f32
    yield t0
  }}
  %picked: f32[64] = pointwise [i0: 64] {{
    t0 = load %labels[i0] : i64
    t1 = load %logits[i0, @0] using (t0) : f32
    t2 = load %top[i0] : f32
    t3 = sub(t1, t2)
    yield t3
  }}
  (%loss: f32[]) = reduce sum [| r0: 64] {{
    t0 = load %sum[r0] : f32
    t1 = log(t0)
    t2 = load %picked[r0] : f32
    t3 = sub(t1, t2)
    yield t3
  }}
  return (%loss, %top, %sum)
}}
"""

# The gradients of the weight and of the rows: products with the gradient of the logits.
PRODUCTS = """  %turned: f32[96, 64]{1, 96} = view %slope offset `0`
  %dw: f32[96, 8] = contract f32 [i0: 96, i1: 8 | r0: 64] {
    t0 = load %turned[i0, r0] : f32
    t1 = load %h[r0, i1] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }
  %dh: f32[64, 8] = contract f32 [i0: 64, i1: 8 | r0: 96] {
    t0 = load %slope[i0, r0] : f32
    t1 = load %w_rows[r0, i1] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }"""

GRADIENT = """
  %slope: f32[64, 96] = pointwise [i0: 64, i1: 96] {
    t0 = load %logits[i0, i1] : f32
    t1 = load %lse[i0] : f32
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = load %one_hot[i0, i1] : f32
    t5 = sub(t3, t4)
    yield t5
  }"""
BACKWARD = f"""graph @g {{{INPUTS}
  input %lse: f32[64]{VIEW}{LOGITS}
  %one_hot: f32[64, 96] = pointwise [i0: 64, i1: 96] {{
    t0 = index [i1]
    t1 = load %labels[i0] : i64
    t2 = eq(t0, t1)
    t3 = const 1.0 : f32
    t4 = const 0.0 : f32
    t5 = where(t2, t3, t4)
    yield t5
  }}{GRADIENT}
{PRODUCTS}
  (%dbias: f32[96]) = reduce sum [i0: 96 | r0: 64] {{
    t0 = load %slope[r0, i0] : f32
    yield t0
  }}
  return (%dw, %dh, %dbias)
}}
"""

# a loss and its gradients: what is divided by is known before, and the loss is divided by it behind
BOTH = f"""graph @g {{{INPUTS}{VIEW}{LOGITS}
  (%count: f32[]) = reduce sum [| r0: 64] {{
    t0 = load %labels[r0] : i64
    t1 = const 7 : i64
    t2 = ne(t0, t1)
    t3 = cast(t2) : f32
    yield t3
  }}
  (%top: f32[64]) = reduce max [i0: 64 | r0: 96] {{
    t0 = load %logits[i0, r0] : f32
    yield t0
  }}
  (%sum: f32[64]) = reduce sum [i0: 64 | r0: 96] {{
    t0 = load %logits[i0, r0] : f32
    t1 = load %top[i0] : f32
    t2 = sub(t0, t1)
    t3 = exp(t2)
    yield t3
  }}
  (%picked: f32[64]) = reduce sum [i0: 64 | r0: 96] {{
    t0 = index [r0]
    t1 = load %labels[i0] : i64
    t2 = eq(t0, t1)
    t3 = load %logits[i0, r0] : f32
    t4 = const 0.0 : f32
    t5 = where(t2, t3, t4)
    yield t5
  }}
  %slope: f32[64, 96] = pointwise [i0: 64, i1: 96] {{
    t0 = load %logits[i0, i1] : f32
    t1 = load %top[i0] : f32
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = load %sum[i0] : f32
    t5 = div(t3, t4)
    t6 = load %count[] : f32
    t7 = div(t5, t6)
    yield t7
  }}
{PRODUCTS}
  %each: f32[4, 16] = pointwise [i0: 4, i1: 16] {{
    t0 = load %sum[16*i0 + i1] : f32
    t1 = log(t0)
    t2 = load %picked[16*i0 + i1] : f32
    t3 = sub(t1, t2)
    yield t3
  }}
  (%loss: f32[]) = reduce sum [| r0: 4, r1: 16] {{
    t0 = load %each[r0, r1] : f32
    t1 = load %labels[16*r0 + r1] : i64
    t2 = const 7 : i64
    t3 = ne(t1, t2)
    t4 = const 0.0 : f32
    t5 = where(t3, t0, t4)
    yield t5
  }}
  %mean: f32[] = pointwise [] {{
    t0 = load %loss[] : f32
    t1 = load %count[] : f32
    t2 = div(t0, t1)
    yield t2
  }}
  return (%mean, %dw, %dh)
}}
"""

# rows of a batch of 4 sequences of 16
BATCH = f"""graph @g {{{INPUTS}{VIEW}{LOGITS}
  %capped: f32[4, 16, 96] = pointwise [i0: 4, i1: 16, i2: 96] {{
    t0 = load %logits[16*i0 + i1, i2] : f32
    t1 = tanh(t0)
    yield t1
  }}
  (%top: f32[64]) = reduce max [i0: 64 | r0: 96] {{
    t0 = load %capped[i0 // 16, i0 % 16, r0] : f32
    yield t0
  }}
  (%total: f32[4, 16]) = reduce sum [i0: 4, i1: 16 | r0: 96] {{
    t0 = load %capped[i0, i1, r0] : f32
    t1 = load %top[16*i0 + i1] : f32
    t2 = sub(t0, t1)
    t3 = exp(t2)
    yield t3
  }}
  return (%top, %total)
}}
"""

LAYERS = f"""graph @g {{{INPUTS}{VIEW}{LOGITS}
  %active: f32[64, 96] = pointwise [i0: 64, i1: 96] {{
    t0 = load %logits[i0, i1] : f32
    t1 = tanh(t0)
    yield t1
  }}
  %y: f32[64, 8] = contract f32 [i0: 64, i1: 8 | r0: 96] {{
    t0 = load %active[i0, r0] : f32
    t1 = load %w_rows[r0, i1] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }}
  return (%y)
}}
"""


def small(name: str) -> Target:
    """A device on which small products are large."""
    device = get_target(name)
    # however slow sums of parts are
    model = change_figures(device.machine, SMALL)
    return replace(device, model=model, matrix_tflop_s=0.0)


def chunk(
    text: str, name: str = "x86-64-avx2", **options: Unpack[ScheduleFields]
) -> tuple[Graph, ChunkedGraph, Remarks]:
    graph = parse_graph(text)
    verify_graph(graph)
    asked = ScheduleOptions(**options)
    targets = declare(small(name))
    settings = Settings(
        targets=targets,
        options=asked,
        model=RooflineCost(target=targets.main),
        sizes=make_size_hints(asked),
        remarks=Remarks(asked.max_decisions),
        registry=REGISTRY,
    )
    made = chunk_products(graph, analyse(graph), settings)
    verify_graph(made.graph)
    return graph, made, settings.remarks


def draw(graph: Graph) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    given = []
    for entry in graph.inputs:
        assert isinstance(entry, Buffer)
        shape = [as_int(extent) or 0 for extent in entry.shape]
        if entry.dtype.is_float:
            given.append(torch.randn(shape, generator=generator) / 4)
        else:
            given.append(torch.randint(0, COLUMNS, shape, generator=generator))
    return given


def largest(graph: Graph) -> int:
    """Elements of the largest buffer that some node reads in memory when inlining is done."""
    kinds = (Contraction, Scatter, Extern)
    nodes = [node for node in graph.nodes if isinstance(node, kinds)]
    return max(as_int(b.numel) or 0 for node in nodes for b in list_defined_buffers(node))


def decision(remarks: Remarks) -> tuple[bool, str, dict[str, float]]:
    (found,) = (one for one in remarks.decisions if one.rule == "chunk")
    return found.accepted, found.reason, dict(found.numbers)


@pytest.mark.parametrize(
    ("text", "along"),
    [(FORWARD, 0), (BACKWARD, 1), (BATCH, 0), (BOTH, 0)],
    ids=["forward", "backward", "batch", "both"],
)
def test_results_are_those_of_the_whole_product(text: str, along: int) -> None:
    graph, made, remarks = chunk(text)
    accepted, _, numbers = decision(remarks)
    assert accepted and numbers["along"] == along and numbers["chunks"] > 2
    assert largest(graph) >= ROWS * COLUMNS > 2 * largest(made.graph)
    given = draw(graph)
    expected, found = interpret_graph(graph, given), interpret_graph(made.graph, given)
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, Tensor) and isinstance(other, Tensor) and one.stride() == other.stride()
        torch.testing.assert_close(one, other, rtol=5e-6, atol=5e-6)


def test_rows_are_cut_where_columns_are_summed_and_read_again() -> None:
    """A softmax's own sum of products: along columns it would be known behind the last chunk only."""
    total = """
  (%total: f32[64]) = reduce sum [i0: 64 | r0: 96] {
    t0 = load %logits[i0, r0] : f32
    yield t0
  }"""
    text = BACKWARD.replace("input %lse: f32[64]", "input %other: f32[64]").replace(
        GRADIENT, total + GRADIENT.replace("%lse", "%total")
    )
    graph, made, remarks = chunk(text)
    accepted, _, numbers = decision(remarks)
    # the sums are those of the weight's gradient
    assert accepted and numbers["along"] == 0 and numbers["sums_bytes"] >= 4 * COLUMNS * INNER
    given = [x / 8 if x.is_floating_point() else x for x in draw(graph)]
    for one, other in zip(interpret_graph(made.graph, given), interpret_graph(graph, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FORWARD.replace("return (%loss,", "return (%loss, %logits,"), "all of it is needed in memory"),
        (FORWARD.replace("return (%loss,", "return (%loss, %exp,"), "all of it is needed in memory"),
        (
            FORWARD.replace("load %top[i0]", "load %top[63 - i0]"),
            "rows: elements of several chunks are read; columns: what is combined along it is read again",
        ),
        (LAYERS, "a product reads it, as between two layers"),
        (
            BACKWARD.replace(
                "input %lse: f32[64]", "input %lse: f32[64]\n  input %soft: f32[64, 96]"
            ).replace("load %one_hot", "load %soft"),
            "a value as large is in memory beside it",
        ),
    ],
    ids=["returned", "values of it are returned", "rows are mixed", "two layers", "beside others"],
)
def test_a_product_that_is_needed_as_a_whole_stays_so(text: str, reason: str) -> None:
    graph, made, remarks = chunk(text)
    assert made.graph is graph and decision(remarks)[:2] == (False, reason)


def test_the_option_keeps_products_whole() -> None:
    graph, made, remarks = chunk(FORWARD, chunk_products=False)
    assert made.graph is graph and not remarks.decisions


def planned(text: str) -> Schedule:
    return schedule(parse_graph(text), small("sm_90"))


@pytest.mark.parametrize("text", [FORWARD, BACKWARD], ids=["forward", "backward"])
def test_kernels_are_about_one_chunk_and_shared_by_all(text: str) -> None:
    made = planned(text)
    calls = [step for step in made.steps if isinstance(step, KernelCall)]
    names = [{n.rpartition("chunk")[2] for n in call.args if "logits_chunk" in n} for call in calls]
    assert any(names) and all(len(found) <= 1 for found in names)
    of_chunks = [call.kernel for call, found in zip(calls, names, strict=True) if found]
    # the last chunk may be shorter
    assert len(set(of_chunks)) <= 2 * len([found for found in names if found]) / 3


def test_a_chunk_is_done_with_before_the_next_one_is_computed() -> None:
    products = [step for step in planned(BOTH).steps if isinstance(step, Extern)]
    is_logits = ["logits_chunk" in str(step.outputs) for step in products]
    assert len(products) > 6 and is_logits == [True, False, False] * (len(products) // 3)


def test_no_kernel_makes_what_chunks_wait_for_and_what_waits_for_them() -> None:
    _, made, _ = chunk(BOTH)
    around = find_chunk_barrier(made.graph, made.chunks)
    assert "count" in around.before and {"mean", "dw", "dh"} <= around.behind
    assert not around.before & around.behind and made.chunks.keys() <= around.behind
    assert around.forbids(frozenset({"count", "mean"}))
    assert not around.forbids(frozenset({"count"})) and not around.forbids(frozenset(made.chunks))


def test_gradients_lie_where_the_chunk_was() -> None:
    """One kernel reads a chunk element by element, also for what it chooses, and overwrites it."""
    made = planned(BOTH)
    kernels = [kernel for kernel in made.kernels if len(kernel.aliasing) == 1]
    called = {step.kernel for step in made.steps if isinstance(step, KernelCall)}
    assert any(kernel.name in called for kernel in kernels)
    chunks = [s for s in made.steps if isinstance(s, KernelCall) and any("logits_chunk" in n for n in s.args)]
    assert {step.kernel for step in chunks} <= {kernel.name for kernel in kernels}


def test_whole_sums_are_not_copied() -> None:
    made = planned(BOTH)
    assert not any("dw" in step.args for step in made.steps if isinstance(step, KernelCall))


def test_sums_of_16_bit_products_are_in_f32() -> None:
    """On GPUs one call adds each part to sums in f32, in their memory."""
    text = BACKWARD
    for name in ("%h", "%w_rows", "%w", "%bias", "%slope", "%turned", "%dw", "%dh"):
        text = text.replace(f"{name}: f32", f"{name}: bf16")
    text = text.replace(
        "load %bias[i1] : f32\n    t4 = add(t2, t3)",
        "load %bias[i1] : bf16\n    t5 = cast(t3) : f32\n    t4 = add(t2, t5)",
    )
    for name in (
        "%h[i0, r0]",
        "%w[r0, i1]",
        "%turned[i0, r0]",
        "%h[r0, i1]",
        "%slope[i0, r0]",
        "%w_rows[r0, i1]",
    ):
        text = text.replace(f"load {name} : f32", f"load {name} : bf16")
    text = text.replace(
        "t5 = sub(t3, t4)\n    yield t5", "t5 = sub(t3, t4)\n    t6 = cast(t5) : bf16\n    yield t6"
    )
    text = text.replace(
        "load %slope[r0, i0] : f32\n    yield t0",
        "load %slope[r0, i0] : bf16\n    t1 = cast(t0) : f32\n    yield t1",
    )
    text = text.replace(
        "t2 = parameter 0 : f32\n    multiply t0, t1\n    yield t2",
        "t2 = parameter 0 : f32\n    t3 = cast(t2) : bf16\n    multiply t0, t1\n    yield t3",
    )
    steps = [step for step in planned(text).steps if isinstance(step, Extern)]
    added = [step for step in steps if step.target == "aten.addmm.dtype_out"]
    assert len(added) >= 2 and all(step.mutates for step in added)
    assert [step.target for step in steps].count("aten.mm.dtype") == 1
