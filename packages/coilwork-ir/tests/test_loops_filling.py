"""Buffers that several scatters fill: what counts as filled, and that nobody reads them before."""

from __future__ import annotations

import pytest
import torch

from coilwork_ir.errors import InterpretError, VerifyError
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.loops import Scatter
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.loops.verify_compute import box_of
from coilwork_ir.verification import Box, add_box, is_whole, make_whole_box

JOINED = """
graph @joined {
  symbol n in [1, inf]
  input %x: f32[n, 6]
  input %y: f32[3, 6]
  input %z: f32[n + 3]
  %a: f32[n + 3, 7] = scatter store [i0: n, i1: 6] {
    t0 = load %x[i0, i1] : f32
    at [i0, i1]
    yield t0
  }
  %b: f32[n + 3, 7] = scatter store [i0: n + 3] into %a {
    t0 = load %z[i0] : f32
    at [i0, 6]
    yield t0
  }
  %c: f32[n + 3, 7] = scatter store [i0: 3, i1: 6] into %b {
    t0 = load %y[i0, i1] : f32
    at [n + i0, i1]
    yield t0
  }
  return (%c)
}
"""
X, Y, Z = torch.arange(12.0).view(2, 6), torch.arange(18.0).view(3, 6) + 100, torch.arange(5.0) - 50


def refused(text: str) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(text))
    return caught.value


def nodes_of(text: str) -> list[Scatter]:
    return [node for node in parse_graph(text).nodes if isinstance(node, Scatter)]


def test_boxes_side_by_side_fill_a_buffer() -> None:
    graph = parse_graph(JOINED)
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph
    assert [node.into for node in nodes_of(JOINED)] == [None, "a", "b"]
    (found,) = interpret_graph(graph, (X, Y, Z))
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, torch.cat([torch.cat([X, Y]), Z[:, None]], 1))


def test_what_was_not_filled_is_conspicuous() -> None:
    first, _, rest = JOINED.partition("  %c: ")
    text = first + "  return (%b)" + rest.partition("return (%c)")[2]
    error = refused(text)
    assert error.code == "unfilled" and "%b" in error.reason
    (found,) = interpret_graph(parse_graph(text), (X, Y, Z))
    assert isinstance(found, torch.Tensor)
    assert torch.isnan(found[2:, :6]).all() and not torch.isnan(found[:2]).any()


@pytest.mark.parametrize(
    "reader",
    [
        "%r: f32[4, 6] = pointwise [i0: 4, i1: 6] { t0 = load %a[i0, i1] : f32 yield t0 }",
        "%r: f32[6] = view %a offset `0`",
        "%r: f32[4, 6] = pointwise [i0: 4, i1: 6] into %a { t0 = const 0.0 : f32 yield t0 }",
        'extern "aten.relu.default" (%a) aten defines (%r: f32[4, 6])',
        "%r: f32[4, 6] = scatter add [i0: 4, i1: 6] into %a { t0 = const 0.0 : f32 at [i0, i1] yield t0 }",
    ],
)
def test_nobody_reads_what_is_not_full(reader: str) -> None:
    first = "%a: f32[4, 6] = scatter store [i0: 4, i1: 5] { t0 = const 1.0 : f32 at [i0, i1] yield t0 }"
    error = refused(f"graph @g {{\n{first}\n{reader}\nreturn ()\n}}")
    assert error.code == "unfilled"
    assert "%a" in error.reason
    verify_graph(parse_graph(f"graph @g {{\n{first.replace('i1: 5', 'i1: 6')}\n{reader}\nreturn ()\n}}"))


@pytest.mark.parametrize(
    "at, ranges, box",
    [
        ("i0, i1", "i0: 4, i1: 3", ((0, 0), (4, 3))),
        ("i1 + 1, i0 + 2", "i0: 4, i1: 3", ((1, 2), (3, 4))),
        ("2, i0", "i0: 6", ((2, 0), (1, 6))),
        ("2, 3", "", ((2, 3), (1, 1))),
        ("2, i0", "i0: 6, i1: 1", ((2, 0), (1, 6))),
        ("2*i0, i1", "i0: 2, i1: 3", None),
        ("i0 % 2, i1", "i0: 4, i1: 3", None),
        ("i0, i0", "i0: 4", None),
        ("i0 + i1, 0", "i0: 2, i1: 2", None),
        ("0, i0", "i0: 6, i1: 2", None),
    ],
)
def test_boxes_of_scatters(at: str, ranges: str, box: tuple[tuple[int, ...], ...] | None) -> None:
    text = f"graph @g {{ input %a: f32[4, 6] %y: f32[4, 6] = scatter store [{ranges}] into %a {{"
    (node,) = nodes_of(text + f" t0 = const 1.0 : f32 at [{at}] yield t0 }} return (%y) }}")
    wanted = box and Box(tuple(map(as_expr, box[0])), tuple(map(as_expr, box[1])))
    assert box_of(node) == wanted


def test_masked_and_combining_scatters_fill_nothing() -> None:
    head = "graph @g { input %a: f32[4] input %m: bool[4] %y: f32[4] = scatter"
    masked = (
        f"{head} store [i0: 4] into %a {{ t0 = load %m[i0] : bool t1 = const 1.0 : f32 at [i0] mask t0 "
        f"yield t1 }}"
    )
    adding = f"{head} add [i0: 4] into %a {{ t1 = const 1.0 : f32 at [i0] yield t1 }}"
    for text in (masked, adding):
        (node,) = nodes_of(f"{text} return (%y) }}")
        assert box_of(node) is None


PERMUTED = """
graph @g {
  input %p: i64[4]
  %y: i64[4] = scatter store [i0: 4] covers {
    t0 = load %p[i0] : i64
    t1 = index [i0]
    at [@0] using (t0)
    yield t1
  }
  return (%y)
}
"""


def test_a_scatter_that_covers_its_output_fills_it() -> None:
    graph = parse_graph(PERMUTED)
    verify_graph(graph)
    (found,) = interpret_graph(graph, (torch.tensor([2, 0, 3, 1]),))
    assert isinstance(found, torch.Tensor) and found.tolist() == [1, 3, 0, 2]
    assert refused(PERMUTED.replace(" covers", "")).code == "fill"


def test_the_interpreter_does_not_take_coverage_on_trust() -> None:
    with pytest.raises(InterpretError, match="%y leaves elements out"):
        interpret_graph(parse_graph(PERMUTED), (torch.tensor([2, 0, 3, 2]),))


SPARSE = PERMUTED.replace("%y: i64[4]", "%y: i64[6]").replace("covers", "sparse")


def test_a_sparse_scatter_leaves_elements_to_chance() -> None:
    graph = parse_graph(SPARSE)
    assert parse_graph(format_graph(graph)) == graph
    verify_graph(graph)
    (found,) = interpret_graph(graph, (torch.tensor([2, 0, 5, 2]),))
    assert isinstance(found, torch.Tensor) and found.shape == (6,)
    assert found[0] == 1 and found[2] in (0, 3) and found[5] == 2


def test_only_stores_into_memory_of_ones_own_are_sparse() -> None:
    filled = SPARSE.replace("input %p: i64[4]", "input %p: i64[4] input %old: i64[6]").replace(
        "sparse", "into %old sparse"
    )
    assert refused(filled).code == "sparse"
    assert refused(SPARSE.replace("scatter store", "scatter add")).code == "sparse"
    assert refused(SPARSE.replace("sparse", "covers sparse")).code == "sparse"


WHERE_NEEDED = """
graph @g {
  input %p: i64[4]
  input %needed: bool[]
  %y: i64[4] = scatter store [i0: 4] covers {
    t0 = load %p[i0] : i64
    t1 = index [i0]
    t2 = load %needed[] : bool
    at [@0] using (t0) mask t2
    yield t1
  }
  %z: i64[4] = pointwise [i0: 4] {
    t0 = load %needed[] : bool
    t1 = load %y[i0] : i64 mask t0 other 7
    yield t1
  }
  return (%z)
}
"""


def test_memory_that_data_say_is_not_needed_is_not_filled() -> None:
    graph = parse_graph(WHERE_NEEDED)
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph
    for needed, wanted in ((True, [1, 3, 0, 2]), (False, [7, 7, 7, 7])):
        (found,) = interpret_graph(graph, (torch.tensor([2, 0, 3, 1]), torch.tensor(needed)))
        assert isinstance(found, torch.Tensor) and found.tolist() == wanted
    # the places of all points are looked at, whatever is stored
    with pytest.raises(InterpretError, match="%y leaves elements out"):
        interpret_graph(graph, (torch.tensor([2, 0, 3, 2]), torch.tensor(False)))


def test_boxes_join_in_any_order() -> None:
    n = symbol("n", lo=1)
    shape = (n + 3, as_expr(7))
    parts = [
        Box((as_expr(0), as_expr(0)), (n, as_expr(6))),
        Box((n, as_expr(0)), (as_expr(3), as_expr(6))),
        Box((as_expr(0), as_expr(6)), (n + 3, as_expr(1))),
    ]
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)):
        boxes: tuple[Box, ...] = ()
        for number in order:
            assert not is_whole(boxes, shape)
            boxes = add_box(boxes, parts[number])
        assert boxes == (make_whole_box(shape),)
        assert is_whole(boxes, shape)
    # what overlaps counts as no more than its parts
    twice = add_box(add_box((), parts[0]), parts[0])
    assert twice == (parts[0],)
