"""Copies between devices, traced for a device that nobody has to have: one call crosses, in one
element type.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
CONVERT = "prims.convert_element_type.default"
COPY = "aten._to_copy.default"


def traced(source: torch.device, aim: torch.device, **how: object) -> tuple[torch.fx.GraphModule, list[str]]:
    """The graph of a copy, and its calls in order."""
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device=source)
        gm = make_fx(
            lambda x: torch.ops.aten._to_copy.default(x, device=aim, **how),
            decomposition_table=decompositions(),
        )(x)
    return gm, [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("aim", [CPU, GPU])
@pytest.mark.parametrize("source", [CPU, GPU])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
@pytest.mark.parametrize("memory_format", [None, torch.preserve_format, torch.channels_last])
def test_one_call_crosses(
    source: torch.device,
    aim: torch.device,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
) -> None:
    gm, calls = traced(source, aim, dtype=dtype, non_blocking=True, memory_format=memory_format)
    (result,) = gm.graph.find_nodes(op="output")[0].all_input_nodes
    value = result.meta["val"]
    assert value.device == aim and value.dtype is (dtype or torch.float32)
    wanted = torch.channels_last if memory_format is torch.channels_last else torch.contiguous_format
    assert value.is_contiguous(memory_format=wanted)
    assert calls.count(COPY) == (source != aim)


def test_types_change_on_the_gpu() -> None:
    assert traced(CPU, GPU, dtype=torch.float64)[1] == [COPY, CONVERT]
    assert traced(GPU, CPU, dtype=torch.float16)[1] == [CONVERT, COPY]


def test_the_prim_is_the_same_copy() -> None:
    with FakeTensorMode():
        gm = make_fx(
            lambda x: torch.ops.prims.device_put.default(x, GPU), decomposition_table=decompositions()
        )(torch.empty(3))
    assert [str(n.target) for n in gm.graph.nodes if n.op == "call_function"] == [COPY]
