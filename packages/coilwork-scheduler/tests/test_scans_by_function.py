"""Scans by a function share kernels with what is pointwise around them, as other scans do; they are never
done in pieces.
"""

from __future__ import annotations

import pytest
import torch
from declared import schedule
from known_values import number_of
from scan_graphs import EAGER, SHORT_ROWS, tensor

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.text import format_kernel, parse_kernel
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph, Pointwise, Scan
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import Combine, combine, load, op, parameter
from coilwork_ir.target import Target, get_target
from coilwork_scheduler import ScheduleOptions

F32 = DType.F32


def recurrence() -> Combine:
    """Two steps of `h = a * h + b` as one."""
    a, b, later_a, later_b = (parameter(k, F32) for k in range(4))
    return combine([op("mul", a, later_a), op("add", op("mul", later_a, b), later_b)])


def extremes() -> Combine:
    """As many values, otherwise combined."""
    a, b, later_a, later_b = (parameter(k, F32) for k in range(4))
    return combine([op("maximum", a, later_a), op("minimum", b, later_b)])


def scanned(shape: tuple[int, ...], axis: int, function: Combine, *, reverse: bool = False) -> Graph:
    """`tanh` of the second result of a scan of `sigmoid(x)` and `x`."""
    x, gate, state, out = (tensor(name, shape, F32) for name in ("x", "gate", "state", "out"))
    ranges = tuple(symbol(f"i{k}", extent=n) for k, n in enumerate(x.shape))
    fed = Pointwise(output=gate, ranges=ranges, body=op("sigmoid", load("x", ranges, F32)))
    scan = Scan(
        outputs=(None, state),
        kind=function,
        ranges=ranges,
        axis=ranges[axis],
        body=load("gate", ranges, F32),
        others=(load("x", ranges, F32),),
        reverse=reverse,
    )
    follows = Pointwise(output=out, ranges=ranges, body=op("tanh", load("state", ranges, F32)))
    return Graph(name="scanned", inputs=(x,), nodes=(fed, scan, follows), outputs=(Ref("out"),))


def scheduled(
    graph: Graph,
    device: Target,
    options: ScheduleOptions | None = None,
    kept_bytes: int | None = None,
) -> Schedule:
    """The schedule of `graph`, after a comparison of what they compute."""
    verify_graph(graph)
    made = schedule(graph, device, options or ScheduleOptions(), kept_bytes=kept_bytes)
    verify_schedule(made)
    (given, *_) = [one for one in graph.inputs if isinstance(one, Buffer)]
    shape = [number_of(n) for n in given.shape]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(interpret_schedule(made, [x]), interpret_graph(graph, [x]))
    return made


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx2"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_feeds_and_follows_shares_the_kernel(device: str, axis: int, reverse: bool) -> None:
    made = scheduled(scanned((3, 5, 7), axis, recurrence(), reverse=reverse), get_target(device))
    (kernel,) = made.kernels
    assert parse_kernel(format_kernel(kernel)) == kernel
    # neither what is scanned nor what nobody asks for is in memory
    assert [arg.role for arg in kernel.args] == ["in", "out"]


def test_functions_tell_kernels_apart() -> None:
    names = [
        scheduled(scanned((4, 6), 1, function), get_target("sm_90")).kernels[0].name
        for function in (recurrence(), extremes(), recurrence())
    ]
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize("single_pass", [False, True])
@pytest.mark.parametrize("shape", [(2, 6000), (6000, 2)])
def test_few_long_rows_are_scanned_by_one_program_each(shape: tuple[int, int], single_pass: bool) -> None:
    options = ScheduleOptions(single_pass=single_pass)
    made = scheduled(scanned(shape, shape.index(6000), recurrence()), EAGER, options, SHORT_ROWS)
    assert sum(isinstance(step, KernelCall) for step in made.steps) == 1
    assert not made.kernels[0].workspace
