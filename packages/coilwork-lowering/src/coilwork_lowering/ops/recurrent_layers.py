"""Whole recurrent layers: calls of the ATen operators for which tracing has names of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.extern.calls import call_extern
from coilwork_lowering.rules import Call, Rule

aten: Final = torch.ops.aten
_NATIVE: Final[Mapping[str, Any]] = {
    "coilwork.lstm.input": aten.lstm.input,
    "coilwork.gru.input": aten.gru.input,
    "coilwork.rnn_tanh.input": aten.rnn_tanh.input,
    "coilwork.rnn_relu.input": aten.rnn_relu.input,
    "coilwork._cudnn_rnn.default": aten._cudnn_rnn.default,
    "coilwork._cudnn_rnn_backward.default": aten._cudnn_rnn_backward.default,
    "coilwork.mkldnn_rnn_layer_backward.default": aten.mkldnn_rnn_layer_backward.default,
}


def _call_native(builder: Builder, call: Call) -> Value:
    native = _NATIVE[call.target]
    return call_extern(builder, replace(call, target=str(native)), native)


RULES: Final = (Rule(tuple(_NATIVE), _call_native),)
