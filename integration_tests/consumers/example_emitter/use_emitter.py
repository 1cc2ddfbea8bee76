"""Hand a compiler of FX graphs to torch.compile: it gets what Coilwork makes of a model, and compiles that
further.
"""

from __future__ import annotations

import torch
from slot_runner import SlotEmitter
from slot_runner.steps import Steps
from torch import Tensor

import coilwork

OPTIONS = {"fx_emitter": SlotEmitter, "strict": True}


class Counting(SlotEmitter):
    """Tells of each graph that it gets."""

    def compile_graph(self, graph: torch.fx.GraphModule) -> Steps:
        steps = super().compile_graph(graph)
        assert isinstance(steps, Steps)
        launches = sum("coilwork_launches" in str(node.target) for node in graph.graph.nodes)
        print(type(graph).__name__.partition("_")[0], "has kernels:", launches > 0)
        print("fewer slots than steps:", steps.count < len(steps.steps) + len(steps.inputs))
        return steps


def main() -> None:
    wanted, found = train({"strict": True, "wrapper": "native"}), train({**OPTIONS, "fx_emitter": Counting})
    print("training, to the bit:", all(map(torch.equal, found, wanted)))
    compiled = torch.compile(several, backend="coilwork", options=OPTIONS, dynamic=True)
    for rows in (3, 8):
        x = torch.randn(rows, 5)
        close = map(torch.allclose, compiled(x), several(x))
        print(rows, "rows:", all(close))
    try:
        coilwork.compile(torch.sin, fx_emitter=Steps)
    except coilwork.errors.OptionError as error:
        print(str(error).splitlines()[-1].strip())


def train(options: dict[str, object]) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    model, x = torch.nn.Sequential(*layers), torch.randn(8, 16)
    result = torch.compile(model, backend="coilwork", options=options)(x)
    result.square().sum().backward()
    return [result, *(p.grad for p in model.parameters() if p.grad is not None)]


def several(x: Tensor) -> tuple[Tensor, ...]:
    ordered, _ = x.sort(-1)
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)), ordered.cumsum(0) * x.shape[0]


if __name__ == "__main__":
    main()
