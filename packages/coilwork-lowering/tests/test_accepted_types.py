"""What eager's kernels refuse for its type stays a call of ATen, which refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_against_eager import externs
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions, lower

INTEGERS = (torch.uint8, torch.int8, torch.int32, torch.int64)
HALVES = (torch.float16, torch.bfloat16)
WHOLE = (*INTEGERS, torch.bool)


REFUSED: dict[str, tuple[tuple[torch.dtype, ...], Callable[..., Any]]] = {
    "_softmax": (INTEGERS, lambda x: torch.softmax(x, 1)),
    "_log_softmax": (INTEGERS, lambda x: torch.log_softmax(x, 1)),
    "native_batch_norm": (INTEGERS, lambda x: F.batch_norm(x, x[0], x[0])),
    "gelu": (WHOLE, F.gelu),
    "glu": (WHOLE, F.glu),
    "silu": (WHOLE, F.silu),
    "mish": (WHOLE, F.mish),
    "hardswish": (WHOLE, F.hardswish),
    "hardsigmoid": (WHOLE, F.hardsigmoid),
    "softplus": (INTEGERS, F.softplus),
    "mse_loss": (INTEGERS, lambda x: F.mse_loss(x, x, reduction="none")),
    "huber_loss": (INTEGERS, lambda x: F.huber_loss(x, x)),
    "smooth_l1_loss": (INTEGERS, lambda x: F.smooth_l1_loss(x, x)),
    "binary_cross_entropy": (INTEGERS, lambda x: F.binary_cross_entropy(x, x)),
    "nll_loss_forward": (INTEGERS, lambda x: F.nll_loss(x, x[:, 0].to(torch.int64))),
    "logaddexp": (INTEGERS, lambda x: torch.logaddexp(x, x)),
    "frac": (INTEGERS, torch.frac),
    "lerp": (WHOLE, lambda x: torch.lerp(x, x, 0.5)),
    "igamma": (WHOLE, lambda x: torch.igamma(x, x)),
    "round": ((torch.bool,), torch.round),
    "round with decimals": (WHOLE, lambda x: torch.round(x, decimals=1)),
    "max_unpool2d": (WHOLE, lambda x: torch.ops.aten.max_unpool2d(x[None], x[None].to(torch.int64), [3, 3])),
    "im2col": (INTEGERS, lambda x: F.unfold(x[None, None], 2)),
    "abs": ((torch.bool,), torch.abs),
    "ceil": ((torch.bool,), torch.ceil),
    "clamp": ((torch.bool,), lambda x: torch.clamp(x, x, x)),
    "relu": ((torch.bool,), torch.relu),
    "argmax": ((torch.bool,), torch.argmax),
    "sub": ((torch.bool,), lambda x: x - x.to(torch.int64)),
    "and from": ((torch.bool,), lambda x: x.to(torch.int64) - x),
    "trace": ((torch.bool,), torch.trace),
    "dot": ((torch.bool,), lambda x: torch.dot(x[0], x[1])),
    "addcmul": ((torch.bool,), lambda x: torch.addcmul(x, x, x)),
    "linspace": ((torch.bool,), lambda x: torch.linspace(0, 1, 3, dtype=x.dtype)),
    "_cdist_forward": (HALVES, lambda x: torch.cdist(x, x)),
    "_pdist_forward": (HALVES, F.pdist),
    "avg_pool3d": (HALVES, lambda x: F.avg_pool3d(x[None, None].contiguous(), (1, 1, 2))),
    "special_bessel_j0": (HALVES, torch.special.bessel_j0),
    "nansum": ((torch.complex64,), torch.nansum),
}


def traced(function: Callable[..., Any], x: torch.Tensor) -> torch.fx.GraphModule:
    return make_fx(lambda given: function(given), tracing_mode="fake", decomposition_table=decompositions())(
        x
    )


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_called(name: str) -> None:
    types, function = REFUSED[name]
    for dtype in types:
        x = torch.ones(2, 4, dtype=dtype)
        with pytest.raises((NotImplementedError, RuntimeError)) as refused:
            function(x)
        gm = traced(function, x)
        with pytest.raises(refused.type):
            gm(x)
        assert externs(lower(gm, name="graph").graph) != [], dtype


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_taken_is_computed(name: str) -> None:
    types, function = REFUSED[name]
    dtype = torch.int64 if types == (torch.bool,) and name not in ("and from", "sub") else torch.float32
    gm = traced(function, torch.ones(2, 4, dtype=dtype))
    # what a value decides is asserted by a call
    called = [target for target in externs(lower(gm, name="graph").graph) if "_assert_async" not in target]
    assert called == []
