"""Scans that are read from the end run from the end, and share a kernel with who reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from declared import schedule
from scan_graphs import tensor

from coilwork_ir.buffers import Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.kernels.interpret import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Scan
from coilwork_ir.loops.interpret import interpret_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.ops import ScanKind
from coilwork_ir.scalar import Scan as ScanValue
from coilwork_ir.scalar import load, op, postorder
from coilwork_ir.target import target

F32 = DType.F32
ROWS, LENGTH = 3, 7
SHAPE = (ROWS, LENGTH)
RANGES = (
    symbol("i0", extent=tensor("x", SHAPE, F32).shape[0]),
    symbol("i1", extent=tensor("x", SHAPE, F32).shape[1]),
)


def mirrored(ranges: Sequence[Expr] = RANGES, axis: int = 1) -> tuple[Expr, ...]:
    return tuple(SHAPE[k] - 1 - r if k == axis else r for k, r in enumerate(ranges))


def scan(
    kind: ScanKind, name: str, source: str, index: Sequence[Expr], *, axis: int = 1, reverse: bool = False
) -> Scan:
    return Scan(
        outputs=(tensor(name, SHAPE, F32),),
        kind=kind,
        ranges=RANGES,
        axis=RANGES[axis],
        body=load(source, index, F32),
        reverse=reverse,
    )


def copy(name: str, source: str, index: Sequence[Expr]) -> Pointwise:
    value = load(source, index, F32)
    return Pointwise(output=tensor(name, SHAPE, F32), ranges=RANGES, body=op("add", value, value))


def graph(*nodes: Node, outputs: Sequence[str] = ("out",)) -> Graph:
    return Graph(
        name="g", inputs=(tensor("x", SHAPE, F32),), nodes=nodes, outputs=tuple(Ref(name) for name in outputs)
    )


def scheduled(given: Graph, device: str = "sm_90") -> tuple[int, list[bool]]:
    """How many kernels `given` takes, and which of its scans run from the end, after a comparison of what is
    computed.
    """
    verify_graph(given)
    made = schedule(given, target(device), observe=lambda _, g: verify_graph(g))
    verify_schedule(made)
    x = torch.randint(-4, 5, SHAPE) / 8
    for wanted, found in zip(interpret_graph(given, [x]), interpret_schedule(made, [x]), strict=True):
        assert isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    values = [store.value for kernel in made.kernels for store in kernel.stores]
    return len(made.kernels), [n.reverse for n in postorder(values) if isinstance(n, ScanValue)]


@pytest.mark.parametrize("device", ["sm_90", "x86-64-avx512"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max", "logcumsumexp"])
def test_between_two_reversals(kind: ScanKind, axis: int, device: str) -> None:
    flipped = mirrored(axis=axis)
    for reverse in (False, True):
        nodes = (scan(kind, "s", "x", flipped, axis=axis, reverse=reverse), copy("out", "s", flipped))
        assert scheduled(graph(*nodes), device) == (1, [not reverse])


def test_a_reversal_behind_a_scan() -> None:
    assert scheduled(graph(scan("sum", "s", "x", RANGES), copy("out", "s", mirrored()))) == (1, [True])


def test_a_reversal_before_a_scan_is_computed_in_it() -> None:
    assert scheduled(graph(scan("sum", "s", "x", mirrored()), copy("out", "s", RANGES))) == (1, [False])


def test_two_that_read_it_from_the_end() -> None:
    nodes = (scan("sum", "s", "x", RANGES), copy("one", "s", mirrored()), copy("out", "s", mirrored()))
    assert scheduled(graph(*nodes, outputs=("one", "out"))) == (1, [True])


def test_a_scan_of_another_from_the_end() -> None:
    nodes = (
        scan("sum", "s", "x", mirrored()),
        scan("max", "t", "s", mirrored()),
        copy("out", "t", mirrored()),
    )
    assert scheduled(graph(*nodes))[1] == [False, True]


def test_what_is_read_forwards_or_returned_stays() -> None:
    first = scan("sum", "s", "x", RANGES)
    backwards = copy("out", "s", mirrored())
    assert scheduled(graph(first, backwards, outputs=("out", "s")))[1] == [False]
    assert scheduled(graph(first, copy("one", "s", RANGES), backwards, outputs=("one", "out")))[1] == [False]
    other = copy("out", "s", mirrored(axis=0))
    assert scheduled(graph(first, other))[1] == [False]
    last = Pointwise(
        output=tensor("out", SHAPE, F32),
        ranges=RANGES,
        body=load("s", (RANGES[0], mirrored()[1] * 0 + LENGTH - 1), F32),
    )
    assert scheduled(graph(first, last))[1] == [False]


def test_positions_count_from_the_start() -> None:
    at = tensor("at", SHAPE, DType.I64)
    first = scan("max", "s", "x", mirrored())
    both = replace(first, outputs=(*first.outputs, at))
    place = Pointwise(
        output=tensor("p", SHAPE, DType.I64), ranges=RANGES, body=load("at", mirrored(), DType.I64)
    )
    made = graph(both, copy("out", "s", mirrored()), place, outputs=("out", "p"))
    assert set(scheduled(made)[1]) == {False}


def test_a_call_gets_what_was_computed() -> None:
    call = Extern(
        target="aten.neg.default", args=(Ref("s"),), outputs=(tensor("out", SHAPE, F32),), fresh=True
    )
    assert scheduled(graph(scan("sum", "s", "x", RANGES), call))[1] == [False]


def test_sizes_among_the_results() -> None:
    """A size that is computed, as `2*s`, is a result without a name."""
    rows = symbol("s", lo=2)
    made = graph(scan("sum", "out", "x", mirrored()))
    made = replace(made, symbols=(rows,), inputs=(*made.inputs, rows), outputs=(*made.outputs, 2 * rows))
    verify_graph(made)
    assert schedule(made, target("sm_90")).outputs[-1] == 2 * rows
