"""Attention that was captured as a call is that call again behind the scheduler, though it was a node in
between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from coilwork_ir.loops import Attention, AttentionGradient, Extern, Graph
from coilwork_ir.operators import list_operators
from coilwork_ir.target import TARGETS
from coilwork_lowering import LoweringOptions, lower
from coilwork_scheduler import schedule

aten = torch.ops.aten
CALLED = LoweringOptions(fallback=tuple(f"aten.{n}" for n in list_operators(lambda info: info.is_attention)))
Shape = tuple[int, ...]


def fakes(shapes: Sequence[Shape], dtype: torch.dtype, device: str, dynamic: bool) -> list[Tensor]:
    """Tensors without memory; `dynamic` ones have an open third size."""
    if not dynamic:
        with FakeTensorMode():
            return [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    kinds = [DimDynamic.STATIC, DimDynamic.STATIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
    made = []
    for position, shape in enumerate(shapes):
        like = mode.from_tensor(
            torch.empty(shape, dtype=dtype, device="meta"),
            source=ConstantSource(f"x{position}"),
            symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds),
        )
        with mode:
            made.append(torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=device))
    return made


def assert_called_as_captured(function: Callable[..., Any], given: Sequence[Tensor], nodes: int) -> None:
    gm = make_fx(lambda *tensors: function(*tensors))(*given)
    target = TARGETS["sm_90" if given[0].device.type == "cuda" else "x86-64-avx512"]
    graphs = [lower(gm, name="graph").graph, lower(gm, name="graph", options=CALLED).graph]
    assert [attention_nodes(graph) for graph in graphs] == [nodes, 0]
    found, captured = (calls(graph, target) for graph in graphs)
    assert found == captured and len(captured) >= nodes


def attention_nodes(graph: Graph) -> int:
    return sum(isinstance(node, Attention | AttentionGradient) for node in graph.nodes)


def calls(graph: Graph, target: Any) -> list[Extern]:
    return [step for step in schedule(graph, target).steps if isinstance(step, Extern)]


def flash(q: Tensor, k: Tensor, v: Tensor, p: float = 0.0) -> Any:
    return aten._scaled_dot_product_flash_attention(q, k, v, p, True, scale=0.125)


def flash_in_training(q: Tensor, k: Tensor, p: float = 0.0) -> Any:
    o, s, cq, ck, mq, mk, seed, offset, _ = flash(q, k, k, p)
    more = (cq, ck, mq, mk, p, True, seed, offset)
    return o, *aten._scaled_dot_product_flash_attention_backward(q, q, k, k, o, s, *more, scale=0.125)


def efficient_in_training(q: Tensor, k: Tensor, b: Tensor) -> Any:
    o, s, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, k, b, True, 0.1, False, scale=0.3)
    more = (seed, offset, 0.1, [True, True, True, True], False)
    grads = aten._scaled_dot_product_efficient_attention_backward(q, q, k, k, b, o, s, *more, scale=0.3)
    return o, *grads


def cudnn_in_training(q: Tensor, k: Tensor) -> Any:
    o, s, cq, ck, mq, mk, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(
        q, k, k, None, True, 0.1, True
    )
    more = (seed, offset, None, cq, ck, mq, mk, 0.1, True)
    return o, *aten._scaled_dot_product_cudnn_attention_backward(q, q, k, k, o, s, *more)


def inference(operator: Any, *more: Any) -> Callable[..., Any]:
    return lambda q, k: operator(q, k, k, *more)[0] * 2


SAME, LONGER, FEWER = (
    ((2, 4, 40, 64),) * 2,
    ((2, 4, 40, 64), (2, 4, 56, 64)),
    ((2, 4, 40, 64), (2, 2, 40, 64)),
)
ON_GPUS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...], bool, int]] = {
    "flash": (flash_in_training, SAME, False, 2),
    "flash, open sizes": (flash_in_training, LONGER, True, 2),
    "flash, dropping": (lambda q, k: flash_in_training(q, k, 0.1), SAME, False, 2),
    "flash, shared heads": (lambda q, k: flash(q, k, k)[:2], FEWER, False, 1),
    "flash, other lengths": (lambda q, k: flash(q, k, k)[0], LONGER, False, 1),
    "efficient": (efficient_in_training, (*LONGER, (2, 1, 40, 56)), False, 2),
    "efficient, inference": (
        inference(aten._scaled_dot_product_efficient_attention, None, False),
        LONGER,
        False,
        1,
    ),
    "cudnn": (cudnn_in_training, SAME, False, 2),
    "cudnn, open sizes": (cudnn_in_training, LONGER, True, 2),
    "cudnn, inference": (inference(aten._scaled_dot_product_cudnn_attention, None, False), SAME, False, 1),
}


@pytest.mark.parametrize("name", ON_GPUS)
def test_gpu_attention_is_called_as_captured(name: str) -> None:
    function, shapes, dynamic, nodes = ON_GPUS[name]
    assert_called_as_captured(function, fakes(shapes, torch.bfloat16, "cuda", dynamic), nodes)


def on_cpus(q: Tensor, k: Tensor, b: Tensor | None = None, **options: Any) -> Any:
    kernel = aten._scaled_dot_product_flash_attention_for_cpu
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
    masked = {} if b is None else {"attn_mask": b}
    o, s = kernel(q, k, k, 0.0, b is None, **masked, **options)
    return o, *backward(q, q, k, k, o, s, 0.0, b is None, **masked, **options)


@pytest.mark.parametrize(
    ("function", "shapes", "dynamic", "nodes"),
    [
        (on_cpus, SAME, False, 2),
        (on_cpus, LONGER, True, 2),
        (lambda q, k: on_cpus(q, k, scale=0.3), FEWER, False, 2),
        (on_cpus, (*LONGER, (40, 56)), False, 2),
        (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True) * 2, LONGER, False, 1),
        (
            lambda x: F.scaled_dot_product_attention(*x.unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4)),
            ((2, 33, 96),),
            False,
            1,
        ),
    ],
    ids=["training", "open sizes", "scaled", "masked", "by torch's function", "transposed"],
)
def test_cpu_attention_is_called_as_captured(
    function: Callable[..., Any], shapes: tuple[Shape, ...], dynamic: bool, nodes: int
) -> None:
    assert_called_as_captured(function, fakes(shapes, torch.float32, "cpu", dynamic), nodes)
