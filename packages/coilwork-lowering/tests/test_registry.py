"""The table of rules."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode

from coilwork_ir.loops import Extern, Pointwise
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.operators import OPERATORS, OpInfo
from coilwork_ir.ops import SCALAR_OPS
from coilwork_lowering import lower
from coilwork_lowering.registry import RULES, make_rules


def test_every_rule_is_for_an_overload_by_its_full_name() -> None:
    assert [name for name in RULES if not re.fullmatch(r"[a-z_]+\.\w+\.\w+", name)] == []


def test_rules_are_for_operators_that_exist() -> None:
    # prims.fma is newer than the oldest torch that is supported; the tables are the same for all
    newer = {"prims.fma.default"}
    missing = []
    for name in set(RULES) - newer:
        namespace, operator, overload = name.split(".")
        if namespace == "coilwork":
            # of other packages of ours, which need not be here
            continue
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        if packet is None or overload not in packet.overloads():
            missing.append(name)
    assert missing == []


def call_of(overload: torch._ops.OpOverload, *given: torch.Tensor) -> torch.fx.GraphModule:
    """A graph that returns one call of `overload`, as capture hands it to lowering."""
    graph = torch.fx.Graph()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(value) for value in given]
        inputs = [graph.placeholder(f"x{position}") for position in range(len(given))]
        call = graph.call_function(overload, tuple(inputs))
        for node, fake in zip((*inputs, call), (*fakes, overload(*fakes)), strict=True):
            node.meta["val"] = fake
    graph.output((call,))
    return torch.fx.GraphModule({}, graph)


def test_an_operator_is_added_by_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    added = (
        (torch.ops.aten.arccos.default, OpInfo("arccos", scalar_op="acos", scalar_types="float")),
        (torch.ops.aten.not_equal.Tensor, OpInfo("not_equal", scalar_op="ne", scalar_types="bool",
        overloads=("Tensor",))),
    )  # fmt: skip
    for overload, row in added:
        given = [torch.tensor([0.25, -1.0, 2.0]), torch.tensor([0.5, -1.0, 2.0])]
        given = given[: len(overload._schema.arguments)]
        gm = call_of(overload, *given)
        (call,) = lower(gm, name="before").graph.nodes
        assert isinstance(call, Extern)
        with monkeypatch.context() as patched:
            patched.setattr(
                sys.modules["coilwork_lowering.lower"], "RULES", make_rules({**OPERATORS, row.name: row})
            )
            graph = lower(gm, name="after").graph
        (node,) = graph.nodes
        assert isinstance(node, Pointwise)
        (result,) = interpret_graph(graph, given)
        torch.testing.assert_close(result, overload(*given), equal_nan=True)


def test_a_row_that_is_a_lowering_names_a_scalar_op() -> None:
    rows = [row for row in OPERATORS.values() if row.scalar_op]
    assert len(rows) > 30
    for row in rows:
        for overload in row.overloads:
            schema = getattr(getattr(torch.ops.aten, row.name), overload)._schema
            assert len(schema.arguments) == SCALAR_OPS[row.scalar_op].arity, row.name
