"""The calling convention: its text reads back, and what does not fit together is refused."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from coilwork_runtime.manifest.readable import Names
from coilwork_runtime.manifest.roles import (
    CallingConvention,
    InputKind,
    InputRole,
    OutputKind,
    OutputRole,
    Source,
    format_roles,
    parse_roles,
)
from coilwork_runtime.manifest.size_code import constant_code

SAMPLE = """sizes n0 n1
in 0 aligned update
in 1 negated
in 2 given
out 0 fresh
out 1 view of out 0 size (4; n0) stride (n0; 1) offset n1 + 2
out 2 is in 1
out 3 view of in 2 size () stride () offset 0
"""


def test_the_text_is_of_these_roles() -> None:
    found = parse_roles(SAMPLE)
    assert found.inputs == (
        InputRole(kind="aligned", is_update=True),
        InputRole(kind="negated"),
        InputRole(),
    )
    code = Names(["size:i64"] * 2, ("n0", "n1")).code
    assert found.outputs == (
        OutputRole(),
        OutputRole(
            kind="view",
            source=Source(side="out", position=0),
            size=(code("4"), code("n0")),
            stride=(code("n0"), code("1")),
            offset=code("n1 + 2"),
        ),
        OutputRole(kind="is", source=Source(side="in", position=1)),
        OutputRole(kind="view", source=Source(side="in", position=2), offset=code("0")),
    )
    assert format_roles(found) == SAMPLE


def test_drawn_conventions_read_back() -> None:
    draw = random.Random(2)
    code = Names(["size:i64"] * 2, ("n0", "n1")).code
    texts = ("0", "n0", "n0 * n1", "n1 + 3", "min(n0, 7)", "n0 // 2")
    for _ in range(200):
        inputs = tuple(
            InputRole(kind=draw.choice(get_args(InputKind)), is_update=draw.random() < 0.3)
            for _ in range(draw.randrange(1, 4))
        )
        outputs: list[OutputRole] = []
        for position in range(draw.randrange(5)):
            kind = draw.choice(get_args(OutputKind))
            source = Source(side="in", position=draw.randrange(len(inputs)))
            if position and draw.random() < 0.5:
                source = Source(side="out", position=draw.randrange(position))
            rank = draw.randrange(3)
            outputs.append(
                OutputRole(
                    kind=kind,
                    source=source if kind in ("view", "is") else None,
                    size=tuple(code(draw.choice(texts)) for _ in range(rank)) if kind == "view" else (),
                    stride=tuple(code(draw.choice(texts)) for _ in range(rank)) if kind == "view" else (),
                    offset=code(draw.choice(texts)) if kind == "view" else None,
                )
            )
        convention = CallingConvention(inputs=inputs, outputs=tuple(outputs), sizes=("n0", "n1"))
        assert parse_roles(format_roles(convention)) == convention


@pytest.mark.parametrize(
    "text",
    [
        "",
        "in 0 given\n",
        "sizes\nin 1 given\n",
        "sizes\nin 0 polished\n",
        "sizes\nin 0 given twice\n",
        "sizes\nout 0 fresh\nin 0 given\n",
        "sizes\nout 0 view\n",
        "sizes\nout 0 is\n",
        "sizes\nout 0 is in 0\n",
        "sizes\nin 0 given\nout 0 is out 0\n",
        "sizes\nin 0 given\nout 0 view of in 0 size (4) stride () offset 0\n",
        "sizes\nin 0 given\nout 0 view of in 0 size (n0) stride (1) offset 0\n",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"role|sizes|made of|view|expression"):
        parse_roles(text)


def test_parts_of_a_role_go_together() -> None:
    for fields in (
        {"kind": "view"},
        {"source": Source(side="in", position=0)},
        {"offset": constant_code(0)},
    ):
        with pytest.raises(ValueError, match="result"):
            OutputRole(**fields)
