"""Convolutions of the loop IR: what they mean, how they print, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from tensor_results import tensors_of
from torch import Tensor

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.conformance import CONVOLUTION_CASES, check_convolutions
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import ParseError, VerifyError
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.loops import Body, Contraction, Convolution, Graph, Window
from coilwork_ir.loops.access import (
    list_bodies,
    list_defined_buffers,
    list_memory_aliases,
    list_overwritten_buffers,
    list_read_buffers,
)
from coilwork_ir.loops.convolutions import list_contractions, make_bias_gradient
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.layouts import Fixed, find_layouts
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import Scalar, cast, load, op, parameter

FORWARD = """graph @forward {
  symbol s0 in [1, inf]
  input %x: bf16[s0, 4, 9, 11]
  input %w: bf16[6, 2, 3, 5]
  input %b: bf16[6]
  (%y: bf16[s0, 6, 5, 9]) = convolve f32 (stride 2 padding 1 dilation 1, stride 1 padding 1 dilation 1) \
groups 2 {
    value [x0: s0, x1: 4, x2: 9, x3: 11]
    weight [w0: 6, w1: 2, w2: 3, w3: 5]
    result [i0: s0, i1: 6, i2: 5, i3: 9]
    t0 = load %x[x0, x1, x2, x3] : bf16
    t1 = exp(t0)
    t2 = load %w[w0, w1, w2, w3] : bf16
    t3 = parameter 0 : f32
    t4 = load %b[i1] : bf16
    t5 = cast(t4) : f32
    t6 = add(t3, t5)
    t7 = cast(t6) : bf16
    multiply t1, t2
    yield t7
  } loc("conv" "aten.convolution.default" "model.py":3 "y = self.conv(x)" "conv")
  return (%y)
}
"""
BACKWARD = """graph @backward {
  input %x: f32[2, 4, 9]
  input %w: f32[6, 2, 3]
  input %g: f32[2, 6, 4]
  (%dx: f32[2, 4, 9], _, %db: f32[6]) = convolve f32 (stride 2 padding 0 dilation 1) groups 2 {
    value [x0: 2, x1: 4, x2: 9]
    weight [w0: 6, w1: 2, w2: 3]
    gradient [g0: 2, g1: 6, g2: 4]
    t0 = load %x[x0, x1, x2] : f32
    t1 = load %w[w0, w1, w2] : f32
    t2 = load %g[g0, g1, g2] : f32
    multiply t0, t1 for t2
  }
  return (%dx, %db)
}
"""
TRANSPOSED = """graph @transposed {
  input %x: i64[2, 6, 4]
  input %w: i64[6, 2, 3]
  (%y: i64[2, 4, 10]) = convolve i64 (stride 2 padding 0 dilation 1 extra 1) groups 2 transposed {
    value [x0: 2, x1: 6, x2: 4]
    weight [w0: 6, w1: 2, w2: 3]
    result [i0: 2, i1: 4, i2: 10]
    t0 = load %x[x0, x1, x2] : i64
    t1 = load %w[w0, w1, w2] : i64
    t2 = parameter 0 : i64
    multiply t0, t1
    yield t2
  }
  return (%y)
}
"""


TYPES = {torch_dtype(one): one for one in (DType.F64, DType.F32, DType.BF16)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A call of `aten.convolution`."""

    value: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    extra: tuple[int, ...] = (0,)
    groups: int = 1
    transposed: bool = False
    bias: bool = True
    dtype: torch.dtype = torch.float64

    @property
    def rank(self) -> int:
        return len(self.weight) - 2

    def run(self, value: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        listed = [list(self._each(given)) for given in (self.stride, self.padding, self.dilation)]
        result: Tensor = torch.ops.aten.convolution(
            value, weight, bias, *listed, self.transposed, list(self._each(self.extra)), self.groups
        )
        return result

    def windows(self) -> tuple[Window, ...]:
        lists = (self._each(given) for given in (self.stride, self.padding, self.dilation, self.extra))
        return tuple(
            Window(stride=s, padding=p, dilation=d, extra=e) for s, p, d, e in zip(*lists, strict=True)
        )

    def _each(self, given: Sequence[int]) -> tuple[int, ...]:
        return tuple(given) * self.rank if len(given) == 1 else tuple(given)


CASES = {
    "a row": Case(value=(2, 3, 9), weight=(4, 3, 3), padding=(1,)),
    "no bias": Case(value=(2, 3, 9), weight=(4, 3, 3), bias=False),
    "uneven": Case(value=(2, 4, 7, 8), weight=(6, 4, 2, 3), stride=(2, 1), padding=(1, 2), dilation=(2, 1)),
    "groups": Case(value=(2, 4, 7, 6), weight=(6, 2, 3, 3), groups=2, stride=(2,)),
    "single channels": Case(value=(2, 4, 6, 5), weight=(8, 1, 3, 3), groups=4, padding=(1,)),
    "volume": Case(value=(1, 2, 4, 5, 3), weight=(2, 2, 2, 2, 2), padding=(1,), stride=(1, 2, 2)),
    "one tap": Case(value=(2, 3, 4, 5), weight=(5, 3, 1, 1), stride=(2,)),
    "wide border": Case(value=(1, 1, 2, 2), weight=(1, 1, 3, 3), padding=(4,)),
    "floats": Case(value=(2, 3, 9), weight=(4, 3, 3), dtype=torch.float32),
    "halves": Case(value=(2, 3, 9), weight=(4, 3, 3), dtype=torch.bfloat16),
    "transposed": Case(value=(2, 3, 5), weight=(3, 4, 3), transposed=True, padding=(1,)),
    "transposed, uneven": Case(
        value=(2, 4, 4, 3),
        weight=(4, 3, 2, 3),
        transposed=True,
        groups=2,
        stride=(3, 2),
        padding=(1, 0),
        extra=(2, 1),
        dilation=(1, 2),
    ),
    "transposed, single": Case(value=(1, 4, 3), weight=(4, 1, 3), transposed=True, groups=4, stride=(2,)),
}


def drawn(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64).to(dtype)


def body(prefix: str, tensor: Tensor, value: Scalar | None = None) -> Body:
    ranges = tuple(symbol(f"{prefix}{k}", extent=as_expr(size)) for k, size in enumerate(tensor.shape))
    named = load(prefix, ranges, TYPES[tensor.dtype])
    return Body(ranges=ranges, value=named if value is None else value)


def buffer(name: str, like: Tensor) -> Buffer:
    shape = tuple(map(as_expr, like.shape))
    return Buffer(
        name=name,
        dtype=TYPES[like.dtype],
        shape=shape,
        strides=make_contiguous_strides(shape),
    )


def made_graph(inputs: dict[str, Tensor], node: Convolution) -> Graph:
    graph = Graph(
        name="made",
        inputs=tuple(buffer(name, tensor) for name, tensor in inputs.items()),
        nodes=(node,),
        outputs=tuple(Ref(one.name) for one in list_defined_buffers(node)),
    )
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph
    return graph


def forward(case: Case) -> tuple[Graph, list[Tensor], Tensor]:
    value, weight = drawn(case.value, case.dtype), drawn(case.weight, case.dtype)
    features = case.weight[1] * case.groups if case.transposed else case.weight[0]
    bias = drawn((features,), case.dtype) if case.bias else None
    expected = case.run(value, weight, bias)
    wide = DType.F64 if case.dtype is torch.float64 else DType.F32
    result = body("i", expected)
    total: Scalar = parameter(0, wide)
    inputs = {"x": value, "w": weight}
    if bias is not None:
        inputs["b"] = bias
        channel = result.ranges[1]
        total = op("add", total, cast(load("b", (channel,), result.value.dtype), wide))
    node = Convolution(
        outputs=(buffer("y", expected),),
        value=body("x", value),
        weight=body("w", weight),
        epilogue=replace(result, value=cast(total, result.value.dtype)),
        windows=case.windows(),
        groups=case.groups,
        transposed=case.transposed,
        accumulate=wide,
    )
    return made_graph(inputs, node), list(inputs.values()), expected


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_convolution_is_torchs(case: Case) -> None:
    graph, inputs, expected = forward(case)
    (found,) = interpret_graph(graph, inputs)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients_are_torchs(case: Case) -> None:
    value, weight = drawn(case.value, case.dtype), drawn(case.weight, case.dtype)
    features = case.weight[1] * case.groups if case.transposed else case.weight[0]
    bias = drawn((features,), case.dtype)
    leaves = [one.requires_grad_() for one in (value, weight, bias)]
    result = case.run(*leaves)
    gradient = drawn(result.shape, case.dtype)
    expected = torch.autograd.grad(result, leaves, gradient)
    wanted = (True, True, case.bias)
    inputs = {"x": value.detach(), "w": weight.detach(), "g": gradient}
    node = Convolution(
        outputs=tuple(
            buffer(name, one) if want else None
            for name, one, want in zip(("dx", "dw", "db"), expected, wanted, strict=True)
        ),
        value=body("x", value),
        weight=body("w", weight),
        gradient=body("g", gradient),
        windows=case.windows(),
        groups=case.groups,
        transposed=case.transposed,
        accumulate=DType.F64 if case.dtype is torch.float64 else DType.F32,
    )
    found = interpret_graph(made_graph(inputs, node), list(inputs.values()))
    torch.testing.assert_close(found, [one for one, want in zip(expected, wanted, strict=True) if want])


def test_prologues_are_inside_the_border() -> None:
    """Outside of the image are zeros, not what the prologue makes of them."""
    image, weight = drawn((2, 4, 9, 11), torch.bfloat16), drawn((6, 2, 3, 5), torch.bfloat16)
    bias = drawn((6,), torch.bfloat16)
    graph = parse_graph(FORWARD)
    verify_graph(graph)
    (found,) = interpret_graph(graph, [image, weight, bias])
    shaped = (image.exp().float(), weight.float(), bias.float())
    expected = torch.nn.functional.conv2d(*shaped, stride=(2, 1), padding=1, groups=2)
    torch.testing.assert_close(found, expected.bfloat16())


def test_the_text_is_canonical() -> None:
    for text in (FORWARD, BACKWARD, TRANSPOSED):
        graph = parse_graph(text)
        verify_graph(graph)
        assert format_graph(graph) == text
        assert parse_graph(format_graph(graph)) == graph


def test_it_is_defined_by_contractions_that_the_verifier_takes() -> None:
    for text in (FORWARD, BACKWARD, TRANSPOSED):
        graph = parse_graph(text)
        (node,) = graph.nodes
        assert isinstance(node, Convolution)
        parts = list_contractions(node)
        bias = make_bias_gradient(node)
        every = (*parts, *(() if bias is None else (bias,)))
        assert all(isinstance(part, Contraction) for part in parts)
        assert [b.name for part in every for b in list_defined_buffers(part)] == [
            b.name for b in list_defined_buffers(node)
        ]
        verify_graph(replace(graph, nodes=every))


def test_what_it_reads_and_defines() -> None:
    (node,) = parse_graph(FORWARD).nodes
    assert isinstance(node, Convolution) and node.epilogue is not None
    assert list_bodies(node) == (node.value.value, node.weight.value, node.epilogue.value)
    assert list_read_buffers(node) == ("x", "w", "b") and [b.name for b in list_defined_buffers(node)] == [
        "y"
    ]
    (node,) = parse_graph(BACKWARD).nodes
    assert list_read_buffers(node) == ("x", "w", "g") and [b.name for b in list_defined_buffers(node)] == [
        "dx",
        "db",
    ]
    assert list_overwritten_buffers(node) == () and list_memory_aliases(node) == ()


def test_memory_of_convolutions_lies_as_it_must() -> None:
    layouts = find_layouts(parse_graph(BACKWARD.replace("return (%dx, %db)", "return (%db)")))
    assert isinstance(layouts["dx"], Fixed) and "convolution" in layouts["dx"].why


@pytest.mark.parametrize(
    ("text", "code", "old", "new"),
    [
        (FORWARD, "convolution-form", "stride 2", "stride 0"),
        (FORWARD, "convolution-form", "dilation 1, stride 1 padding 1 dilation 1)", "dilation 1)"),
        (FORWARD, "convolution-form", "groups 2", "groups 0"),
        (FORWARD, "convolution-form", "dilation 1)", "dilation 1 extra 1)"),
        (FORWARD, "convolution-extents", "groups 2", "groups 1"),
        (FORWARD, "convolution-extents", "stride 2", "stride 1"),
        (FORWARD, "convolution-extents", "groups 2", "groups 4"),
        (TRANSPOSED, "convolution-extents", "extra 1", "extra 0"),
        (BACKWARD, "output-count", "(%dx: f32[2, 4, 9], _, ", "(_, "),
        (BACKWARD, "range-extents", "%dx: f32[2, 4, 9]", "%dx: f32[2, 4, 8]"),
        (BACKWARD, "range-extents", "%db: f32[6]", "%db: f32[4]"),
        (BACKWARD, "range-extents", "w0", "x0"),
        (BACKWARD, "contraction-types", "%db: f32", "%db: i64"),
        (FORWARD, "contraction-types", "convolve f32", "convolve bf16"),
        (FORWARD, "parameter", "parameter 0", "parameter 1"),
        (FORWARD, "symbol-declared", "load %b[i1]", "load %b[w0]"),
        (FORWARD, "symbol-declared", "load %x[x0, x1, x2, x3]", "load %x[x0, x1, x2, i3]"),
        (FORWARD, "body-dtype", "(%y: bf16", "(%y: f16"),
        (FORWARD, "range-extents", "(%y: bf16[s0, 6, 5, 9])", "(%y: bf16[s0, 6, 5, 8])"),
        (FORWARD, "defined-before-use", "load %w[", "load %v["),
    ],
)
def test_what_is_no_convolution_is_refused(text: str, code: str, old: str, new: str) -> None:
    broken = text.replace(old, new)
    assert broken != text
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(broken))
    assert caught.value.code == code


@pytest.mark.parametrize("line", ["    multiply t0, t1 for t2\n", "    weight [w0: 6, w1: 2, w2: 3]\n"])
def test_a_convolution_without_operands_does_not_parse(line: str) -> None:
    with pytest.raises(ParseError):
        parse_graph(BACKWARD.replace(line, ""))


def test_the_kit_tells_right_from_wrong() -> None:
    assert len({case.name for case in CONVOLUTION_CASES}) == len(CONVOLUTION_CASES)
    for case in CONVOLUTION_CASES:
        graph = parse_graph(case.text)
        assert parse_graph(format_graph(graph)) == graph
    assert {one.status for one in check_convolutions(interpret_graph)} == {"passed"}
    shifted = check_convolutions(
        lambda graph, inputs: [one + 1 for one in tensors_of(interpret_graph(graph, inputs))]
    )
    assert {one.status for one in shifted} == {"failed"}
