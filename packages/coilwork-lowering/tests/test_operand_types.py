"""What eager's kernels refuse for its type stays a call of ATen, which refuses it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
F8, C64 = torch.float8_e4m3fn, torch.complex64
I64, I32, I16, BOOL = torch.int64, torch.int32, torch.int16, torch.bool
U16, U32, U64 = torch.uint16, torch.uint32, torch.uint64
_UNLIKE = ((I64, U16), (U32, I64), (U64, U32))

# Pairs of types that are taken, pairs that are refused.
PAIRS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...], Callable[..., Any]]] = {
    "index_put": (((F32, F32),), ((F32, F64), (F32, I64)), lambda x, y: x.index_put((torch.arange(2),), y)),
    "index_put by": (
        ((F32, I64), (F32, I32)),
        ((F32, I16), (F32, U16), (F32, F32)),
        lambda x, y: x.index_put((y[:, 0],), x[0, 0]),
    ),
    "index_put to be added": (
        ((F32, F32),),
        ((F32, F64), (F16, F32)),
        lambda x, y: x.index_put((torch.arange(2),), y, True),
    ),
    "index_add": (((F32, F32),), ((F32, F64), (F64, F32)), lambda x, y: x.index_add(0, torch.arange(2), y)),
    "heaviside": (((F32, F32),), ((F32, F64), (F32, I64), (U16, U16)), torch.heaviside),
    "_cdist_forward": (((F32, F32),), ((F32, F64),), lambda x, y: torch.cdist(x, y, 1.0)),
    "linalg_cross": (((F32, F32),), ((F32, F64),), lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3])),
    "nll_loss_forward with weights": (
        ((F32, F32),),
        ((F32, F64),),
        lambda x, y: F.nll_loss(x, torch.arange(2), y[0]),
    ),
    "nll_loss_forward with labels": (((F32, I64),), ((F32, I32),), lambda x, y: F.nll_loss(x, y[:, 0])),
    "binary_cross_entropy": (
        ((F32, F32),),
        ((F32, F64), (F32, I64)),
        lambda x, y: torch.ops.aten.binary_cross_entropy(x * 0.5, y, None, 0),
    ),
    "binary_cross_entropy_with_logits": (
        ((F32, F32),),
        ((F32, I64), (F32, BOOL)),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none"),
    ),
    "binary_cross_entropy_with_logits and weights": (
        ((F32, F32), (F32, F64)),
        ((F32, C64),),
        lambda x, y: F.binary_cross_entropy_with_logits(x, x, y),
    ),
    "embedding by": (
        ((F32, I64), (F32, I32)),
        ((F32, I16), (F32, BOOL), (F32, F32)),
        lambda x, y: torch.ops.aten.embedding(x, y),
    ),
    "embedding_renorm by": (
        ((F32, I64),),
        ((F32, I16), (F32, F32)),
        lambda x, y: torch.ops.aten.embedding_renorm(x, y, 1.0, 2.0),
    ),
    "_prelu_kernel": (
        ((F32, F32), (F16, F16)),
        ((F32, F64), (F16, F32), (F32, I64)),
        torch.ops.aten._prelu_kernel,
    ),
    "fractional_max_pool3d": (
        ((F32, F32),),
        ((F32, I64), (F32, F64)),
        lambda x, y: torch.ops.aten.fractional_max_pool3d(
            x.expand(1, 4, 2, 4)[..., None].expand(1, 4, 2, 4, 4),
            [1, 1, 1],
            [1, 1, 1],
            y[:1, :3].expand(1, 4, 3),
        )[0],
    ),
    "huber_loss": (((F32, F32),), ((F32, C64),), lambda x, y: F.huber_loss(x, y, "none")),
    "a product of unlike integers": (((U16, U16), (I64, I32), (U16, F32)), _UNLIKE, torch.mul),
    "an angle of unlike integers": (((I64, I32),), _UNLIKE, torch.atan2),
    "the least of unlike integers": (((I64, I32),), ((U16, U16), *_UNLIKE), torch.fmin),
    "limits of unlike integers": (((I64, I32),), _UNLIKE, torch.clamp),
    "a limit of wide integers": (((I64, I32),), ((U16, U16), *_UNLIKE), torch.clamp_max),
    "zeta of unlike integers": (((I64, I32),), _UNLIKE, torch.special.zeta),
    "a quotient that is added": (
        ((F32, F32),),
        ((F32, BOOL), (F32, I64)),
        lambda x, y: torch.addcdiv(x, y, y),
    ),
    "mse_loss": (((F32, F32),), ((F32, C64),), lambda x, y: F.mse_loss(x, y)),
    "index_select": (
        ((F32, I64), (F32, I32)),
        ((F32, I16),),
        lambda x, y: torch.index_select(x, 0, y[:, 0]),
    ),
    "index_add by": (
        ((F32, I64), (F32, I32)),
        ((F32, I16), (F32, BOOL), (F32, F32)),
        lambda x, y: x.index_add(0, y[:, 0], x),
    ),
    "index_copy by": (
        ((F32, I64),),
        ((F32, I32), (F32, BOOL), (F32, F16)),
        lambda x, y: x.index_copy(0, y[:, 0], x),
    ),
    "cat": (((F32, F64), (F8, F8)), ((F8, F32), (F64, F8)), lambda x, y: torch.cat([x, y], 1)),
    "cumsum": (((F32, F32),), ((F32, F8),), lambda x, y: torch.cumsum(x, 0, dtype=y.dtype)),
    "arange": (((F32, F32),), ((F32, F8),), lambda x, y: torch.arange(3, dtype=y.dtype)),
    "linspace": (
        ((F32, F32),),
        ((F32, C64),),
        lambda x, y: torch.ops.aten.linspace(y[0, 0], x[0, 0], 3, dtype=torch.float32),
    ),
    "bitwise_and": (((I64, I64), (BOOL, I32)), ((I64, F32), (F32, F32)), torch.bitwise_and),
    "bitwise_not": (((I64, I64), (BOOL, BOOL)), ((F32, F32),), lambda x, y: torch.bitwise_not(y)),
    "xlogy": (((F32, I64), (F32, BOOL)), ((F32, C64),), torch.xlogy),
    "xlog1py": (((F32, I64), (F32, F64)), ((F32, C64), (C64, F32)), torch.special.xlog1py),
    "gcd": (((I64, I32),), ((I64, F32),), torch.gcd),
    "fmod": (((F32, BOOL), (I64, I64)), ((BOOL, BOOL),), torch.fmod),
    "remainder": (((F32, BOOL), (I64, I64)), ((BOOL, BOOL),), torch.remainder),
    "ldexp": (((F32, I64),), ((F32, BOOL),), torch.ldexp),
    "rsub": (((F32, F32),), ((BOOL, BOOL),), lambda x, y: 1 - y),
    "native_layer_norm": (
        ((F32, F32), (BF16, F32), (BF16, BF16)),
        ((F32, F64), (F32, F16), (BF16, F16)),
        lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    ),
    "native_group_norm": (
        ((F32, F32), (F16, F32)),
        ((F32, F64), (F16, F64)),
        lambda x, y: F.group_norm(x, 2, y[0]),
    ),
    "native_batch_norm": (
        ((F32, F32), (BF16, F32)),
        ((F32, F64), (BF16, F16)),
        lambda x, y: F.batch_norm(x, y[0], y[1]),
    ),
}


def pair(types: tuple[torch.dtype, torch.dtype]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.ones(2, 4).to(dtype) for dtype in types)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_that_are_refused_are_called(name: str) -> None:
    _, refused, function = PAIRS[name]
    for types in refused:
        inputs = pair(types)
        with pytest.raises((NotImplementedError, RuntimeError, IndexError)) as error:
            function(*inputs)
        try:
            gm = make_fx(function, tracing_mode="fake", decomposition_table=decompositions())(*inputs)
        except error.type:
            continue  # some versions of torch refuse it when they trace
        with pytest.raises(error.type):
            gm(*inputs)
        assert externs(lower(gm, name="graph").graph) != [], types


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_that_are_taken_are_computed(name: str) -> None:
    taken, _, function = PAIRS[name]
    for types in taken:
        inputs = pair(types)
        function(*inputs)
        gm = make_fx(function, tracing_mode="fake", decomposition_table=decompositions())(*inputs)
        called = [
            target for target in externs(lower(gm, name="graph").graph) if "_assert_async" not in target
        ]
        assert called == [], types


def test_a_fraction_among_bits_is_refused() -> None:
    x = torch.arange(3)
    gm = make_fx(
        lambda x: torch.bitwise_and(x, 2.5), tracing_mode="fake", decomposition_table=decompositions()
    )(x)
    with pytest.raises(NotImplementedError):
        torch.bitwise_and(x, 2.5)
    assert externs(lower(gm, name="graph").graph) != []


@pytest.mark.parametrize("types", [(F16, F32), (F32, F64), (F32, I64)], ids=str)
@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss])
def test_losses_have_the_type_of_what_is_judged(
    loss: Callable[..., Any], types: tuple[torch.dtype, torch.dtype]
) -> None:
    inputs = pair(types)
    for reduction in ("none", "mean"):
        judged = partial(loss, reduction=reduction)
        gm = make_fx(judged, tracing_mode="fake", decomposition_table=decompositions())(*inputs)
        assert gm(*inputs).dtype is loss(*inputs, reduction=reduction).dtype
