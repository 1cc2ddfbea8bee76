"""Contractions in groups of unequal size: meaning, text, what is refused, and the form that
libraries take.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tensor_results import tensors_of
from torch import Tensor

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.conformance import CONTRACTION_CASES, ContractionCase, check_contractions
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import as_expr
from coilwork_ir.loops import Contraction, Graph
from coilwork_ir.loops.access import list_bodies, list_read_buffers
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.matrix_products import (
    make_grouped_product,
    match_grouped_product,
    match_matrix_product,
)
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph

ROWS = """graph @rows {
  input %x: f32[7, 4]
  input %w: f32[3, 4, 5]
  input %ends: i32[3]
  %y: f32[7, 5] = contract f32 [i0: 7, i1: 5 | r0: 4] groups [g0: 3] along i0 end %ends {
    t0 = load %x[i0, r0] : f32
    t1 = load %w[g0, r0, i1] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }
  return (%y)
}
"""
TERMS = """graph @terms {
  input %x: f32[4, 7]
  input %w: f32[7, 5]
  input %ends: i32[3]
  %y: f32[3, 4, 5] = contract f32 [i0: 3, i1: 4, i2: 5 | r0: 7] groups [i0: 3] along r0 end %ends {
    t0 = load %x[i1, r0] : f32
    t1 = load %w[r0, i2] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }
  return (%y)
}
"""


def buffer(name: str, *shape: int, dtype: DType = DType.F32) -> Buffer:
    sizes = tuple(map(as_expr, shape))
    return Buffer(name=name, dtype=dtype, shape=sizes, strides=make_contiguous_strides(sizes))


@pytest.mark.parametrize("ends", [(2, 3, 7), (0, 7, 7), (3, 3, 5)])
def test_each_group_of_rows_meets_its_matrix(ends: tuple[int, ...]) -> None:
    graph = parse_graph(ROWS)
    verify_graph(graph)
    x, w, at = torch.randn(7, 4), torch.randn(3, 4, 5), torch.tensor(ends, dtype=torch.int32)
    (found,) = interpret_graph(graph, [x, w, at])
    assert isinstance(found, Tensor)
    begin = 0
    for group, end in enumerate(ends):
        torch.testing.assert_close(found[begin:end], x[begin:end] @ w[group])
        begin = end
    # behind the last group is anything, and nothing that looks right
    assert found[begin:].isnan().all()


def test_a_sum_is_over_the_terms_of_its_group() -> None:
    graph = parse_graph(TERMS)
    verify_graph(graph)
    x, w, at = torch.randn(4, 7), torch.randn(7, 5), torch.tensor([2, 2, 7], dtype=torch.int32)
    x[0, 0] = float("inf")
    (found,) = interpret_graph(graph, [x, w, at])
    expected = torch.stack([x[:, a:b] @ w[a:b] for a, b in ((0, 2), (2, 2), (2, 7))])
    torch.testing.assert_close(found, expected)


def test_the_text_is_canonical() -> None:
    for text in (ROWS, TERMS):
        graph = parse_graph(text)
        assert parse_graph(format_graph(graph)) == graph
        assert format_graph(graph, origins=False) == text
        (node,) = graph.nodes
        assert list_read_buffers(node) == ("x", "w", "ends") and len(list_bodies(node)) == 3


@pytest.mark.parametrize(
    ("text", "code", "old", "new"),
    [
        (ROWS, "contraction-groups", "i32[3]", "f32[3]"),
        (ROWS, "contraction-groups", "i32[3]", "i32[3, 1]"),
        (ROWS, "contraction-groups", "i32[3]", "i32[4]"),
        (ROWS, "contraction-groups", "along i0", "along g0"),
        # a range that is a group's number as well
        (ROWS.replace("g0", "i1"), "contraction-groups", "[i1: 3]", "[i1: 3]"),
        (ROWS, "contraction-groups", "along i0", "along r0"),
        (ROWS, "defined-before-use", "end %ends", "end %other"),
        (TERMS, "contraction-ranges", "[i0: 3] along r0", "[i1: 4] along r0"),
    ],
)
def test_what_are_no_groups_is_refused(text: str, code: str, old: str, new: str) -> None:
    broken = text.replace(old, new)
    if new.startswith("[i1: 4]"):
        broken = broken.replace("i32[3]", "i32[4]")
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(broken))
    assert caught.value.code == code


SHAPES = {
    "rows": ((7, 4), (3, 4, 5), (7, 5), (7,), (3, 5)),
    "columns": ((3, 6, 4), (4, 7), (6, 7), (3, 6), (7,)),
    "terms": ((6, 7), (7, 5), (3, 6, 5), (18,), (15,)),
    "one size": ((3, 6, 4), (3, 4, 5), (3, 6, 5), (3, 6), (3, 5)),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_the_form_of_libraries_is_read_back(name: str, scaled: bool) -> None:
    left, right, result, first, second = SHAPES[name]
    x, w, y = buffer("x", *left), buffer("w", *right), buffer("y", *result)
    ends = None if name == "one size" else buffer("ends", 3, dtype=DType.I32)
    scales = (buffer("a", *first), buffer("b", *second)) if scaled else None
    node = make_grouped_product(y, x, w, ends, scales=scales, approximate=scaled)
    given = [one for one in (x, w, ends, *(scales or ())) if one is not None]
    known = {one.name: one for one in (*given, y)}
    verify_graph(_graph_of(node, given))
    found = match_grouped_product(node, known)
    is_batch = name == "one size" and not scaled
    assert (match_matrix_product(node, known) is not None) is is_batch is (found is None)
    if found is None:
        return
    assert (found.ends, found.scales, found.operands) == (ends, scales, tuple(given))
    assert match_grouped_product(replace(node, epilogue=node.right), known) is None


def _graph_of(node: Contraction, given: list[Buffer]) -> Graph:
    empty = parse_graph("graph @g {\n  return ()\n}")
    return replace(empty, inputs=tuple(given), nodes=(node,))


def test_the_kit_holds_contractions_in_every_way() -> None:
    assert len({case.name for case in CONTRACTION_CASES}) == len(CONTRACTION_CASES)
    for case in CONTRACTION_CASES:
        graph = parse_graph(case.text)
        verify_graph(graph)
        assert parse_graph(format_graph(graph)) == graph
        assert [type(node) for node in graph.nodes] == [Contraction]
    assert {one.status for one in check_contractions(interpret_graph)} == {"passed"}
    shifted = check_contractions(
        lambda graph, inputs: [one + 1 for one in tensors_of(interpret_graph(graph, inputs))]
    )
    assert {one.status for one in shifted} == {"failed"}
    assert isinstance(CONTRACTION_CASES[0], ContractionCase)
