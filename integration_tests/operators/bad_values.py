"""Calls that eager refuses for what their tensors hold, where positions are computed in the graph, and for
where their memory lies.

`mutations.py` changes arguments; here programs compute them. Each is a function and what it is called with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Call: TypeAlias = tuple[Callable[..., Any], tuple[Tensor, ...]]


def _grid(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def _assign(x: Tensor, k: Tensor) -> Tensor:
    y = x * 2
    y[:, k + 1] = 3.0
    return y


_X: Final = _grid(5, 4)
_COLUMNS: Final = torch.tensor([0, 3])
_ROW: Final = _COLUMNS[None]
_PAIR: Final = _grid(1, 2)
_LABELS: Final = torch.tensor([0, 1, 3])
_SCORES: Final = _grid(3, 4).log_softmax(1)
_BAGGED: Final = torch.tensor([0, 1, 5])
_BAGS: Final = torch.tensor([0, 2])
_TABLE: Final = _grid(6, 4)
_POOLED: Final = torch.arange(4).reshape(1, 1, 2, 2)
_BORDERS: Final = torch.tensor([0, 3, 1, 5])

POSITIONS: Final[Mapping[str, Call]] = MappingProxyType(
    {
        "embedding": (lambda k, w: F.embedding(k + 3, w), (_COLUMNS, _TABLE)),
        "one_hot": (lambda k: F.one_hot(k + 1, 4), (_COLUMNS,)),
        "one_hot of negative": (lambda k: F.one_hot(k - 1, 4), (_COLUMNS,)),
        "gather": (lambda x, k: torch.gather(x * 2, 1, k + 1), (_X, _ROW)),
        "scatter": (lambda x, k, s: torch.scatter(x * 2, 1, k - 1, s), (_X, _ROW, _PAIR)),
        "scatter_add": (lambda x, k, s: torch.scatter_add(x * 2, 1, k + 1, s), (_X, _ROW, _PAIR)),
        "scatter_reduce": (
            lambda x, k, s: torch.scatter_reduce(x * 2, 1, k + 1, s, "amax"),
            (_X, _ROW, _PAIR),
        ),
        "index_select": (lambda x, k: torch.index_select(x * 2, 1, k + 1), (_X, _COLUMNS)),
        "take": (lambda x, k: torch.take(x * 2, k * 7), (_X, _COLUMNS)),
        "index": (lambda x, k: (x * 2)[k + 2], (_X, _COLUMNS)),
        "index_put": (_assign, (_X, _COLUMNS)),
        "index_add": (lambda x, k, s: torch.index_add(x * 2, 1, k + 1, s), (_X, _COLUMNS, _grid(5, 2))),
        "index_copy": (lambda x, k, s: torch.index_copy(x * 2, 1, k - 1, s), (_X, _COLUMNS, _grid(5, 2))),
        "index_fill": (lambda x, k: torch.index_fill(x * 2, 1, k + 1, 1.0), (_X, _COLUMNS)),
        "put_": (lambda x, k, s: x.clone().put_(k + 17, s), (_X, _COLUMNS, _grid(2))),
        "nll_loss": (lambda p, t: F.nll_loss(p * 1.0, t + 1), (_SCORES, _LABELS)),
        "cross_entropy": (lambda p, t: F.cross_entropy(p * 1.0, t - 1), (_SCORES, _LABELS)),
        "max_unpool2d": (lambda d, k: F.max_unpool2d(d * 1, k - 1, 2), (_grid(1, 1, 2, 2), _POOLED)),
        "max_unpool2d into the next plane": (
            lambda d, k: F.max_unpool2d(d * 1, k + 15, 2),
            (_grid(1, 2, 2, 2), _POOLED.expand(1, 2, 2, 2)),
        ),
        "max_unpool3d": (
            lambda d, k: F.max_unpool3d(d * 1, k + 63, 2),
            (_grid(1, 1, 2, 2, 1), _POOLED.reshape(1, 1, 2, 2, 1)),
        ),
        "embedding_bag": (lambda k, w, o: F.embedding_bag(k + 1, w, o), (_BAGGED, _TABLE, _BAGS)),
        "embedding_bag by offsets": (lambda k, w, o: F.embedding_bag(k, w, o * 2), (_BAGGED, _TABLE, _BAGS)),
        "embedding_bag from 1": (lambda k, w, o: F.embedding_bag(k, w, o + 1), (_BAGGED, _TABLE, _BAGS)),
        "segment_reduce by offsets": (
            lambda d, o: torch.segment_reduce(d * 1, "sum", offsets=o),
            (_grid(5), _BORDERS),
        ),
        "sorter": (
            lambda b, v, s: torch.searchsorted(b * 1, v, sorter=s + 1),
            (_grid(4), _grid(2), torch.arange(4)),
        ),
    }
)
NUMBERS: Final[Mapping[str, Call]] = MappingProxyType(
    {
        "multinomial": (lambda p: torch.multinomial(p - 1.5, 1), (_grid(2),)),
        "bernoulli": (lambda p: torch.bernoulli(p * 0.6), (_grid(2),)),
        "bernoulli of integers": (lambda p: torch.bernoulli(p.long()), (_grid(2),)),
        "quantile": (lambda x, q: torch.quantile(x * 1, q - 1.01), (_grid(4), _grid(2))),
        "nanquantile": (lambda x, q: torch.nanquantile(x * 1, q), (_grid(4), _grid(2))),
        "cholesky": (lambda a: torch.linalg.cholesky(a * 1), (_grid(2, 2),)),
        "inv": (lambda a: torch.linalg.inv(a * 0), (_grid(2, 2),)),
        "binary_cross_entropy": (lambda p: F.binary_cross_entropy(p * 1, p), (_grid(2),)),
        "bincount": (lambda k: torch.bincount(k - 1), (_COLUMNS,)),
        "repeat_interleave": (
            lambda x, n: torch.repeat_interleave(x * 1, n - 1, dim=1),
            (_X, torch.arange(4)),
        ),
        "division of integers": (lambda k: k // k, (_COLUMNS,)),
    }
)
WORDS: Final[Mapping[str, Call]] = MappingProxyType(
    {
        "side": (lambda b: torch.searchsorted(b * 1, b, side="middle"), (_grid(4),)),
        "rounding": (lambda x: torch.div(x, 2, rounding_mode="up"), (_X,)),
        "reduction of a scatter": (lambda x, k: x.scatter_reduce(1, k, x, "most"), (_PAIR, _ROW - _ROW)),
        "floats of 8 bits beside others": (lambda x: torch.cat([x.to(torch.float8_e4m3fn), x]), (_X,)),
        "a sum of 8 bits": (lambda x: x.cumsum(0, dtype=torch.float8_e4m3fn), (_X,)),
    }
)
MEMORY: Final[Mapping[str, Call]] = MappingProxyType(
    {
        "rows moved": (lambda x: x[1:].copy_(x[:-1]), (_X,)),
        "a transposed operand": (lambda x: x.add_(x.t()), (_grid(3, 3),)),
        "an expanded tensor": (lambda x: x.expand(2, 5, 4).mul_(2), (_X,)),
        "more than a tensor holds": (lambda x, y: x.clamp_(y), (_grid(4), _X)),
        "a cumulative sum of truth values": (lambda x: (x > 2).cumsum_(0), (_X,)),
    }
)
