"""Fused attention becomes a node; what no node says is a call of ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_against_eager import assert_as_eager, externs, trace_and_lower
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.buffers import Buffer
from coilwork_ir.loops import Attention, AttentionGradient, Graph
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.attention import LibraryAttention, match_library_attention
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_lowering import LoweringOptions, lower

aten = torch.ops.aten


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(heads: int = 4, keys: int = 7, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    sizes = ((2, 4, 7, 8), (2, heads, keys, 8), (2, heads, keys, 8))
    return tuple(drawn(*size, dtype=dtype, seed=k) for k, size in enumerate(sizes))


def attend(**options: Any) -> Callable[..., Tensor]:
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **options)


def gradients(**options: Any) -> Callable[..., Any]:
    def run(*tensors: Tensor) -> Any:
        leaves = [one.detach().requires_grad_(k < 3) for k, one in enumerate(tensors)]
        result = attend(**options)(*leaves)
        return torch.autograd.grad((result * result).sum(), leaves[:3])

    return run


def library_parts(graph: Graph) -> list[LibraryAttention]:
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph
    buffers = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    buffers |= {b.name: b for node in graph.nodes for b in list_defined_buffers(node)}
    nodes = [node for node in graph.nodes if isinstance(node, Attention | AttentionGradient)]
    found = [match_library_attention(node, buffers) for node in nodes]
    assert None not in found
    return [one[0] for one in found if one is not None]


BIAS = drawn(2, 1, 7, 7, seed=9).masked_fill(torch.ones(7, 7, dtype=torch.bool).tril(-4), float("-inf"))
CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], dict[str, Any]]] = {
    "all keys": (attend(), operands(), {"causal": "", "scale": 1 / 8**0.5}),
    "causal": (attend(is_causal=True), operands(keys=9), {"causal": "first"}),
    "scaled": (attend(scale=0.3), operands(), {"scale": 0.3}),
    "shared heads": (attend(enable_gqa=True), operands(heads=2), {}),
    "one shared head": (attend(enable_gqa=True), operands(heads=1), {}),
    "bias": (attend(), (*operands(), BIAS), {}),
    "a bias of rows": (attend(), (*operands(), BIAS[0, 0, :, :1].expand(7, 7)), {}),
    "nothing is left": (attend(), (*operands(), torch.full((7, 7), float("-inf"))), {}),
    "double": (attend(), operands(dtype=torch.float64), {}),
    "brain": (attend(is_causal=True), operands(dtype=torch.bfloat16), {"causal": "first"}),
    "transposed": (
        lambda x: F.scaled_dot_product_attention(*x.unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)),
        (drawn(2, 7, 96),),
        {},
    ),
    "gradient": (gradients(is_causal=True), operands(), {"causal": "first"}),
    "gradient of shared heads": (gradients(enable_gqa=True), operands(heads=2), {}),
    "gradient beside a bias": (
        lambda q, k, v, b: gradients(attn_mask=b, scale=0.5)(q, k, v),
        (*operands(), BIAS),
        {"scale": 0.5},
    ),
    "gradient of brains": (gradients(), operands(dtype=torch.bfloat16), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_a_node(name: str) -> None:
    function, inputs, expected = CASES[name]
    tolerance = 0.05 if inputs[0].dtype is torch.bfloat16 else None
    found = library_parts(assert_as_eager(function, *inputs, tolerance=tolerance).graph)
    assert len(found) == (2 if "gradient" in name else 1)
    for parts in found:
        assert parts.form == "plain" and {key: getattr(parts, key) for key in expected} == expected


def forward_and_gradient(form: str, wanted: list[bool]) -> Callable[..., Any]:
    """A call of each of a library's two operators."""

    def flash(g: Tensor, q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Any:
        o, s, cq, ck, mq, mk, seed, offset, _ = aten._scaled_dot_product_flash_attention(
            q, k, v, 0.1, True, scale=0.125
        )
        more = (cq, ck, mq, mk, 0.1, True, seed, offset)
        return o, *aten._scaled_dot_product_flash_attention_backward(g, q, k, v, o, s, *more, scale=0.125)

    def efficient(g: Tensor, q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Any:
        o, s, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, b, True, 0.1, True)
        more = (seed, offset, 0.1, wanted, True)
        results = aten._scaled_dot_product_efficient_attention_backward(g, q, k, v, b, o, s, *more)
        return o, *(one for one in results if one is not None)

    def cudnn(g: Tensor, q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Any:
        o, s, cq, ck, mq, mk, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, True
        )
        more = (seed, offset, None, cq, ck, mq, mk, 0.0, True)
        return o, *aten._scaled_dot_product_cudnn_attention_backward(g, q, k, v, o, s, *more)

    return {"flash": flash, "efficient": efficient, "cudnn": cudnn}[form]


def lowered_for_gpu(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    with FakeTensorMode():
        given = [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]
        return lower(make_fx(function)(*given), name="graph").graph


SHAPES = ((2, 4, 33, 16),) * 4 + ((2, 1, 33, 33),)
FORMS = {
    "flash": (0.1, None, ["flash", "flash"]),
    "efficient": (0.1, (2, 1, 33, 33), ["efficient", "efficient"]),
    "cudnn": (0.0, None, ["cudnn", "cudnn"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_gpus_kernels_pass_on_is_a_form_of_the_node(form: str) -> None:
    dropout, bias, forms = FORMS[form]
    graph = lowered_for_gpu(forward_and_gradient(form, [True] * 4), *SHAPES)
    found = library_parts(graph)
    assert externs(graph) == [] and [parts.form for parts in found] == forms
    for parts in found:
        assert parts.dropout == dropout and parts.causal == "first"
        shape = None if parts.bias is None else tuple(map(int, map(str, parts.bias.shape)))
        assert shape == bias
    attention, gradient = (n for n in graph.nodes if isinstance(n, Attention | AttentionGradient))
    assert isinstance(attention, Attention) and isinstance(gradient, AttentionGradient)
    assert (gradient.of_bias is not None) == (form == "efficient")


def test_which_end_of_uneven_keys_is_level_with_the_rows() -> None:
    shapes = ((2, 4, 33, 16), (2, 4, 40, 16), (2, 4, 40, 16))
    flash = lowered_for_gpu(
        lambda q, k, v: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0], *shapes
    )
    efficient = lowered_for_gpu(
        lambda q, k, v: aten._scaled_dot_product_efficient_attention(q, k, v, None, False, 0.0, True)[0],
        *shapes,
    )
    assert [parts.causal for parts in (*library_parts(flash), *library_parts(efficient))] == ["last", "first"]


def with_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.1, False, True)[0]


CALLED: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "weights are asked for": (with_weights, SHAPES[:3]),
    "some gradients": (forward_and_gradient("efficient", [True, False, True, False]), SHAPES),
    "a kernel for CPUs": (
        lambda q, k, v: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0],
        SHAPES[:3],
    ),
}


@pytest.mark.parametrize("name", CALLED)
def test_what_no_node_says_is_a_call(name: str) -> None:
    graph = lowered_for_gpu(CALLED[name][0], *CALLED[name][1])
    verify_graph(graph)
    assert len(externs(graph)) == 1 and "attention" in externs(graph)[0]


def test_attention_that_is_left_to_aten_is_a_call() -> None:
    options = LoweringOptions(fallback=("aten._scaled_dot_product_flash_attention_for_cpu",))
    graph = trace_and_lower(attend(), operands(), options=options).graph
    assert externs(graph) == ["aten._scaled_dot_product_flash_attention_for_cpu.default"]
