"""Dropout in joint graphs: masks are drawn again from the forward's seed, the same in generated code and in
eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_compilers import tensors_of
from kept_halves import KeptHalves
from lowering_against_eager import externs, trace_and_lower
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_lowering import LoweringOptions
from coilwork_lowering.torch_compat.philox import draw_kept

aten = torch.ops.aten
GENERATED = LoweringOptions(random="generated")


def graphs_of(
    function: Callable[..., Tensor],
    *inputs: Tensor,
    options: LoweringOptions = GENERATED,
    dynamic: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...], list[torch.fx.GraphModule]]:
    """What `function` gives where eager mode runs both halves: its result, gradients of its sum, and the
    halves.
    """
    backend = KeptHalves(options)
    torch._dynamo.reset()
    result = torch.compile(function, backend=backend, dynamic=dynamic)(*inputs)
    gradients = torch.autograd.grad(result.sum(), inputs)
    return result.detach(), gradients, backend.graphs


def targets(gm: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == "call_function"]


def inputs_of(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_masks_are_not_saved(dtype: torch.dtype, dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        return functional.dropout(functional.dropout(x, 0.5) * 2, 0.25)

    x = torch.rand(40, 30, dtype=dtype, requires_grad=True) + 1
    result, (gradient,), (_, backward) = graphs_of(function, x, dynamic=dynamic)
    read = [one for one in inputs_of(backward) if isinstance(one, torch.Tensor)]
    assert [one.dtype for one in read if one.numel() == 1] == [torch.int64]
    assert [one.shape for one in read if one.numel() > 1] == [result.shape], "the tangent alone"
    assert targets(backward).count("coilwork.kept.default") == 2
    assert 0.3 < (result != 0).double().mean() < 0.45
    torch.testing.assert_close(gradient * x.detach(), result)


def test_bits_are_those_of_generated_code() -> None:
    """Also of tensors whose elements lie otherwise, and with sizes that are known when it is called."""
    for shape in ((5000,), (7, 300, 3), (1,), ()):
        like = torch.empty(shape)

        def draw(like: Tensor, seed: Tensor) -> Tensor:
            return draw_kept(seed, like.shape, 3, 0.7)

        seed = torch.tensor([0x123456789ABCDEF0 >> 2])
        for mode in ("fake", "symbolic"):
            lowered = trace_and_lower(draw, (like, seed), mode=mode)
            assert externs(lowered.graph) == []
            (found,) = tensors_of(interpret_graph(lowered.graph, (like, seed), lowered.constants))
            assert torch.equal(found, draw(like, seed))


def test_what_was_not_finite_becomes_nan() -> None:
    x = torch.tensor([float("inf"), float("nan")] * 200, requires_grad=True)
    result, _, _ = graphs_of(lambda x: functional.dropout(x, 0.5), x)
    assert result[1::2].isnan().all()
    assert result[::2].isnan().any() and result[::2].isinf().any()
    result, (gradient,), _ = graphs_of(
        lambda x: functional.dropout(x, 1.0), torch.ones(9, requires_grad=True)
    )
    assert not result.any() and not gradient.any()


def test_a_checkpoint_draws_again_too() -> None:
    def part(x: Tensor) -> Tensor:
        return functional.dropout(x.sin(), 0.5) * x

    def function(x: Tensor) -> Tensor:
        found: Tensor = checkpoint(part, x.exp(), use_reentrant=False)
        return found

    x = torch.linspace(0.1, 1, 500, requires_grad=True)
    result, (gradient,), (_, backward) = graphs_of(function, x)
    assert not any(one.dtype == torch.bool for one in inputs_of(backward))
    y = x.detach().exp()
    wanted = torch.where(result != 0, (y.cos() * y + y.sin()) * 2 * y, 0.0)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [LoweringOptions(), LoweringOptions(random="generated", fallback=("aten.native_dropout",))]
)
def test_what_aten_draws_stays(options: LoweringOptions) -> None:
    x = torch.ones(100, requires_grad=True)
    _, _, (forward, backward) = graphs_of(lambda x: functional.dropout(x, 0.5), x, options=options)
    assert "aten.native_dropout.default" in targets(forward)
    assert any(one.dtype == torch.bool for one in inputs_of(backward))


def test_masks_that_are_returned_stay() -> None:
    def function(x: Tensor) -> Tensor:
        dropped, mask = torch.native_dropout(x, 0.5, True)
        return torch.where(mask, dropped, -1.0)

    def returning(x: Tensor) -> Tensor:
        dropped, mask = torch.native_dropout(x, 0.5, True)
        returned.append(mask)
        return dropped

    returned: list[Tensor] = []
    x = torch.ones(100, requires_grad=True)
    _, _, (forward, _) = graphs_of(function, x)
    assert "coilwork.kept.default" in targets(forward)
    result, _, (forward, _) = graphs_of(returning, x)
    assert "aten.native_dropout.default" in targets(forward)
    assert torch.equal(returned[0], result != 0)
