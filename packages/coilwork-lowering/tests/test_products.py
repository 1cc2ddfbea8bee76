"""Products of matrices are contractions; what no contraction says is a call of ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_against_eager import assert_as_eager, externs, trace_and_lower
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Contraction, Extern, Graph
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.matrix_products import (
    GroupedProduct,
    MatrixProduct,
    match_grouped_product,
    match_matrix_product,
)
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import LoweringOptions, lower

HALF, BRAIN = torch.float16, torch.bfloat16


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    if not dtype.is_floating_point:
        return torch.randint(-5, 6, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def products(graph: Graph) -> list[MatrixProduct]:
    buffers = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    buffers |= {b.name: b for node in graph.nodes for b in list_defined_buffers(node)}
    found = [match_matrix_product(n, buffers) for n in graph.nodes if isinstance(n, Contraction)]
    return [one for one in found if one is not None]


C64 = torch.complex64
MATRICES = (drawn(4, 3), drawn(3, 5))
EIGHTS = tuple(drawn(size, 64).to(torch.float8_e4m3fn) for size in (32, 48))


def scaled(a: torch.Tensor, b: torch.Tensor, of_a: torch.Tensor, of_b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b.t(), scale_a=of_a, scale_b=of_b, out_dtype=BRAIN)


BATCHES = (drawn(2, 4, 3), drawn(2, 3, 5))
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "mm": (torch.mm, MATRICES),
    "of columns": (lambda a, b: torch.mm(a.t(), b[:, 1:].t()), (drawn(3, 4), drawn(5, 4))),
    "one row": (torch.mm, (drawn(1, 3), drawn(3, 5))),
    "no terms": (torch.mm, (drawn(4, 0), drawn(0, 5))),
    "no rows": (torch.mm, (drawn(0, 3), drawn(3, 5))),
    "bmm": (torch.bmm, BATCHES),
    "addmm": (torch.addmm, (drawn(5), *MATRICES)),
    "a column is added": (torch.addmm, (drawn(4, 1), *MATRICES)),
    "a number is added": (torch.addmm, (drawn(), *MATRICES)),
    "baddbmm": (torch.baddbmm, (drawn(4, 5), *BATCHES)),
    "weighted": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), (drawn(5), *MATRICES)),
    "half": (torch.mm, (drawn(4, 3, dtype=HALF), drawn(3, 5, dtype=HALF))),
    "brain": (
        torch.addmm,
        (drawn(5, dtype=BRAIN), drawn(4, 3, dtype=BRAIN), drawn(3, 5, dtype=BRAIN)),
    ),
    "double": (torch.mm, (drawn(4, 3).double(), drawn(3, 5).double())),
    "integers": (torch.mm, (drawn(4, 3, dtype=torch.int64), drawn(3, 5, dtype=torch.int64))),
    "bytes into integers": (
        torch._int_mm,
        (drawn(32, 16, dtype=torch.int8), drawn(16, 24, dtype=torch.int8)),
    ),
    "mv": (torch.mv, (drawn(4, 3), drawn(3))),
    "mv of columns": (lambda a, v: torch.mv(a.t(), v[::2]), (drawn(3, 4), drawn(6))),
    "mv of no terms": (torch.mv, (drawn(4, 0), drawn(0))),
    "addmv": (torch.addmv, (drawn(4), drawn(4, 3), drawn(3))),
    "addmv of integers": (
        lambda a, v: torch.addmv(v[:2], a, v, alpha=3),
        (drawn(2, 3, dtype=torch.int64), drawn(3, dtype=torch.int64)),
    ),
    "relu": (torch._addmm_activation, (drawn(5), *MATRICES)),
    "gelu": (lambda c, a, b: torch._addmm_activation(c, a, b, use_gelu=True), (drawn(5), *MATRICES)),
    "relu of nothing added": (
        lambda c, a, b: torch._addmm_activation(c, a, b, beta=0),
        (torch.full((5,), float("nan")), *MATRICES),
    ),
    "scaled": (scaled, (*EIGHTS, drawn(1).abs(), drawn(1, 1).abs())),
    "scaled by rows": (scaled, (*EIGHTS, drawn(32, 1).abs(), drawn(1, 48).abs())),
    "scaled and added": (
        lambda a, b, of_a, of_b, c: torch._scaled_mm(
            a, b.t(), of_a, of_b, bias=c, out_dtype=BRAIN, use_fast_accum=True
        ),
        (*EIGHTS, drawn().abs(), drawn().abs(), drawn(48, dtype=BRAIN)),
    ),
    "bytes": (torch.mm, (drawn(4, 3, dtype=torch.int8), drawn(3, 5, dtype=torch.int8))),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_a_contraction(name: str) -> None:
    function, inputs = CASES[name]
    graph = assert_as_eager(function, *inputs).graph
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph
    (product,) = products(graph)
    weights = {"weighted": (2, 0.5), "addmv of integers": (3, 1)}.get(name, (1, 1))
    assert (product.alpha, product.beta) == weights and product.is_weighted is (weights != (1, 1))
    assert product.is_of_vector is ("mv" in name)
    assert (product.scales is not None) is ("scaled" in name)
    assert product.activation == next((one for one in ("relu", "gelu") if one in name), "")
    (found,) = interpret_graph(graph, [one.clone() for one in inputs])
    torch.testing.assert_close(found, function(*inputs))


def test_what_units_may_round_is_said() -> None:
    """`use_fast_accum` is no part of what is computed, but of how exactly."""
    said = {}
    for name in ("scaled", "scaled and added"):
        function, inputs = CASES[name]
        graph = assert_as_eager(function, *inputs).graph
        said[name] = [node.approximate for node in graph.nodes if isinstance(node, Contraction)]
    assert said == {"scaled": [False], "scaled and added": [True]}


CALLED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], str]] = {
    "complex": (torch.mm, (MATRICES[0].to(C64), MATRICES[1].to(C64)), "aten.mm.default"),
    "nothing is added": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0, alpha=2),
        (torch.full((5,), float("nan")), *MATRICES),
        "aten.addmm.default",
    ),
    "complex vector": (torch.mv, (MATRICES[0].to(C64), drawn(3).to(C64)), "aten.mv.default"),
    "a result of 8 bits": (
        lambda a, b, of_a, of_b: torch._scaled_mm(a, b.t(), of_a, of_b, out_dtype=torch.float8_e4m3fn),
        (*EIGHTS, drawn().abs(), drawn().abs()),
        "aten._scaled_mm.default",
    ),
}


@pytest.mark.parametrize("name", CALLED)
def test_other_products_are_calls(name: str) -> None:
    function, inputs, target = CALLED[name]
    graph = assert_as_eager(function, *inputs, extern=True).graph
    assert externs(graph) == [target] and products(graph) == []
    plain = target in ("aten.mm.default", "aten.addmm.default")
    (call,) = [node for node in graph.nodes if isinstance(node, Extern)]
    assert call.implements == ("product" if plain else "")


def test_a_product_that_is_left_to_aten_is_a_call() -> None:
    options = LoweringOptions(fallback=("aten.mm",))
    graph = trace_and_lower(torch.mm, MATRICES, options=options).graph
    assert externs(graph) == ["aten.mm.default"] and products(graph) == []


ENDS = torch.tensor([2, 2, 8], dtype=torch.int32)
# two dimensions or three of each factor
GROUPED: dict[str, tuple[tuple[torch.Tensor, ...], tuple[int, ...]]] = {
    "rows": ((drawn(8, 16, dtype=BRAIN), drawn(3, 16, 8, dtype=BRAIN)), (2, 3)),
    "columns": ((drawn(3, 8, 16, dtype=BRAIN), drawn(16, 8, dtype=BRAIN)), (3, 2)),
    "terms": ((drawn(16, 8, dtype=BRAIN), drawn(8, 24, dtype=BRAIN)), (2, 2)),
}


@pytest.mark.parametrize("name", GROUPED)
def test_a_product_of_groups_is_a_contraction(name: str) -> None:
    factors, ranks = GROUPED[name]
    inputs = (*factors, ENDS)
    graph = trace_and_lower(lambda a, b, at: torch._grouped_mm(a, b, offs=at), inputs).graph
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph and externs(graph) == []
    (found,) = groups(graph)
    assert (len(found.left.shape), len(found.right.shape)) == ranks and found.ends is not None
    (result,) = interpret_graph(graph, list(inputs))
    torch.testing.assert_close(result, torch._grouped_mm(factors[0], factors[1], offs=ENDS))


def groups(graph: Graph) -> list[GroupedProduct]:
    buffers = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    buffers |= {b.name: b for node in graph.nodes for b in list_defined_buffers(node)}
    found = [match_grouped_product(n, buffers) for n in graph.nodes if isinstance(n, Contraction)]
    return [one for one in found if one is not None]


def test_groups_of_one_size_are_a_batch() -> None:
    factors = (drawn(3, 8, 16, dtype=BRAIN), drawn(3, 16, 8, dtype=BRAIN))
    graph = trace_and_lower(lambda a, b: torch._grouped_mm(a, b), factors).graph
    (product,) = products(graph)
    assert product.is_plain and groups(graph) == []


def eights(*shape: int, last: bool = False) -> torch.Tensor:
    """Floats of 8 bits, by columns, or by rows with the `last` dimension innermost."""
    made = drawn(*shape).to(torch.float8_e4m3fn)
    return made if last else made.transpose(-1, -2).contiguous().transpose(-1, -2)


SCALED_GROUPS: dict[str, tuple[torch.Tensor, ...]] = {
    "rows": (eights(32, 64, last=True), eights(3, 64, 48), drawn(32), drawn(3, 48)),
    "columns": (eights(3, 48, 64, last=True), eights(64, 32), drawn(3, 48), drawn(32)),
    "terms": (eights(32, 64, last=True), eights(64, 48), drawn(96), drawn(144)),
    "one size": (eights(3, 32, 64, last=True), eights(3, 64, 48), drawn(3, 32), drawn(3, 48)),
}


@pytest.mark.parametrize("name", SCALED_GROUPS)
def test_scaled_groups_are_contractions(name: str) -> None:
    """Torch has no such kernel on CPUs: the interpreter is compared with products in f32."""
    a, b, of_a, of_b = SCALED_GROUPS[name]
    at = torch.tensor([16, 16, 64 if name == "terms" else 32], dtype=torch.int32)
    has_ends = name != "one size"

    def function(a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        offs = others[2] if has_ends else None
        return torch._scaled_grouped_mm(
            a, b, others[0], others[1], offs=offs, out_dtype=BRAIN, use_fast_accum=True
        )

    inputs = (a, b, of_a, of_b, *([at] if has_ends else []))
    graph = trace_and_lower(function, inputs).graph
    verify_graph(graph)
    (found,) = groups(graph)
    assert found.scales is not None and found.node.approximate and (found.ends is not None) is has_ends
    (result,) = interpret_graph(graph, list(inputs))
    wide = [one.float() for one in (a, b)]
    bounds = [0, *at.tolist()]
    pieces = [slice(bounds[k], bounds[k + 1]) for k in range(3)]
    if name == "rows":
        parts = [wide[0][p] @ wide[1][k] * of_a[p, None] * of_b[k] for k, p in enumerate(pieces)]
        expected = torch.cat(parts)
    elif name == "columns":
        parts = [wide[0][k] @ wide[1][:, p] * of_a[k, :, None] * of_b[p] for k, p in enumerate(pieces)]
        expected = torch.cat(parts, 1)
    elif name == "terms":
        sums = torch.stack([wide[0][:, p] @ wide[1][p] for p in pieces])
        expected = sums * of_a.view(3, 32, 1) * of_b.view(3, 1, 48)
    else:
        expected = torch.bmm(*wide) * of_a[..., None] * of_b[:, None]
    torch.testing.assert_close(result, expected.to(BRAIN), rtol=1e-2, atol=1e-2)


def test_a_grouped_product_that_is_left_to_aten_is_a_call() -> None:
    inputs = (*GROUPED["rows"][0], ENDS)
    options = LoweringOptions(fallback=("aten._grouped_mm",))
    graph = trace_and_lower(lambda a, b, at: torch._grouped_mm(a, b, offs=at), inputs, options=options).graph
    assert externs(graph) == ["aten._grouped_mm.default"] and groups(graph) == []


def test_sums_of_16_bit_products_may_stay_in_f32() -> None:
    """As cuBLAS leaves them; elsewhere that is a call."""

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.mm.dtype(a, b, torch.float32)

    with FakeTensorMode():
        matrices = [torch.empty(shape, dtype=BRAIN, device="cuda") for shape in ((4, 8), (8, 16))]
        graph = lower(make_fx(multiply)(*matrices), name="graph", options=LoweringOptions()).graph
    (product,) = products(graph)
    assert product.output.dtype is DType.F32 and product.left.dtype is product.right.dtype is DType.BF16
