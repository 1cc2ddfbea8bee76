"""Compiling takes work that grows hardly faster than the graph, whatever the graph's shape: counted, not
timed.

The work of a compilation, without the building of kernels, is how many lines of Coilwork's own run. Loops
over all nodes for each node show at a few hundred nodes already.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.graph_shapes.recorder import Recorder
from benchmarks.graph_shapes.shapes import SHAPES
from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.stages import run_stages
from integration_tests.line_counter import LineCounter

aten = torch.ops.aten
SMALL, LARGE = 40, 160
# Work of n log n grows by 5.5 where the graph grows by 4. Searches that are bounded reach their bounds at
# some hundred nodes.
MOST_GROWTH = 6.5
# Written element by element: their work still grows by 8 at these sizes.
LATE = frozenset({"table_filled"})
# Shapes whose work on a GPU grows by 7 to 9 between these sizes, until bodies reach their bounds, and no
# faster than the graph from the larger one on. Work of n log n grows by 2.3 where the graph grows by 2.
LATE_WITH_TRITON = ("dense", "cache_of_steps", "norms_open", "softmaxes", "sinkhorn")
MOST_GROWTH_LATE = 2.6
# Shapes that are counted on a GPU, too.
WITH_TRITON = (
    "chain",
    "chain_kept",
    "chain_of_types",
    "chain_trained",
    "reductions",
    "scans",
    "tree",
    "grid",
    "fan_out",
    "scatters",
    "gathers",
    "embeddings",
    "pads",
    "cats",
    "wheres",
    "conditions",
    "products",
    "layers",
    "layers_trained",
    "unrolled",
    "skips",
    "filled",
    "constants",
    "draws",
    "broadcasts",
    "rolls",
    "rotations",
    "lifting",
    "stencils",
    "stencils_padded",
    "lookups_of_lookups",
    "block_assigned",
    "states_assigned",
    "chain_of_two_open",
    "layers_open",
    "diamonds_open",
    "random_near_open",
    "fan_out_open",
    "optimizer_open",
    "rotations_open",
    "sinkhorn_open",
)
# Loops of which each step has numbers of its own: extents, offsets, bounds or constants.
STEPS_OF_ONE_KIND = (
    "dense",
    "cache_of_steps",
    "recurrence_assigned",
    "unrolled",
    "index_puts",
    "fan_out",
    "stencils",
    "rows_apart",
    "pads_growing",
)
MOST_TEXTS = 12
COUNTED = [("cpp", shape) for shape in SHAPES if shape not in LATE] + [("triton", s) for s in WITH_TRITON]


def lines_for(shape: str, size: int, generator: str) -> tuple[int, int]:
    """Lines that run to compile the shape at `size` with a code generator, and how many
    operations that are.
    """
    module, inputs, count = SHAPES[shape].graph(size)
    with LineCounter() as counter:
        options = CompileOptions(strict=True, cache=False, triton_on_cpu=generator == "triton")
        job = open_job(module, inputs, role="inference", options=options)
        run_stages(job, fallback=())
    return counter.lines, count


@pytest.mark.parametrize(("generator", "shape"), COUNTED)
def test_work_grows_no_faster_than_the_graph(generator: str, shape: str) -> None:
    lines_for(shape, 8, generator)
    small, few = lines_for(shape, SMALL, generator)
    large, many = lines_for(shape, LARGE, generator)
    assert large / small <= MOST_GROWTH * (many / few) / (LARGE / SMALL)


@pytest.mark.parametrize("shape", LATE_WITH_TRITON)
def test_work_grows_no_faster_than_the_graph_once_bodies_are_full(shape: str) -> None:
    lines_for(shape, 8, "triton")
    small, few = lines_for(shape, LARGE, "triton")
    large, many = lines_for(shape, 2 * LARGE, "triton")
    assert large / small <= MOST_GROWTH_LATE * (many / few) / 2


def text_for_slices(rows: int, steps: int) -> int:
    """The length of the C++ for `x[k : k + 8] = x[k : k + 8] * 2` for each `k` below `steps`."""
    recorder = Recorder()
    x = recorder.input(rows, 48)
    for k in range(steps):
        part = recorder.call(aten.mul.Tensor, recorder.call(aten.slice.Tensor, x, 0, k, k + 8), 2.0)
        x = recorder.call(aten.slice_scatter.default, x, part, 0, k, k + 8)
    module, inputs = recorder.finish([x])
    options = CompileOptions(strict=True, cache=False)
    compiled = run_stages(open_job(module, inputs, role="inference", options=options), fallback=())
    return sum(len(source.text) for source in compiled.sources.values())


def test_slices_of_many_rows_do_not_lengthen_kernels() -> None:
    """Each slice is computed once, however little it costs to compute it again for the next one."""
    assert text_for_slices(2000, 60) <= 1.5 * text_for_slices(400, 60)


def count_texts(shape: str, size: int) -> int:
    """The number of C++ texts that a graph of the shape takes."""
    module, inputs, _ = SHAPES[shape].graph(size)
    options = CompileOptions(strict=True, cache=False)
    compiled = run_stages(open_job(module, inputs, role="inference", options=options), fallback=())
    return len(compiled.sources)


@pytest.mark.parametrize("shape", STEPS_OF_ONE_KIND)
def test_steps_that_differ_in_constants_share_texts(shape: str) -> None:
    """A C++ compiler takes as long for each text, of which a loop that is unrolled has a few."""
    assert count_texts(shape, 4 * LARGE) <= MOST_TEXTS


def test_the_line_counter_sees_quadratic_work() -> None:
    def count(size: int) -> int:
        with LineCounter() as counter:
            counted = [0]
            code = compile("for i in n:\n for j in n:\n  k[0] += 1", "coilwork/made-up.py", "exec")
            exec(code, {"n": range(size), "k": counted})
        return counter.lines

    assert count(LARGE) / count(SMALL) > 2 * MOST_GROWTH
