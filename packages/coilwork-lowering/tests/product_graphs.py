"""Graphs with matrix products, as the padding pass leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from aot_compilers import TracingMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_int
from coilwork_ir.loops import Contraction, Graph
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.matrix_products import match_matrix_product
from coilwork_lowering import LayoutOptions, PaddingDecision, lower, pad_products

ON_CPU = LayoutOptions(layout="captured", devices=("cpu",))


def decided(
    function: Callable[..., Any], *inputs: Any, mode: TracingMode = "fake"
) -> tuple[Graph, PaddingDecision]:
    gm = make_fx(function, tracing_mode=mode)(*inputs)
    captured = {n: n.meta["val"] for n in gm.graph.nodes if n.op == "call_function"}
    made, decision = pad_products(gm, ON_CPU)
    assert (made is gm) == (decision.padded == ())
    assert all(n.meta["val"] is value for n, value in captured.items())
    return lower(made, name="graph").graph, decision


def product_operands(graph: Graph) -> list[tuple[int | None, ...]]:
    """Leading strides of every matrix of every product, results last."""
    buffers: dict[str, Buffer] = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    found = []
    for node in graph.nodes:
        buffers.update((b.name, b) for b in list_defined_buffers(node))
        product = match_matrix_product(node, buffers) if isinstance(node, Contraction) else None
        if product is not None:
            operands = (product.added, product.left, product.right, product.output)
            used = [buffer for buffer in operands if buffer is not None]
            found.append(tuple(as_int(max(b.strides, key=lambda s: as_int(s) or 0)) for b in used))
    return found


def in_eager(function: Callable[..., Any], *inputs: Any) -> Any:
    """What eager makes, where products in bf16 are made in f32 and rounded: processors without bf16 take
    minutes for them.
    """
    with _ProductsInF32():
        return function(*inputs)


class _ProductsInF32(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ not in ("mm", "bmm", "addmm", "baddbmm"):
            return func(*args, **(kwargs or {}))
        made = func(
            *(one.float() if isinstance(one, torch.Tensor) else one for one in args), **(kwargs or {})
        )
        return made.to(args[0].dtype)
