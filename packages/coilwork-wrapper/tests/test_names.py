"""Identifiers: valid, distinct, and the name itself where that is possible."""

from __future__ import annotations

import keyword

from hypothesis import given
from hypothesis import strategies as st

from coilwork_wrapper.python.scope import RESERVED, identifiers


@given(st.lists(st.text(max_size=6)), st.sets(st.sampled_from(["a", "b", "a_1", "x"])))
def test_identifiers_are_valid_and_distinct(names: list[str], taken: set[str]) -> None:
    chosen = identifiers(names, taken)
    assert set(chosen) == set(names)
    assert len(set(chosen.values())) == len(chosen)
    for name in chosen.values():
        assert name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
        assert name not in RESERVED and name not in taken


def test_a_name_stays_itself_if_it_can() -> None:
    assert identifiers(["x", "add_1", "x"]) == {"x": "x", "add_1": "add_1"}
    assert identifiers(["x", "1x", "if", "a.b", "a-b"], ["x"]) == {
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
    assert identifiers(["x", "y"], OnlyAsked(), {"y"}) == {"x": "x_2", "y": "y_1"}
