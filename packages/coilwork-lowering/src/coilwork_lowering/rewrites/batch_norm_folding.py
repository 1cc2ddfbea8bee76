"""Fold inference batch norms into the convolution or linear layer in front of them.

With fixed statistics a batch norm is one factor and one summand per channel, which the layer's weight and
bias can contain. This is for captured graphs with frozen parameters, where `split_constants` lets the new
weights be computed once.
"""

from __future__ import annotations

from typing import Any, Final

import torch.nn.functional as F

from coilwork_lowering.rewrites.rewrite import Condition, Match, Pattern, Rewrite, call, either, tensor, value

FROZEN: Final = "coilwork_frozen"
"""The metadata of placeholders whose tensors are taken to stay the same from call to call."""

_PARAMETERS: Final = ("weight", "bias", "mean", "variance", "gamma", "beta")


def _match_layer(bias: Pattern) -> Pattern:
    return either(
        call(
            "conv",
            self=tensor("x"),
            weight=tensor("weight"),
            bias=bias,
            stride=value("stride"),
            padding=value("padding"),
            dilation=value("dilation"),
            groups=value("groups"),
        ),
        call("linear", self=tensor("x"), weight=tensor("weight"), bias=bias),
    )


def _norm(inner: Pattern, gamma: Pattern, beta: Pattern) -> Pattern:
    return call(
        "batch_norm",
        self=inner,
        running_mean=tensor("mean"),
        running_var=tensor("variance"),
        weight=gamma,
        bias=beta,
        training=value("training"),
        momentum=value("momentum"),
        eps=value("eps"),
    )


def _are_frozen(match: Match) -> bool:
    parameters = [match.captures.get(name) for name in _PARAMETERS]
    return all(node.meta.get(FROZEN, False) for node in parameters if node is not None)


def _have_one_type(match: Match) -> bool:
    parameters = [match.value(name) for name in _PARAMETERS if match.captures.get(name) is not None]
    return len({t.dtype for t in (*parameters, match.value("x"))}) == 1


def _channels_second(match: Match) -> bool:
    """Tell if the layer's outputs are the norm's channels: of a linear layer only with two dimensions."""
    return match.captures.get("stride") is not None or match.value("x").dim() == 2


def _has_no_batch(match: Match) -> bool:
    """A convolution of one image without a batch dimension has its channels first."""
    return int(match.result.dim()) == int(match.value("weight").dim())


def _fold_batch_norm(
    x: Any,
    weight: Any,
    mean: Any,
    variance: Any,
    eps: float,
    bias: Any = None,
    gamma: Any = None,
    beta: Any = None,
    stride: Any = None,
    padding: Any = None,
    dilation: Any = None,
    groups: Any = None,
    **rest: Any,
) -> Any:
    factor = (variance + eps).rsqrt()
    factor = factor if gamma is None else gamma * factor
    shift = -mean * factor if bias is None else (bias - mean) * factor
    shift = shift if beta is None else shift + beta
    dims = weight.value.dim()
    scaled = weight * factor.reshape(-1, *(1,) * (dims - 1))
    if stride is None:
        return F.linear(x, scaled, shift)
    convolution = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[dims]
    return convolution(x, scaled, shift, stride, padding, dilation, groups)


_NOTHING: Final = value("nothing")

FOLD_BATCH_NORM: Final = Rewrite(
    name="fold-batch-norm",
    doc="A batch norm with running statistics goes into the weight and bias of the layer in front of it.",
    pattern=either(
        *(
            _norm(_match_layer(bias), gamma, beta)
            for bias in (tensor("bias"), _NOTHING)
            for gamma, beta in ((tensor("gamma"), tensor("beta")), (_NOTHING, _NOTHING))
        )
    ),
    replacement=_fold_batch_norm,
    conditions=(
        Condition(name="statistics are the running ones", holds=lambda m: m.captures["training"] is False),
        Condition(name="parameters are frozen", holds=_are_frozen),
        Condition(name="one type", holds=_have_one_type),
        Condition(name="outputs are channels", holds=_channels_second),
        Condition(name="there is a batch dimension", holds=_has_no_batch),
    ),
    level="frozen",
    inexact=True,
)

FOLDING: Final = (FOLD_BATCH_NORM,)
