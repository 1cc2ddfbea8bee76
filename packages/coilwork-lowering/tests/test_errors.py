"""What cannot be lowered says what, where and what to do."""

from __future__ import annotations

from operator import attrgetter

import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import LoweringError, LoweringOptions, lower


def test_a_higher_order_operator_is_refused_with_its_place() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)

    def strange(value: torch.Tensor) -> torch.Tensor:
        return value

    node = graph.call_function(strange, (x,))
    node.meta["stack_trace"] = '  File "model.py", line 88, in forward\n    y = strange(h)\n'
    graph.output((node,))
    with pytest.raises(LoweringError) as caught:
        lower(torch.fx.GraphModule(torch.nn.Module(), graph), name="g")
    assert caught.value.code == "no-lowering"
    text = str(caught.value)
    assert text.startswith("LoweringError[no-lowering]: strange has no lowering\n")
    assert "  source  model.py:88   y = strange(h)" in text
    assert "  reason  higher-order operators and Python functions cannot be called" in text
    assert "  try     run this graph in eager mode" in text


def test_a_number_as_input_is_refused() -> None:
    graph = torch.fx.Graph()
    graph.placeholder("x").meta["val"] = "text"
    graph.output(())
    with pytest.raises(
        LoweringError, match=r"\[graph-form\]: input x is neither a tensor nor an integer: 'text'"
    ):
        lower(torch.fx.GraphModule(torch.nn.Module(), graph), name="g")


def test_methods_are_refused() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)
    graph.output((graph.call_method("sin", (x,)),))
    with pytest.raises(
        LoweringError, match=r"\[graph-form\]: call_method nodes are not part of an ATen graph"
    ):
        lower(torch.fx.GraphModule(torch.nn.Module(), graph), name="g")


def test_an_element_type_that_is_unknown() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3, dtype=attrgetter("uint4")(torch), device="meta")
    graph.output((x,))
    with pytest.raises(LoweringError, match=r"\[dtype\]: torch element type 'torch.uint4'"):
        lower(torch.fx.GraphModule(torch.nn.Module(), graph), name="g")


@pytest.mark.parametrize("name", ["aten.sin", "aten.sin.default"])
def test_fallback_forces_aten(name: str) -> None:
    options = LoweringOptions(fallback=(name,))
    lowered = trace_and_lower(lambda x: x.sin().cos(), (torch.randn(3),), options=options)
    assert externs(lowered.graph) == ["aten.sin.default"]


@pytest.mark.parametrize(
    ("device", "dtype", "reduce", "called"),
    [
        ("meta", torch.float32, "prod", True),
        ("meta", torch.int16, "sum", True),
        ("meta", torch.float32, "sum", False),
        ("meta", torch.int64, "amax", False),
        ("cpu", torch.float32, "prod", False),
        ("cpu", torch.int16, "sum", False),
    ],
)
def test_updates_that_accelerators_have_no_instruction_for_call_aten(
    device: str, dtype: torch.dtype, reduce: str, called: bool
) -> None:
    x = torch.ones(4, 5, dtype=dtype, device=device)
    k = torch.zeros(3, 5, dtype=torch.int64, device=device)
    gm = make_fx(lambda x, k: x.scatter_reduce(0, k, x[:3], reduce), tracing_mode="fake")(x, k)
    found = externs(lower(gm, name="g").graph)
    assert found == (["aten.scatter_reduce.two"] if called else [])


def test_equal_inputs_give_equal_graphs() -> None:
    gm = make_fx(lambda x: (x.t() @ x).softmax(-1).sum(0), tracing_mode="fake")(torch.randn(3, 4))
    assert lower(gm, name="g").graph == lower(gm, name="g").graph


def test_origins_name_the_line() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    captured: list[str] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        aten = make_fx(gm, tracing_mode="fake", record_module_stack=True)(*inputs)
        for node in aten.graph.nodes:
            node.meta.setdefault("stack_trace", 'File "a.py", line 3, in f\n    y = x.sin()\n')
        (first, *_) = lower(aten, name="g").graph.nodes
        captured.append(str(first.origins[0]))
        return gm

    torch.compile(function, backend=backend)(torch.randn(3))
    assert captured and captured[0].startswith("aten.sin.default at ") and captured[0][-1].isdigit()
