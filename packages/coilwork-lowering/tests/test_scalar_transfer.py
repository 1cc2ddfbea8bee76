"""Numbers read from tensors on one device, computed with on another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.loops import Extern, Graph, Pointwise, Reduce
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import list_loads
from coilwork_lowering import lower


def lowered(function: Callable[..., object], *devices: str) -> Graph:
    """The graph of `function` of one number on each of `devices`."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode:
        fakes = [torch.empty((), device=device) for device in devices]
        gm = make_fx(function, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*fakes)
    graph = lower(gm, name="graph").graph
    verify_graph(graph)
    return graph


def check_devices(graph: Graph) -> list[tuple[str, str]]:
    """No node computes with what lies elsewhere; from where to where numbers are copied."""
    buffers: dict[str, Buffer] = {item.name: item for item in graph.inputs if isinstance(item, Buffer)}
    copies = []
    for node in graph.nodes:
        if isinstance(node, Extern) and node.target == "aten._to_copy.default":
            (source,), (made,) = node.args, node.outputs
            assert isinstance(source, Ref) and isinstance(made, Buffer)
            copies.append((buffers[source.name].device, made.device))
        outputs = (node.output,) if isinstance(node, Pointwise) else getattr(node, "outputs", ())
        for output in outputs:
            if isinstance(output, Buffer):
                buffers[output.name] = output
        if isinstance(node, Pointwise | Reduce):
            device = next(output.device for output in outputs if output is not None)
            assert {buffers[found.buffer].device for found in list_loads([node.body])} <= {device}
    return copies


def test_a_number_of_a_gpu_in_a_tensor_of_the_cpu() -> None:
    graph = lowered(lambda x: torch.scalar_tensor(x.item(), dtype=torch.float64), "cuda")
    assert check_devices(graph) == [("cuda:0", "cpu")]


def test_a_number_of_the_cpu_in_a_kernel_of_a_gpu() -> None:
    graph = lowered(lambda x, y: y * x.item() + y.sin() * x.item(), "cpu", "cuda")
    assert set(check_devices(graph)) == {("cpu", "cuda:0")}


def test_where_all_is_on_one_device_nothing_is_copied() -> None:
    assert check_devices(lowered(lambda x, y: y * x.item(), "cuda", "cuda")) == []
    assert check_devices(lowered(lambda x, y: y * x.item(), "cpu", "cpu")) == []
