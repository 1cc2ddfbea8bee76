"""Identifiers."""

from __future__ import annotations

from coilwork_cpp_wrapper.module import make_identifiers


def test_names_stay_where_they_can() -> None:
    assert make_identifiers(["buf0", "x_1"]) == {"buf0": "buf0", "x_1": "x_1"}


def test_keywords_reserved_names_and_odd_characters() -> None:
    chosen = make_identifiers(["int", "rt", "args", "a.b", "3d", "_Under", "é", "run_1", "a__b"])
    assert len(set(chosen.values())) == 9
    assert chosen["int"] == "int_1"
    assert chosen["a.b"] == "a_b"
    assert chosen["3d"] == "v3d"
    assert chosen["_Under"] == "Under"
    assert chosen["run_1"] == "v_run_1"
    assert "__" not in chosen["a__b"]


def test_taken_names_are_avoided() -> None:
    assert make_identifiers(["s0"], taken=["s0"]) == {"s0": "s0_1"}
    assert make_identifiers(["a.b", "a_b"]) == {"a.b": "a_b", "a_b": "a_b_1"}
