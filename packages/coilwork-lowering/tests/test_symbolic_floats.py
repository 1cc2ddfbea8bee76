"""Floats that are symbols: scaled in sums, and known numbers that a joint graph reads."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions
from coilwork_lowering.joint.corrections import fold_specialized_floats

aten = torch.ops.aten
READ = aten._local_scalar_dense.default


def captured(function: Any, *inputs: Tensor) -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode="symbolic", decomposition_table=decompositions())(*inputs)


def test_a_symbol_is_scaled_before_the_sum() -> None:
    def sums(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        number = n.item()
        return torch.add(x, number, alpha=2), torch.sub(x, number, alpha=x.shape[0]), torch.add(x, x, alpha=2)

    inputs = torch.randn(3), torch.tensor(2.5)
    gm = captured(sums, *inputs)
    scaled = [node for node in gm.graph.nodes if "alpha" in node.kwargs]
    assert len(scaled) == 1  # tensors are scaled by the kernel of the sum
    torch.testing.assert_close(gm(*inputs), sums(*inputs))


def test_known_floats_are_written_out() -> None:
    gm = captured(lambda x, n, m, r: (x * n.item(), m.item() * x, r.item()), *torch.ones(4).unbind())
    known, other, returned = (node for node in gm.graph.nodes if node.target is READ)
    for node in (known, returned):
        number = node.meta["val"].node
        number.shape_env._set_replacement(number.expr, sympy.Float(2.5), "a test")
    assert fold_specialized_floats(gm) == 2
    assert [node for node in gm.graph.nodes if node.target is READ] == [other, returned]
    assert gm(*(torch.tensor(number) for number in (2.0, 0.0, 4.0, 2.5))) == (5.0, 8.0, 2.5)
