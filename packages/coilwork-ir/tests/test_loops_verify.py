"""Every rule of the loop IR's verifier is triggered by a graph that breaks it, and by nothing else in that
graph.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from ir_cases import broken_cases

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import symbol
from coilwork_ir.loops import Check, Graph, Pointwise, Scan, Scatter
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import RULES, verify_graph
from coilwork_ir.scalar import const, index_value, placeholder

CASES = broken_cases("broken_graphs.txt")

GOOD = """
graph @good {
  symbol n in [2, inf]
  input %x: f32[n]
  input %k: i64[n]
  %y: f32[n] = pointwise [i0: n] {
    t0 = load %x[i0] : f32
    yield t0
  } loc("neg" "aten.neg.default" "model.py":7 "y = -x" "layers.0")
  (%c: f32[n]) = scan sum [i0: n] along i0 {
    t0 = load %y[i0] : f32
    yield t0
  }
  %s: f32[n] = scatter add [i0: n] into %c {
    t0 = load %k[i0] : i64
    t1 = const 1.0 : f32
    at [@0] using (t0)
    yield t1
  }
  return (%s, `2*n`, none)
}
"""


def fails_with(graph: Graph) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify_graph(graph)
    return caught.value


def test_a_good_graph_passes() -> None:
    verify_graph(parse_graph(GOOD))


@pytest.mark.parametrize("code, text", CASES, ids=[code for code, _ in CASES])
def test_a_broken_graph_is_refused_by_its_rule(code: str, text: str) -> None:
    error = fails_with(parse_graph(text))
    assert error.code == code
    assert error.what == RULES[code].sentence
    assert error.reason and error.remedy and error.node


def pieces() -> tuple[Graph, Pointwise, Scan, Scatter]:
    graph = parse_graph(GOOD)
    pointwise, scan, scatter = graph.nodes
    assert isinstance(pointwise, Pointwise) and isinstance(scan, Scan) and isinstance(scatter, Scatter)
    return graph, pointwise, scan, scatter


def test_an_undeclared_symbol_is_refused() -> None:
    graph, pointwise, _, _ = pieces()
    body = const(0.0, DType.F32)
    other = replace(pointwise, body=body, output=replace(pointwise.output, shape=(symbol("m"),)))
    assert fails_with(replace(graph, nodes=(other,), outputs=())).code == "range-extents"
    stray = replace(graph, nodes=(), outputs=(symbol("m", lo=2),))
    assert fails_with(stray).code == "symbol-declared"


def test_a_symbol_with_other_bounds_is_another_symbol() -> None:
    graph, _, _, _ = pieces()
    error = fails_with(replace(graph, nodes=(), outputs=(symbol("n", lo=5),)))
    assert error.code == "unique-symbol"
    assert "other bounds" in error.reason


def test_a_scan_along_a_range_that_it_has_not_is_refused() -> None:
    graph, pointwise, scan, _ = pieces()
    broken = replace(scan, axis=symbol("i7", extent=symbol("n", lo=2)))
    assert fails_with(replace(graph, nodes=(pointwise, broken), outputs=())).code == "scan-axis"


def test_a_condition_that_is_no_bool_is_refused() -> None:
    graph, pointwise, _, _ = pieces()
    broken = replace(pointwise, checks=(Check(condition=const(1, DType.I64), message="no"),))
    assert fails_with(replace(graph, nodes=(broken,), outputs=())).code == "mask-type"


def test_an_index_that_is_no_integer_is_refused() -> None:
    graph, pointwise, scan, scatter = pieces()
    broken = replace(scatter, indirect=(const(1.0, DType.F32),))
    assert fails_with(replace(graph, nodes=(pointwise, scan, broken), outputs=())).code == "index-type"


def test_a_placeholder_of_an_index_value_is_given() -> None:
    graph, pointwise, _, _ = pieces()
    body = index_value(placeholder(1), (const(3, DType.I64),))
    broken = replace(pointwise, body=body, output=replace(pointwise.output, dtype=DType.I64))
    assert fails_with(replace(graph, nodes=(broken,), outputs=())).code == "placeholder"


def test_every_rule_has_a_test() -> None:
    elsewhere = {"symbol-declared", "scan-axis", "mask-type", "index-type"}
    assert {code for code, _ in CASES} | elsewhere == set(RULES)


def test_errors_show_the_source_line() -> None:
    case = dict(CASES)["overwritten"]
    message = str(fails_with(parse_graph(case)))
    assert message.splitlines()[0].startswith("VerifyError[overwritten]: ")
    assert "  node    %y: f32[2] = pointwise [i0: 2]" in message
    assert "  source  model.py:7   y = -v" in message
    assert "was taken over by %x1" in message
    assert "\n  try     " in message


def test_a_long_chain_is_verified_in_linear_time() -> None:
    head = "graph @chain {\n  input %b0: f32[4]\n"
    nodes = [
        f"  %b{k + 1}: f32[4] = pointwise [i0: 4] {{ t0 = load %b{k}[i0] : f32 yield t0 }}"
        for k in range(2000)
    ]
    verify_graph(parse_graph(head + "\n".join(nodes) + "\n  return (%b2000)\n}"))
