"""Kernels of open sizes beside eager: sizes as they likely are, and others, in any order, launched without
Python once they are known.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def _normed(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def _gradients(x: Tensor) -> tuple[Tensor, ...]:
    weight = torch.linspace(0.5, 1.5, x.shape[-1], device=x.device, dtype=x.dtype, requires_grad=True)
    leaf = x.detach().requires_grad_()
    result = torch.nn.functional.layer_norm(leaf, x.shape[-1:], weight)
    return torch.autograd.grad(result.float().square().sum(), (leaf, weight))


FUNCTIONS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "softmax": lambda x: x.softmax(-1),
    "layer norm": _normed,
    "gradients": _gradients,
    "columns": lambda x: x.sum(0),
    "all": lambda x: x.sum(),
    "largest": lambda x: x.max(-1),
    "rows and columns": lambda x: (x.sum(-1), x.sum(-2), x.exp()),
    "chain": lambda x: torch.nn.functional.gelu(x) * 2 + x,
    "turned": lambda x: x[: x.shape[1], : x.shape[0]] + x.t()[: x.shape[0], : x.shape[1]],
    "scaled rows": lambda x: x * x[:, :1] + x[:1],
    "joined": lambda x: torch.cat((x, x * 2), -1),
}
# the first decides what is likely
SHAPES = (
    ((512, 1024), (300, 768), (512, 1000), (64, 4096), (4096, 48), (3, 7), (2, 100_003), (70_000, 5)),
    ((4096, 56), (56, 4096), (33, 56), (1000, 1000)),
    ((50, 50_257), (64, 50_304), (7, 16)),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shapes", SHAPES, ids=["whole", "eights", "odd"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_is_right_for_all_sizes(
    name: str, shapes: tuple[tuple[int, int], ...], dtype: torch.dtype
) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    compiled = torch.compile(function, backend=backend, dynamic=True)
    generator = torch.Generator("cuda").manual_seed(0)
    for shape in (*shapes, *shapes):
        x = torch.randn(shape, device="cuda", dtype=dtype, generator=generator)
        found, wanted, exact = (
            _results(call(y)) for call, y in ((compiled, x), (function, x), (function, x.double()))
        )
        assert len(found) == len(wanted) == len(exact)
        for ours, theirs, true in zip(found, wanted, exact, strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            if not ours.is_floating_point():
                assert torch.equal(ours, theirs)
                continue
            # a sum of everything may be near 0, where terms are not
            terms = x.double().norm() if name == "all" else 1e-3
            scale = true.abs().max().clamp_min(terms)
            error, allowed = ((y.double() - true).abs().max() / scale for y in (ours, theirs))
            assert error <= 3 * allowed + 32 * torch.finfo(dtype).eps, (shape, error, allowed)


def _results(value: object) -> list[Tensor]:
    parts = value if isinstance(value, tuple) else (value,)
    return [part for part in parts if isinstance(part, Tensor)]
