"""Gradients of losses that the forward computes: which, what is saved for them, and that they are right."""

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
SMALL = {
    "products.early_gradient_bytes": 4096,
    "products.early_gradient_rows": ROWS,
    "products.chunked_share": 2.0,
}


class Halves:
    """A backend that runs the halves as they are, and counts products and saved elements."""

    def __init__(self, **options: Any) -> None:
        self.options = LoweringOptions(
            find_model=lambda device: change_figures(find_like_model(device), SMALL), **options
        )
        self.products: list[int] = []
        self.saved: list[int] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def split(joint: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any) -> Any:
            halves = partition(joint, joint_inputs, lowering=self.options, **kw)
            (returned,) = halves[0].graph.output_node().args
            assert isinstance(returned, Sequence)
            saved = [n for n in returned[kw["num_fwd_outputs"] :] if isinstance(n, torch.fx.Node)]
            self.saved = [n.meta["val"].numel() for n in saved if isinstance(n.meta.get("val"), Tensor)]
            self.products = [
                sum(
                    n.target in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
                    for n in h.graph.nodes
                )
                for h in halves
            ]
            return halves

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


def run(function: Callable[..., Any], factor: float = 3.0, **options: Any) -> Halves:
    """The halves of `function`, whose gradients, with `factor` behind it, are eager's."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, INNER, generator=generator)
    weight, bias = (torch.randn(COLUMNS, n, generator=generator).squeeze(1) for n in (INNER, 1))
    labels = torch.randint(0, COLUMNS, (ROWS,), generator=generator)
    labels[::7] = -100
    backend = Halves(**options)
    torch._dynamo.reset()
    gradients = []
    for call in (function, torch.compile(function, backend=backend)):
        leaves = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
        found = call(*leaves, labels)
        total = found.sum() if isinstance(found, Tensor) else sum(x.sum() for x in found)
        gradients.append(torch.autograd.grad(factor * total, leaves, allow_unused=True))
    torch.testing.assert_close(gradients[1], gradients[0])
    return backend


def written_out(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> Tensor:
    logits = F.linear(h, w)
    return (logits.logsumexp(-1) - logits.gather(1, t.clamp(min=0)[:, None]).view(-1)).mean()


def with_logits(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(h, w)
    return F.cross_entropy(logits, t), logits


def with_another(h: Tensor, w: Tensor, b: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(h, w)
    return F.cross_entropy(logits, t), logits.logsumexp(-1).mean()


LOSSES: dict[str, Callable[..., Any]] = {
    "mean": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), t),
    "bias": lambda h, w, b, t: F.cross_entropy(F.linear(h, w, b), t),
    "capped": lambda h, w, b, t: F.cross_entropy(5 * torch.tanh(F.linear(h, w) / 5), t),
    "sum": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), t, reduction="none").sum(),
    "written out": written_out,
    "smoothed": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), t, label_smoothing=0.1),
    "class weights": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), t, weight=b.detach().abs()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_forward_computes_both_gradients(name: str) -> None:
    made = run(LOSSES[name])
    assert made.products == [3, 0]
    assert max(made.saved) < ROWS * COLUMNS / 2


LEFT: dict[str, Callable[..., Any]] = {
    "a gradient for each row": lambda h, w, b, t: F.cross_entropy(F.linear(h, w), t, reduction="none"),
    "logits are returned": with_logits,
    "two gradients": with_another,
}


@pytest.mark.parametrize("name", LEFT)
def test_other_gradients_wait_for_what_the_backward_is_given(name: str) -> None:
    assert run(LEFT[name]).products[1] == 2


def test_the_option_leaves_all_to_the_backward() -> None:
    assert run(LOSSES["mean"], chunk_products=False).products == [1, 2]
