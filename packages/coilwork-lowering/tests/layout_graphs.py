"""Graphs with convolutions, and what the tests of layouts ask of a rewritten one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from aot_compilers import compiler_of
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import LayoutDecision, LayoutOptions, decompositions, lay_out_convolutions, partition

ON_META = LayoutOptions(devices=("meta",), scheduled_devices=("meta",))


class Compiled:
    """A `torch.compile` backend that lays graphs out and runs them with ATen.

    Attributes:
        pairs: (graph as captured, as laid out, decision) of inference graphs and joint graphs.
        saved: the forward graphs.
    """

    def __init__(self, options: LayoutOptions) -> None:
        self.options = options
        self.pairs: list[tuple[torch.fx.GraphModule, torch.fx.GraphModule, LayoutDecision]] = []
        self.forwards: list[torch.fx.GraphModule] = []

    def lay_out(self, gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
        made, decision = lay_out_convolutions(gm, self.options)
        made.graph.lint()
        self.pairs.append((gm, made, decision))
        return made

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def forward(g: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            self.forwards.append(g)
            return _boxed(g)

        def split(joint: torch.fx.GraphModule, given: Sequence[Any], **kw: Any) -> Any:
            return partition(self.lay_out(joint), given, layout=LayoutOptions(layout="captured"), **kw)

        return aot_module_simplified(
            gm,
            list(inputs),
            fw_compiler=compiler_of(forward),
            bw_compiler=compiler_of(lambda g, _: _boxed(g)),
            inference_compiler=compiler_of(lambda g, _: _boxed(self.lay_out(g))),
            decompositions=decompositions(),
            partition_fn=split,
            keep_inference_input_mutations=True,
        )


def _boxed(gm: torch.fx.GraphModule) -> Callable[..., Any]:
    def call(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return gm(*given)

    vars(call)["_boxed_call"] = True
    return call


def traced(function: Callable[..., object], *inputs: Tensor) -> torch.fx.GraphModule:
    """The inference graph of a function or module; parameters and buffers are inputs behind the
    given ones.
    """
    state: dict[str, Tensor] = {}
    if isinstance(function, nn.Module):
        state = {**dict(function.named_parameters()), **dict(function.named_buffers())}

    def call(given: Sequence[Tensor], held: Sequence[Tensor]) -> object:
        if isinstance(function, nn.Module):
            return functional_call(function, dict(zip(state, held, strict=True)), tuple(given))
        return function(*given)

    count = len(inputs)
    with torch.no_grad():
        return make_fx(lambda *all_: call(all_[:count], all_[count:]), tracing_mode="fake")(
            *inputs, *state.values()
        )


def added(captured: torch.fx.GraphModule, made: torch.fx.GraphModule) -> Counter[tuple[str, str]]:
    """(operator, memory format) of the nodes that `made` has and `captured` has not."""
    known = {node.name for node in captured.graph.nodes}
    return Counter(
        (str(node.target).split(".")[1], str(node.kwargs.get("memory_format", "")).removeprefix("torch."))
        for node in made.graph.nodes
        if node.name not in known
    )


def output_strides(gm: torch.fx.GraphModule) -> list[tuple[int, ...] | None]:
    """Strides that the graph states for its outputs."""
    (outputs,) = gm.graph.output_node().args
    assert isinstance(outputs, list | tuple)
    return [item.meta["val"].stride() if isinstance(item, torch.fx.Node) else None for item in outputs]
