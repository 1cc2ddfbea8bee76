"""Whole recurrent layers: calls of the ATen operators for which tracing has names of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.extern.calls import call_extern
from coilwork_lowering.rules import Call, Rule


def _call_native(builder: Builder, call: Call) -> Value:
    """Call the operator of ATen that has the same name and schema."""
    _, name, overload = call.target.split(".")
    native: Any = getattr(getattr(torch.ops.aten, name), overload)
    return call_extern(builder, replace(call, target=str(native)), native)


RULES: Final = (
    Rule(("coilwork.lstm.input",), _call_native),
    Rule(("coilwork.gru.input",), _call_native),
    Rule(("coilwork.rnn_tanh.input",), _call_native),
    Rule(("coilwork.rnn_relu.input",), _call_native),
    Rule(("coilwork._cudnn_rnn.default",), _call_native),
    Rule(("coilwork._cudnn_rnn_backward.default",), _call_native),
    Rule(("coilwork.mkldnn_rnn_layer_backward.default",), _call_native),
)
