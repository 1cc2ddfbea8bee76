"""Products by vectors, of scaled floats of 8 bits and with activations are calls of ATen's, as they were
written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import pytest
import torch
from declared import ScheduleFields, schedule
from torch import Tensor

from coilwork_ir.buffers import Buffer, Ref, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.kernels import Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern, Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.loops.matrix_products import make_product
from coilwork_ir.loops.text import format_graph, parse_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.target import TARGETS
from coilwork_scheduler import ScheduleOptions

F32, BF16, F8 = DType.F32, DType.BF16, DType.F8E4M3
CPU, GPU = "x86-64-avx512", "sm_90"


def buffer(name: str, *shape: int, dtype: DType = F32, turned: bool = False) -> Buffer:
    sizes = tuple(as_expr(size) for size in shape)
    strides = make_contiguous_strides(sizes[::-1])[::-1] if turned else make_contiguous_strides(sizes)
    return Buffer(name=name, dtype=dtype, shape=sizes, strides=strides, device="cpu")


def graph_of(inputs: Sequence[Buffer], output: Buffer, **form: Any) -> Graph:
    named = {one.name: one for one in inputs}
    scales = (named["p"], named["q"]) if "p" in named else None
    node = make_product(output, named["x"], named["w"], named.get("b"), scales=scales, **form)
    graph = Graph(name="g", inputs=tuple(inputs), constants=(), nodes=(node,), outputs=(Ref(output.name),))
    verify_graph(graph)
    assert parse_graph(format_graph(graph)) == graph
    return graph


def scheduled(graph: Graph, target: str, **options: Unpack[ScheduleFields]) -> tuple[Schedule, list[Extern]]:
    made = schedule(graph, TARGETS[target], ScheduleOptions(**options))
    verify_schedule(made)
    return made, [step for step in made.steps if isinstance(step, Extern)]


def drawn(one: Buffer) -> Tensor:
    generator = torch.Generator().manual_seed(len(one.name + one.dtype.text))
    sizes = [int(repr(size)) for size in one.shape]
    strides = [int(repr(stride)) for stride in one.strides]
    values = torch.randn(sizes, generator=generator)
    made = torch.empty_strided(sizes, strides, dtype=getattr(torch, one.dtype.torch_name))
    return made.copy_(values.abs() if one.name in "pq" else values)


X, W, V = buffer("x", 6, 16), buffer("w", 16, 8), buffer("w", 16)
Y, Z = buffer("y", 6, 8), buffer("y", 6)
B, C = buffer("b", 8), buffer("b", 6)
SCALED = (buffer("x", 32, 64, dtype=F8), buffer("w", 64, 48, dtype=F8, turned=True))
BY_TENSOR = (*SCALED, buffer("p"), buffer("q", 1))
BY_ROW = (*SCALED, buffer("p", 32, 1), buffer("q", 1, 48), buffer("b", 48, dtype=BF16))
WIDE = buffer("y", 32, 48, dtype=BF16)
HALF = torch.bfloat16

CASES: dict[str, tuple[Graph, str, dict[str, object], Callable[..., Tensor]]] = {
    "mv": (graph_of((X, V), Z), "mv", {}, torch.mv),
    "addmv": (graph_of((X, V, C), Z), "addmv", {}, lambda x, w, b: torch.addmv(b, x, w)),
    "weighted": (
        graph_of((X, V, C), Z, alpha=2, beta=0.5),
        "addmv",
        {"beta": 0.5, "alpha": 2},
        lambda x, w, b: torch.addmv(b, x, w, beta=0.5, alpha=2),
    ),
    "relu": (
        graph_of((X, W, B), Y, activation="relu"),
        "_addmm_activation",
        {},
        lambda x, w, b: torch.addmm(b, x, w).relu(),
    ),
    "relu of a product": (
        graph_of((X, W), Y, activation="relu"),
        "_addmm_activation",
        {"beta": 0},
        lambda x, w: (x @ w).relu(),
    ),
    "scaled": (
        graph_of(BY_TENSOR, WIDE),
        "_scaled_mm",
        {},
        lambda x, w, p, q: torch._scaled_mm(x, w, p, q, out_dtype=HALF),
    ),
    "scaled by rows": (
        graph_of(BY_ROW, WIDE, approximate=True),
        "_scaled_mm",
        {},
        lambda x, w, p, q, b: torch._scaled_mm(x, w, p, q, bias=b, out_dtype=HALF),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_form_is_the_call_of_its_name(name: str) -> None:
    graph, target, kwargs, function = CASES[name]
    inputs = [drawn(one) for one in graph.inputs if isinstance(one, Buffer)]
    for device in (CPU, GPU):
        for contractions in ("auto", "aten", "generated"):
            made, (call,) = scheduled(graph, device, contractions=contractions)
            assert call.target == f"aten.{target}.default" and call.fresh and made.kernels == ()
            assert call.implements == ("activated product" if "relu" in name else "")
            assert call.out_overload == ("" if target == "mv" else f"aten.{target}.out")
            assert dict(call.kwargs) == kwargs
            if target == "_scaled_mm":
                assert call.args[-1] is (name == "scaled by rows")
    made, _ = scheduled(graph, GPU, contractions="generated")
    (found,), (meant,) = interpret_schedule(made, inputs), interpret_graph(graph, inputs)
    assert isinstance(found, Tensor) and isinstance(meant, Tensor)
    assert torch.equal(found, function(*inputs))
    torch.testing.assert_close(found, meant)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_each_device_has_its_own_gelu(activation: str) -> None:
    """What a device's call does not compute becomes loops."""
    graph = graph_of((X, W, B), Y, activation=activation)
    for device, own in ((CPU, "gelu"), (GPU, "gelu_tanh")):
        made, calls = scheduled(graph, device)
        assert [dict(call.kwargs) for call in calls] == ([{"use_gelu": True}] if own == activation else [])
        if not calls:
            inputs = [drawn(one) for one in (X, W, B)]
            approximate = "tanh" if activation == "gelu_tanh" else "none"
            (found,) = interpret_schedule(made, inputs)
            product = torch.addmm(inputs[2], inputs[0], inputs[1])
            expected = torch.nn.functional.gelu(product, approximate=approximate)
            torch.testing.assert_close(found, expected)


def test_what_no_call_takes_is_loops() -> None:
    """A vector of another type, scales of wide factors, an activation of scaled sums."""
    narrow = buffer("w", 16, dtype=BF16)
    forms = [
        graph_of((X, narrow), Z),
        graph_of((X, W, buffer("p"), buffer("q")), Y),
        graph_of(BY_TENSOR, WIDE, activation="relu"),
    ]
    for graph in forms:
        inputs = [drawn(one) for one in graph.inputs if isinstance(one, Buffer)]
        for device in (CPU, GPU):
            made, calls = scheduled(graph, device)
            assert calls == []
            (found,), (meant,) = interpret_schedule(made, inputs), interpret_graph(graph, inputs)
            torch.testing.assert_close(found, meant)
