"""Contractions of the loop IR: what they mean, how they print, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from coilwork_ir.errors import ParseError, VerifyError
from coilwork_ir.loops import Contraction
from coilwork_ir.loops.access import (
    list_bodies,
    list_defined_buffers,
    list_memory_aliases,
    list_overwritten_buffers,
    list_read_buffers,
)
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph

LINEAR = """graph @linear {
  symbol s0 in [0, inf]
  input %x: f32[s0, 3]
  input %w: f32[5, 3]
  input %b: f32[5]
  %y: f32[s0, 5] = contract f32 [i0: s0, i1: 5 | r0: 3] {
    t0 = load %x[i0, r0] : f32
    t1 = load %w[i1, r0] : f32
    t2 = parameter 0 : f32
    t3 = load %b[i1] : f32
    t4 = add(t2, t3)
    multiply t0, t1
    yield t4
  } loc("linear" "aten.linear.default" "model.py":3 "y = self.fc(x)" "fc")
  return (%y)
}
"""
BATCHED = """graph @batched {
  input %x: bf16[2, 4, 3]
  input %w: i8[2, 3, 5]
  input %s: bf16[5]
  %y: bf16[2, 4, 5] = contract f32 [i0: 2, i1: 4, i2: 5 | r0: 3] {
    t0 = load %x[i0, i1, r0] : bf16
    t1 = load %w[i0, r0, i2] : i8
    t2 = cast(t1) : bf16
    t3 = parameter 0 : f32
    t4 = load %s[i2] : bf16
    t5 = cast(t4) : f32
    t6 = mul(t3, t5)
    t7 = cast(t6) : bf16
    multiply t0, t2
    yield t7
  }
  return (%y)
}
"""
# Two axes, and a factor that comes second in memory: an einsum "abk,kac->bc".
TWO_AXES = """graph @two {
  input %x: i64[2, 4, 3]
  input %w: i64[3, 2, 5]
  %y: i64[4, 5] = contract i64 [i0: 4, i1: 5 | r0: 2, r1: 3] {
    t0 = load %w[r1, r0, i1] : i64
    t1 = load %x[r0, i0, r1] : i64
    t2 = parameter 0 : i64
    multiply t0, t1
    yield t2
  }
  return (%y)
}
"""


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def scaled(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return (torch.bmm(x.float(), w.float()) * s.float()).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("text", "inputs", "expected"),
    [
        (LINEAR, (drawn(4, 3), drawn(5, 3), drawn(5)), torch.nn.functional.linear),
        (LINEAR, (drawn(1, 3), drawn(5, 3), drawn(5)), torch.nn.functional.linear),
        (LINEAR, (drawn(0, 3), drawn(5, 3), drawn(5)), torch.nn.functional.linear),
        (
            LINEAR.replace("3]", "0]").replace(": 3", ": 0"),
            (drawn(4, 0), drawn(5, 0), drawn(5)),
            torch.nn.functional.linear,
        ),
        (
            BATCHED,
            (
                drawn(2, 4, 3, dtype=torch.bfloat16),
                drawn(2, 3, 5, dtype=torch.int8),
                drawn(5, dtype=torch.bfloat16),
            ),
            scaled,
        ),
        (
            TWO_AXES,
            (drawn(2, 4, 3, dtype=torch.int64), drawn(3, 2, 5, dtype=torch.int64)),
            lambda x, w: torch.einsum("abk,kac->bc", x, w),
        ),
    ],
    ids=["bias", "one row", "no rows", "no terms", "prologue and epilogue", "two axes"],
)
def test_a_contraction_is_the_sum_of_products(
    text: str, inputs: tuple[Tensor, ...], expected: Callable[..., Tensor]
) -> None:
    graph = parse_graph(text)
    verify_graph(graph)
    rows = [inputs[0].shape[0]] if graph.symbols else []
    (found,) = interpret_graph(graph, list(inputs))
    assert isinstance(found, Tensor) and (not rows or found.shape[0] == rows[0])
    torch.testing.assert_close(found, expected(*inputs))


def test_the_text_is_canonical() -> None:
    for text in (LINEAR, BATCHED, TWO_AXES):
        graph = parse_graph(text)
        assert parse_graph(format_graph(graph)) == graph
        assert format_graph(parse_graph(format_graph(graph))) == format_graph(graph)
    assert "loc(" not in format_graph(parse_graph(LINEAR), origins=False)


def test_what_it_reads_and_defines() -> None:
    (node,) = parse_graph(LINEAR).nodes
    assert isinstance(node, Contraction) and list_bodies(node) == (node.left, node.right, node.epilogue)
    assert list_read_buffers(node) == ("x", "w", "b") and [b.name for b in list_defined_buffers(node)] == [
        "y"
    ]
    assert list_overwritten_buffers(node) == () and list_memory_aliases(node) == ()


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("contraction-ranges", "load %w[i1, r0]", "load %w[4, r0]"),
        ("contraction-ranges", "load %x[i0, r0]", "load %x[i0, 0]"),
        ("contraction-types", "contract f32", "contract f64"),
        ("contraction-types", "contract f32", "contract bool"),
        ("parameter", "parameter 0", "parameter 1"),
        ("parameter", "multiply t0, t1", "multiply t0, t4"),
        ("symbol-declared", "load %b[i1]", "load %b[r0]"),
        ("body-dtype", "%y: f32", "%y: f64"),
        ("axes", "| r0: 3", "| r0: 3, r0: 3"),
        ("range-extents", "%y: f32[s0, 5]", "%y: f32[s0, 6]"),
        ("defined-before-use", "load %w[", "load %v["),
    ],
)
def test_what_is_no_contraction_is_refused(code: str, old: str, new: str) -> None:
    broken = LINEAR.replace(old, new)
    assert broken != LINEAR
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(broken))
    assert caught.value.code == code


def test_one_element_ranges_need_no_factor() -> None:
    verify_graph(parse_graph(LINEAR.replace("load %w[i1, r0]", "load %w[0, r0]").replace("5", "1")))


def test_a_contraction_without_factors_does_not_parse() -> None:
    with pytest.raises(ParseError, match="multiply"):
        parse_graph(LINEAR.replace("    multiply t0, t1\n", ""))
