"""Functions whose results could depend on what runs when: sums at positions from data, long sums, scans,
training steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor


def _floats(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[0]))


def _positions(count: int, below: int) -> Tensor:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(count))


def _embedding_gradient(at: Tensor, gradient: Tensor) -> Tensor:
    result: Tensor = torch.ops.aten.embedding_dense_backward(gradient, at, 19, -1, False)
    return result


def _index_add(at: Tensor, source: Tensor) -> Tensor:
    return source.new_zeros(19, source.shape[1]).index_add(0, at, source)


def _scatter_add(at: Tensor, source: Tensor) -> Tensor:
    return source.new_zeros(19, source.shape[1]).scatter_add(0, at.unsqueeze(1).expand_as(source), source)


def _index_put(at: Tensor, source: Tensor) -> Tensor:
    return source.new_zeros(19, source.shape[1]).index_put((at,), source, accumulate=True)


def _single_elements(at: Tensor, source: Tensor) -> Tensor:
    index = (at.unsqueeze(1) * 7 + torch.arange(source.shape[1], device=at.device)) % 100
    return source.new_zeros(100, source.shape[1]).scatter_add(0, index, source)


def _softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def _totals(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(), x.var(0), x.mean(1)


def _running(x: Tensor) -> Tensor:
    return x.cumsum(1)


def _layer_norm_step(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = torch.ones(x.shape[1], requires_grad=True)
    loss = F.layer_norm(x, x.shape[1:], scale).pow(3).sum()
    (gradient,) = torch.autograd.grad(loss, scale)
    return loss.detach(), gradient


# Name -> function and its inputs.
CASES: Final[Mapping[str, tuple[Callable[..., object], tuple[Tensor, ...]]]] = MappingProxyType(
    {
        "embedding gradient": (_embedding_gradient, (_positions(3000, 19), _floats(3000, 24))),
        "index_add": (_index_add, (_positions(3000, 19), _floats(3000, 24))),
        "scatter_add": (_scatter_add, (_positions(3000, 19), _floats(3000, 24))),
        "index_put": (_index_put, (_positions(3000, 19), _floats(3000, 24))),
        "single elements": (_single_elements, (_positions(3000, 19), _floats(3000, 24))),
        "softmax": (_softmax, (_floats(40, 5001),)),
        "totals": (_totals, (_floats(700, 1100),)),
        "cumsum": (_running, (_floats(3, 70001),)),
        "layer norm": (_layer_norm_step, (_floats(900, 257),)),
    }
)
# Those that add floats wherever data says.
SCATTERS: Final = ("embedding gradient", "index_add", "scatter_add", "index_put", "single elements")
