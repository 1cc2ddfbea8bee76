"""Large products that the backward computes again: which they are, and what is saved instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aot_compilers import compiler_of
from torch import Tensor
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified

from coilwork_ir.machine import change_figures, find_like_model
from coilwork_lowering import LoweringOptions, decompositions, partition

ROWS, INNER, COLUMNS = 64, 8, 400
SMALL = {"products.recomputed_bytes": 4096, "products.chunked_share": 2.0}


class Saved:
    """A backend that runs the halves as they are, and knows how many elements each saved tensor has."""

    def __init__(self, **options: Any) -> None:
        self.options = LoweringOptions(
            find_model=lambda device: change_figures(find_like_model(device), SMALL), **options
        )
        self.sizes: list[int] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def split(joint: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any) -> Any:
            forward, backward = partition(joint, joint_inputs, lowering=self.options, **kw)
            (returned,) = forward.graph.output_node().args
            assert isinstance(returned, Sequence)
            saved = [n for n in returned[kw["num_fwd_outputs"] :] if isinstance(n, torch.fx.Node)]
            self.sizes = [n.meta["val"].numel() for n in saved if isinstance(n.meta.get("val"), Tensor)]
            return forward, backward

        def keep(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            return make_boxed_func(graph.forward)

        return aot_module_simplified(
            gm,
            inputs,
            fw_compiler=compiler_of(keep),
            bw_compiler=compiler_of(keep),
            decompositions=decompositions(),
            partition_fn=split,
        )


def saves_large(function: Callable[..., Any], **options: Any) -> bool:
    """True if the forward of `function` saves a value as large as its product; its gradients are eager's."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, ROWS // 4, INNER, generator=generator)
    weight = torch.randn(COLUMNS, INNER, generator=generator)
    labels = torch.randint(0, COLUMNS, (ROWS,), generator=generator)
    backend = Saved(**options)
    torch._dynamo.reset()
    gradients = []
    for call in (function, torch.compile(function, backend=backend)):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        found = call(*leaves, labels)
        total = found if isinstance(found, Tensor) else sum(x.sum() for x in found)
        gradients.append(torch.autograd.grad(total, leaves))
    torch.testing.assert_close(gradients[1], gradients[0])
    return any(2 * size >= ROWS * COLUMNS for size in backend.sizes)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, COLUMNS), labels)


LOSSES: dict[str, Callable[..., Any]] = {
    "cross entropy": lambda h, w, t: loss_of(F.linear(h, w).float(), t),
    "capped": lambda h, w, t: loss_of(5 * torch.tanh(F.linear(h, w) / 5), t),
    "written out": lambda h, w, t: (
        F.linear(h, w).logsumexp(-1) - F.linear(h, w).view(-1, COLUMNS).gather(1, t[:, None]).view(4, -1)
    ).mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_logits_of_a_loss_are_not_saved(name: str) -> None:
    assert not saves_large(LOSSES[name])


def test_logits_that_are_returned_are_saved() -> None:
    def both(h: Tensor, w: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(h, w)
        return loss_of(logits, t), logits

    assert saves_large(both)


def test_logits_are_saved_without_the_option() -> None:
    assert saves_large(LOSSES["cross entropy"], chunk_products=False)


def test_hidden_values_of_two_layers_are_saved() -> None:
    """Another product of the forward reads them: that they are large is no reason to compute them twice."""
    assert saves_large(lambda h, w, t: (torch.relu(F.linear(h, w)) @ w).sum())
