"""What the machine that compiles does: it has the full stack, and leaves `model.cw` for the other one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.compile_graph import compile_graph
from coilwork.compile_options import CompileOptions
from coilwork_aot import save_program
from coilwork_lowering import LoweringOptions, decompositions


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    )
    model.requires_grad_(False)
    x = torch.randn(8, 16)

    graph = make_fx(lambda x: (model(x).softmax(-1),), decomposition_table=decompositions(LoweringOptions()))(
        x
    )
    options = CompileOptions(strict=True, trace="trace")
    compile_graph(graph, [x], role="inference", options=options)
    (folder,) = (path.parent for path in Path("trace").glob("*/program.bin"))
    weights = {
        node.target: getattr(graph, node.target) for node in graph.graph.nodes if node.op == "get_attr"
    }
    save_program(folder, "model.cw", constants=weights)
    torch.save({"x": x, "expected": model.double()(x.double()).softmax(-1)}, "example.pt")


main()
