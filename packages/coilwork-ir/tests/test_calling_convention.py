"""Roles of inputs and results: their text, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coilwork_ir.calling_convention import CallingConvention, CallRole, InputRole, OutputRole, Role, Value

i, o, h = ([Value(side, k) for k in range(3)] for side in ("in", "out", "hidden"))

ROWS: tuple[tuple[Role, str], ...] = (
    (InputRole(value=i[0], kind="donated"), "in 0 donated"),
    (InputRole(value=i[1], kind="aligned", is_update=True), "in 1 aligned update"),
    (InputRole(value=i[1], kind="resolved", is_conjugate=True), "in 1 resolved conjugate"),
    (InputRole(value=i[2], kind="set", source=o[2]), "in 2 set to out 2"),
    (InputRole(value=i[2], kind="strided", strides=(-2, -1)), "in 2 strided -2 -1"),
    (OutputRole(value=o[0], kind="number", number=bool), "out 0 number bool"),
    (OutputRole(value=o[0], kind="constant", number=0.5), "out 0 constant 0.5"),
    (OutputRole(value=o[0], kind="constant", number=False), "out 0 constant False"),
    (OutputRole(value=o[1], kind="detached"), "out 1 detached"),
    (OutputRole(value=h[0], kind="is", source=o[1]), "hidden 0 is out 1"),
    (OutputRole(value=h[0], kind="counted"), "hidden 0 counted apart"),
    (OutputRole(value=o[1], kind="counted", source=i[0]), "out 1 counted with in 0"),
    (
        OutputRole(value=o[1], kind="view", source=h[0], creation="DEFAULT"),
        "out 1 view of hidden 0 as DEFAULT",
    ),
    (
        OutputRole(value=o[1], kind="view", source=o[1], is_unless_view=True),
        "out 1 view of out 1 unless view",
    ),
    (OutputRole(value=o[1], kind="created", creation="NO_GRAD_MODE"), "out 1 created as NO_GRAD_MODE"),
    (
        OutputRole(value=o[1], kind="marked", marks=(True, False), is_gradient=True),
        "out 1 marked negated gradient",
    ),
    (OutputRole(value=o[1], kind="strided", strides=()), "out 1 strided"),
    (OutputRole(value=o[1], kind="shown", source=i[2]), "out 1 shown of in 2"),
    (OutputRole(value=o[1], kind="shown", source=i[2], is_view=True), "out 1 shown of in 2 as view"),
    (
        CallRole(kind="made", name="tail", takes=(o[1], o[2]), gives=(o[0],)),
        "call tail takes out 1, out 2 gives out 0",
    ),
    (CallRole(kind="instead", name="operators"), "call operators instead"),
    (CallRole(kind="before", name="flatten"), "call flatten before"),
    (CallRole(kind="before", name="named"), "call named before"),
)


def test_each_role_has_a_line() -> None:
    convention = CallingConvention(takes=3, gives=2).add(*(row for row, _ in ROWS))
    assert str(convention).splitlines() == ["takes 3 gives 2", *(line for _, line in ROWS)]
    assert [len(roles) for roles in convention.inputs] == [1, 2, 2]
    outputs = [row for row in convention.rows if isinstance(row, OutputRole) and row.value == Value("out", 0)]
    assert [role.kind for role in outputs] == ["number", "constant", "constant"]


def test_what_stands_around_comes_behind() -> None:
    inner = CallingConvention(takes=3).add(ROWS[1][0])
    outer = CallingConvention(takes=3, gives=1).add(ROWS[8][0])
    assert str(inner.wrap(outer)) == "takes 3 gives 1\nin 1 aligned update\nout 1 detached\n"
    assert inner.add() is inner


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="later"):
        CallingConvention(takes=1).add(OutputRole(value=o[0], kind="view", source=h[0]))
    with pytest.raises(ValueError, match="input that there is not"):
        CallingConvention(takes=1).add(InputRole(value=i[1], kind="aligned"))
    with pytest.raises(ValueError, match="inputs of the caller"):
        CallingConvention(takes=1).add(CallRole(kind="before", name="flatten"), ROWS[0][0])
    roles: tuple[Callable[[], OutputRole | InputRole], ...] = (
        lambda: OutputRole(value=i[0], kind="detached"),
        lambda: OutputRole(value=o[0], kind="view"),
        lambda: OutputRole(value=o[0], kind="detached", source=i[0]),
        lambda: OutputRole(value=o[0], kind="number"),
        lambda: InputRole(value=o[0], kind="aligned"),
        lambda: InputRole(value=i[0], kind="set"),
    )
    for make_role in roles:
        with pytest.raises(ValueError):
            make_role()
