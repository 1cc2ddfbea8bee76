"""Which memory of a graph lies where it must, and why, and which lies where it likes."""

from __future__ import annotations

import pytest

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.loops import Extern
from coilwork_ir.loops.layouts import (
    Fixed,
    Free,
    find_dense_order,
    find_layouts,
    make_nested_strides,
    release_results,
)
from coilwork_ir.loops.text import parse_graph

GRAPH = """
graph @g {
  input %x: f32[4, 6]
  constant "k" %k: f32[6]
  %a: f32[4, 6]{1, 4} = pointwise [i0: 4, i1: 6] {
    t0 = load %x[i0, i1] : f32
    yield t0
  }
  %b: f32[4, 6] = pointwise [i0: 4, i1: 6] {
    t0 = load %a[i0, i1] : f32
    yield t0
  }
  %b_view: f32[24] = view %b offset `0`
  extern "aten.mv.default" (%b_view, %k) aten defines (%c: f32[4, 6])
  %p: f32[4, 6]{8, 1} = pointwise [i0: 4, i1: 6] {
    t0 = load %c[i0, i1] : f32
    yield t0
  }
  %s: f32[4, 6]{1, 4} = scatter store [i0: 4, i1: 6] into %a {
    t0 = load %p[i0, i1] : f32
    at [i0, i1]
    yield t0
  }
  %none: f32[0, 6] = pointwise [i0: 0, i1: 6] {
    t0 = const 1.0 : f32
    yield t0
  }
  %r: f32[4, 6] = pointwise [i0: 4, i1: 6] {
    t0 = load %s[i0, i1] : f32
    yield t0
  }
  return (%r)FREE
}
"""


def test_every_reason_is_named() -> None:
    layouts = find_layouts(parse_graph(GRAPH.replace("FREE", "")))
    reasons = {name: layout.why for name, layout in layouts.items() if isinstance(layout, Fixed)}
    assert reasons == {
        "x": "an input",
        "k": "a constant",
        "b": "aten.mv.default reads it",
        "c": "aten.mv.default makes it",
        "p": "its rows are padded",
        "none": "it has no elements",
        "r": "a result whose strides the caller sees",
    }


def test_memory_that_is_taken_over_has_one_layout() -> None:
    layouts = find_layouts(parse_graph(GRAPH.replace("FREE", "")))
    assert layouts["a"] == Free((as_expr(4), as_expr(6)))
    assert "s" not in layouts


def test_a_result_that_nobody_sees_is_free() -> None:
    graph = parse_graph(GRAPH.replace("FREE", " free (%r)"))
    assert graph.free_results == ("r",)
    assert isinstance(find_layouts(graph)["r"], Free)


def test_what_regions_are_handed_is_fixed() -> None:
    text = """
    graph @g {
      input %p: bool[]
      input %x: f32[2, 3]
      %a: f32[2, 3] = pointwise [i0: 2, i1: 3] {
        t0 = load %x[i0, i1] : f32
        yield t0
      }
      (%c: f32[2, 3]) = cond %p (%a) {
        graph @then {
          input %y: f32[2, 3]
          return (%y)
        }
        graph @otherwise {
          input %z: f32[2, 3]
          return (%z)
        }
      }
      %d: f32[2, 3] = pointwise [i0: 2, i1: 3] {
        t0 = load %c[i0, i1] : f32
        yield t0
      }
      return (%d)
    }
    """
    layouts = find_layouts(parse_graph(text))
    for name in ("a", "c"):
        assert layouts[name] == Fixed((as_expr(3), as_expr(1)), "it is handed to a region or by one")


@pytest.mark.parametrize("returned, free", [("(%y)", ("y",)), ("(%y, %v)", ()), ("(%x)", ())])
def test_results_are_released_that_are_alone_in_memory_of_the_graph(
    returned: str, free: tuple[str, ...]
) -> None:
    graph = parse_graph(f"""
    graph @g {{
      input %x: f32[4]
      %y: f32[4] = pointwise [i0: 4] {{
        t0 = load %x[i0] : f32
        yield t0
      }}
      %v: f32[2, 2] = view %y offset `0`
      return {returned}
    }}
    """)
    names = returned.strip("()").replace("%", "").split(", ")
    assert release_results(graph, names).free_results == free


def buffer(shape: tuple[Expr | int, ...], strides: tuple[Expr | int, ...]) -> Buffer:
    return Buffer(
        name="b",
        dtype=DType.F32,
        shape=tuple(as_expr(e) for e in shape),
        strides=tuple(as_expr(s) for s in strides),
    )


def test_views_fix_nothing_but_those_of_bits() -> None:
    text = """
    graph @g {
      input %x: f32[4, 6]
      %a: f32[4, 6] = pointwise [i0: 4, i1: 6] {
        t0 = load %x[i0, i1] : f32
        yield t0
      }
      %v: TYPE[24] = view %a offset `0`
      %r: TYPE[24] = pointwise [i0: 24] {
        t0 = load %v[i0] : TYPE
        yield t0
      }
      return (%r)
    }
    """
    assert isinstance(find_layouts(parse_graph(text.replace("TYPE", "f32")))["a"], Free)
    bits = find_layouts(parse_graph(text.replace("TYPE", "i32")))["a"]
    assert isinstance(bits, Fixed) and bits.why == "%v shows its bits as another type"


def test_calls_do_not_fix_what_they_oblige() -> None:
    graph = parse_graph(GRAPH.replace("FREE", ""))
    call = next(k for k, node in enumerate(graph.nodes) if isinstance(node, Extern))
    layouts = find_layouts(graph, obliging={call: ("b_view", "c")})
    assert isinstance(layouts["b"], Free) and isinstance(layouts["c"], Free)
    assert isinstance(find_layouts(graph, obliging={call: ("c",)})["b"], Fixed)


def test_dense_memory_has_an_order() -> None:
    n = symbol("n", lo=2)
    assert find_dense_order(buffer((2, 3, 4), (12, 4, 1))) == (0, 1, 2)
    assert find_dense_order(buffer((2, 3, 4), (12, 1, 3))) == (0, 2, 1)
    assert find_dense_order(buffer((2, 1, 4), (4, 99, 1))) == (1, 0, 2)
    assert find_dense_order(buffer((2, n, 4), (4 * n, 1, n))) == (0, 2, 1)
    assert find_dense_order(buffer((2, 3), (4, 1))) is None
    assert find_dense_order(buffer((2, 3), (0, 1))) is None


def test_nested_strides_are_dense_in_their_order() -> None:
    n = symbol("n", lo=2)
    shape = (as_expr(2), n, as_expr(4))
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        made = Buffer(name="b", dtype=DType.F32, shape=shape, strides=make_nested_strides(shape, order))
        assert find_dense_order(made) == order
