"""The text of a calling convention: what is read of it, and what is refused."""

from __future__ import annotations

import math

import pytest

from coilwork_runtime.manifest.convention_parser import Act, Place, Row, parse_roles

SAMPLE = """takes 5 gives 4
in 0 donated
in 1 aligned update
in 2 resolved update conjugate
in 2 resolved
in 3 set to out 4
in 4 strided 12 1 3
out 0 number bool
out 0 number float
out 1 constant 2.5
out 1 constant False
hidden 0 is out 2
hidden 0 counted apart
out 2 detached
out 2 counted with in 1
out 3 view of hidden 0 as NO_GRAD_MODE
out 3 view of out 3 unless view
out 3 is out 2
out 2 marked negated conjugated gradient
out 2 created as DEFAULT
out 2 strided
out 2 shown of in 0
out 2 shown of in 1 as view
call views takes in 0, in 4 gives out 1, out 3
call operators instead
call flatten before
call named before
"""


def test_the_text_is_of_these_rows() -> None:
    i, o, h = ([(place, k) for k in range(5)] for place in (Place.IN, Place.OUT, Place.HIDDEN))
    found = parse_roles(SAMPLE)
    assert found.rows == (
        Row(Act.DONATED, i[0]),
        Row(Act.ALIGNED, i[1], flags=1),
        Row(Act.RESOLVED, i[2], flags=3),
        Row(Act.RESOLVED, i[2]),
        Row(Act.SET, i[3], o[4]),
        Row(Act.STRIDED, i[4], strides=(12, 1, 3)),
        Row(Act.NUMBER, o[0], flags=1),
        Row(Act.NUMBER, o[0]),
        Row(Act.CONSTANT, o[1], constant=2.5),
        Row(Act.CONSTANT, o[1], constant=False),
        Row(Act.IS, h[0], o[2]),
        Row(Act.COUNTED, h[0]),
        Row(Act.DETACHED, o[2]),
        Row(Act.COUNTED, o[2], i[1]),
        Row(Act.VIEW, o[3], h[0], name="NO_GRAD_MODE"),
        Row(Act.VIEW, o[3], o[3], flags=1),
        Row(Act.IS, o[3], o[2]),
        Row(Act.MARKED, o[2], flags=7),
        Row(Act.CREATED, o[2], name="DEFAULT"),
        Row(Act.STRIDED, o[2]),
        Row(Act.SHOWN, o[2], i[0]),
        Row(Act.SHOWN, o[2], i[1], flags=1),
        Row(Act.MADE, name="views", takes=(i[0], i[4]), gives=(o[1], o[3])),
        Row(Act.INSTEAD, name="operators"),
        Row(Act.BEFORE, name="flatten"),
        Row(Act.BEFORE, name="named"),
    )
    assert (found.takes, found.gives, found.kept, found.before) == (5, 4, (3, 1, 0, 4), 2)
    assert found.names == ("views", "operators", "flatten", "named")


def test_constants_are_what_they_were() -> None:
    for value in (True, 0.1, -0.0, math.inf, 5e-324):
        (row,) = parse_roles(f"takes 0\nout 0 constant {value!r}\n").rows
        assert repr(row.constant) == repr(value)
    assert math.isnan(parse_roles("takes 0\nout 0 constant nan\n").rows[0].constant)


def test_results_may_be_made_of_nothing() -> None:
    (row,) = parse_roles("takes 0\ncall empty takes  gives out 0, out 1\n").rows
    assert row == Row(Act.MADE, name="empty", gives=((Place.OUT, 0), (Place.OUT, 1)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "in 0 donated\n",
        "takes 1\nin 0 aligned later\n",
        "takes 1\nin 1 aligned\n",
        "takes 1\nout 0 counted with in 1\n",
        "takes 1\nin 0 number bool\n",
        "takes 1\nout 0 resolved\n",
        "takes 1\nout 0 constant x\n",
        "takes 1\ncall views takes in 0 gives nothing\n",
        "takes 1\ncall flatten before\nin 0 aligned\n",
        "takes 1\nthe rest\n",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_roles(text)
