"""Arguments of operator calls as Python text."""

from __future__ import annotations

import math

import pytest
import torch

from coilwork_ir.buffers import Argument, DeviceValue, Item, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.syntax.python import Formula
from coilwork_ir.syntax.python_printer import print_expression
from coilwork_wrapper.python import scope


def argument_text(argument: Argument) -> str:
    return print_expression(scope.argument(argument, str.upper, lambda expr: Formula(repr(expr))))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        (True, True),
        (None, None),
        (-3, -3),
        (0.1, 0.1),
        (-0.0, -0.0),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (complex(1, -math.inf), complex(1, -math.inf)),
        ('"quo\'te"\n', '"quo\'te"\n'),
        (DType.BF16, torch.bfloat16),
        (TorchValue("channels_last"), torch.channels_last),
        (DeviceValue("cuda:1"), torch.device("cuda:1")),
        (Item("t"), 2.5),
        (ListValue((Ref("x"), 2 * symbol("s0"), None)), ["X", 6, None]),
    ],
    ids=str,
)
def test_arguments(argument: Argument, value: object) -> None:
    text = argument_text(argument)
    assert eval(text, {"torch": torch, "X": "X", "T": torch.tensor(2.5), "s0": 3}) == value


def test_nan() -> None:
    assert math.isnan(eval(argument_text(math.nan)))
    assert math.isnan(eval(argument_text(complex(math.nan, 1))).real)
