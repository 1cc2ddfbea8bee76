"""Groups of one form share a kernel: what is built does not grow with the number of equal layers, and the
schedule is the same text as if every group were built.
"""

from __future__ import annotations

from typing import Any

import pytest

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.kernels.text import format_schedule
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scatter
from coilwork_ir.scalar import Scalar, const, index_value, load, op
from coilwork_ir.target import get_target
from coilwork_scheduler import assemble, schedule
from coilwork_scheduler.kernels.group_forms import BuiltForms

F32 = DType.F32
ROWS, COLUMNS = as_expr(64), as_expr(32)
RANGES = (symbol("i0", extent=ROWS), symbol("i1", extent=COLUMNS))
AXIS = symbol("r0", extent=COLUMNS)


def make_buffer(name: str, *shape: Expr) -> Buffer:
    return Buffer(name=name, dtype=F32, shape=shape, strides=make_contiguous_strides(shape))


def make_layers(count: int) -> Graph:
    """Sums of rows and what is made of them, with weights of each layer's own, between scatters that nothing
    fuses with; every third layer multiplies with another number.
    """
    nodes: list[Node] = []
    inputs = [make_buffer("x", ROWS, COLUMNS)]
    last = "x"

    def at(name: str, *index: Expr) -> Scalar:
        return load(name, index, F32)

    for layer in range(count):
        origins = (Origin(node=f"l{layer}", op="aten.mul.Tensor", file="m.py", line=layer),)
        weight = make_buffer(f"w{layer}", COLUMNS)
        inputs.append(weight)
        total = make_buffer(f"s{layer}", ROWS)
        body = op("mul", at(last, RANGES[0], AXIS), const(2.0 if layer % 3 else 3.0, F32))
        nodes.append(
            Reduce(outputs=(total,), kind="sum", ranges=RANGES[:1], axes=(AXIS,), body=body, origins=origins)
        )
        scaled = make_buffer(f"y{layer}", ROWS, COLUMNS)
        value = op("mul", op("add", at(last, *RANGES), at(total.name, RANGES[0])), at(weight.name, RANGES[1]))
        nodes.append(Pointwise(output=scaled, ranges=RANGES, body=value, origins=origins))
        filled = make_buffer(f"f{layer}", ROWS, COLUMNS)
        target = op("sub", index_value(ROWS - 1), index_value(RANGES[0]))
        nodes.append(
            Scatter(
                output=filled,
                into=scaled.name,
                ranges=RANGES,
                index=(symbol("@0"), RANGES[1]),
                indirect=(target,),
                value=at(last, *RANGES),
                mode="add",
                origins=origins,
            )
        )
        last = filled.name
    return Graph(name="layers", inputs=tuple(inputs), nodes=tuple(nodes), outputs=(Ref(last),))


def schedule_counting(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """The schedule of `count` layers as text, and how many groups were composed for it."""
    composed = 0
    compose = assemble.compose

    def counted(*arguments: Any) -> object:
        nonlocal composed
        composed += 1
        return compose(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(assemble, "compose", counted)
        text = format_schedule(schedule(make_layers(count), get_target("sm_90")))
    return text, composed


def test_more_equal_layers_build_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    few, composed = schedule_counting(6, monkeypatch)
    many, composed_of_many = schedule_counting(24, monkeypatch)
    assert 0 < composed_of_many == composed
    assert many.count("call ") > few.count("call ")


def test_shared_kernels_are_those_that_each_group_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, composed = schedule_counting(6, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(BuiltForms, "find", lambda self, group, form: None)
        alone, composed_alone = schedule_counting(6, monkeypatch)
    assert composed_alone > composed
    assert shared == alone
