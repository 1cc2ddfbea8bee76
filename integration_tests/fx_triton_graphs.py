"""FX graphs of Triton kernels, in Triton's interpreter: they agree with the native executor, and launches are
calls of torch's own operator. Prints what is wrong with each case, as JSON.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

import coilwork
from coilwork_wrapper import FxEmitter


def softmax(x: Tensor, w: Tensor) -> Tensor:
    return (torch.softmax(x * 2, -1) @ w).relu().sum(0)


def look_up(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    return x[rows] * 2, x.to(torch.float8_e4m3fn).float().cumsum(1), x.sort(-1)[0]


def fixed() -> tuple[Tensor, ...]:
    return torch.randn(6, 70), torch.randn(70, 5)


def open_rows() -> tuple[Tensor, ...]:
    x, w = fixed()
    torch._dynamo.mark_dynamic(x, 0)
    return x, w


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = {
    "known sizes": (softmax, fixed),
    "open sizes": (softmax, open_rows),
    "checks and small floats": (look_up, lambda: (torch.randn(5, 6), torch.tensor([4, 0, 2]))),
}


def find_fault(function: Callable[..., Any], make: Callable[[], tuple[Tensor, ...]]) -> str:
    """What is wrong with a case; empty if nothing is."""
    graphs: list[torch.fx.GraphModule] = []

    class Keeping(FxEmitter):
        def compile_graph(self, graph: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
            graphs.append(graph)
            return copy.deepcopy(graph)

    results = []
    for options in ({"wrapper": "python"}, {"fx_emitter": Keeping}):
        torch._dynamo.reset()
        torch.manual_seed(0)
        found = coilwork.compile(function, **options)(*make())
        results.append(found if isinstance(found, tuple) else (found,))
    if not all(torch.equal(one, other) for one, other in zip(*results, strict=True)):
        return f"{results[1]} instead of {results[0]}"
    (graph,) = graphs
    before = [node.target for node in graph.graph.nodes].count(triton_kernel_wrapper_mutation)
    graph.graph.eliminate_dead_code()
    after = [node.target for node in graph.graph.nodes].count(triton_kernel_wrapper_mutation)
    return "" if before == after > 0 else f"{before} launches, {after} of them behind dead-code elimination"


def refuse_wrong_rows() -> str:
    torch._dynamo.reset()
    try:
        coilwork.compile(look_up, wrapper="fx")(torch.randn(5, 6), torch.tensor([4, 9]))
    except (IndexError, RuntimeError) as error:
        return "" if "out of" in str(error) else str(error)
    return "a row that does not exist is read"


if __name__ == "__main__":
    faults = {name: find_fault(*case) for name, case in CASES.items()}
    print(json.dumps({**faults, "a failing check": refuse_wrong_rows()}))
