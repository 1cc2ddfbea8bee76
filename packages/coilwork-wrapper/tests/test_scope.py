"""Names, sizes and arguments in emitted Python."""

from __future__ import annotations

import keyword
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coilwork_ir.buffers import Argument, DeviceValue, Item, ListValue, Ref, TorchValue
from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.syntax.python import Formula, print_expression
from coilwork_wrapper.python import scope
from coilwork_wrapper.python.scope import RESERVED, make_identifiers


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
def test_the_text_of_an_argument_evaluates_to_it(argument: Argument, value: object) -> None:
    text = argument_text(argument)
    assert eval(text, {"torch": torch, "X": "X", "T": torch.tensor(2.5), "s0": 3}) == value


def test_the_text_of_nan_evaluates_to_nan() -> None:
    assert math.isnan(eval(argument_text(math.nan)))
    assert math.isnan(eval(argument_text(complex(math.nan, 1))).real)


@given(st.lists(st.text(max_size=6)), st.sets(st.sampled_from(["a", "b", "a_1", "x"])))
def test_identifiers_are_valid_and_distinct(names: list[str], taken: set[str]) -> None:
    chosen = make_identifiers(names, taken)
    assert set(chosen) == set(names)
    assert len(set(chosen.values())) == len(chosen)
    for name in chosen.values():
        assert name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
        assert name not in RESERVED and name not in taken


def test_a_name_stays_itself_if_it_can() -> None:
    assert make_identifiers(["x", "add_1", "x"]) == {"x": "x", "add_1": "add_1"}
    assert make_identifiers(["x", "1x", "if", "a.b", "a-b"], ["x"]) == {
        "x": "x_1",
        "1x": "_1x",
        "if": "_if",
        "a.b": "a_b",
        "a-b": "a_b_1",
    }


class OnlyAsked:
    """Names that can be asked for, and neither counted nor copied."""

    def __contains__(self, name: object) -> bool:
        return name in ("x", "x_1")


def test_names_that_many_functions_share_are_not_copied_for_each() -> None:
    """Hundreds of nested programs beside each other would otherwise take time for each pair of them."""
    assert make_identifiers(["x", "y"], OnlyAsked(), {"y"}) == {"x": "x_2", "y": "y_1"}
