"""Error messages name node, source line, reason and next step."""

from __future__ import annotations

import pytest

from coilwork_ir.errors import CoilworkIRError, EmitError, InterpretError, ParseError, VerifyError
from coilwork_ir.loc import Origin

ORIGINS = tuple(
    Origin(node=f"n{k}", op="aten.mul.Tensor", file="m.py", line=k, code=f"line {k}") for k in range(1, 6)
)


def test_a_full_message() -> None:
    error = VerifyError("rule", "what", node="%x", origins=ORIGINS, reason="because", remedy="do this")
    assert str(error).splitlines() == [
        "VerifyError[rule]: what",
        "  node    %x",
        "  source  m.py:1   line 1",
        "  source  m.py:2   line 2",
        "  source  m.py:3   line 3",
        "  reason  because",
        "  try     do this",
    ]
    assert (error.code, error.what, error.reason) == ("rule", "what", "because")


def test_a_source_line_is_said_once() -> None:
    again = Origin(node="again", op="aten.add.Tensor", file="m.py", line=1, code="line 1")
    lines = str(VerifyError("rule", "what", origins=(ORIGINS[0], again, again, *ORIGINS[1:]))).splitlines()
    assert lines[1:] == [f"  source  m.py:{k}   line {k}" for k in (1, 2, 3)]


def test_unknown_facts_are_left_out() -> None:
    assert str(InterpretError("a", "b")) == "InterpretError[a]: b"
    nowhere = EmitError("a", "b", origins=(Origin(node="n", op="aten.neg.default"),))
    assert str(nowhere).splitlines()[1] == "  source  unknown   aten.neg.default"


@pytest.mark.parametrize("kind", [VerifyError, ParseError, InterpretError, EmitError])
def test_all_errors_have_one_base(kind: type[CoilworkIRError]) -> None:
    with pytest.raises(CoilworkIRError):
        raise kind("a", "b")
