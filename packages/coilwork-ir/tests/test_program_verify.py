"""Every rule of the program verifier is triggered by a text that breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ir_cases import COPY, broken_cases

from coilwork_ir.errors import VerifyError
from coilwork_ir.index import symbol
from coilwork_ir.program import Alloc, Return
from coilwork_ir.program.text import parse_program
from coilwork_ir.program.verify import RULES, verify_program

CASES = broken_cases("broken_programs.txt")

GOOD = f"""
program @good {{
  symbol n in [2, inf]
  input %x: f32[n]
  {COPY}
  bind n in [2, inf] size %x 0
  check %x
  alloc %y: f32[n]
  launch @copy (%x, %y) sizes [n]
  free (%x)
  view %v: f32[n - 1] of %y offset `1`
  reuse %z: f32[n] of %y
  launch @copy (%z, %z) sizes [n]
  pool %m `1024` "cpu"
  carve %w: f32[4] of %m at `64`
  comment "the end"
  return (%v, %w, %z, `n + 1`)
}}
"""


def test_a_good_program_passes() -> None:
    verify_program(parse_program(GOOD))


def test_memory_with_gaps_is_as_large_as_it_reaches() -> None:
    text = (
        "program @p {{\n  input %x: f32[4]\n  alloc %y: f32[2, 4]{{6, 1}}\n  reuse %z: f32[{0}] of %y\n  "
        "return (%z)\n}}\n"
    )
    verify_program(parse_program(text.format(10)))
    with pytest.raises(VerifyError, match="reuse-size"):
        verify_program(parse_program(text.format(8)))


@pytest.mark.parametrize("code, text", CASES, ids=[code for code, _ in CASES])
def test_a_broken_program_is_refused_by_its_rule(code: str, text: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify_program(parse_program(text))
    assert caught.value.code == code
    assert caught.value.what == RULES[code].sentence
    assert caught.value.reason and caught.value.remedy and caught.value.node


def test_symbols_of_inputs_are_declared() -> None:
    program = parse_program(GOOD)
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(program, symbols=()))
    assert caught.value.code == "symbol-declared"


def test_a_symbol_has_one_set_of_bounds() -> None:
    program = parse_program(GOOD)
    alloc = next(i for i in program.instructions if isinstance(i, Alloc))
    other = Alloc(buffer=replace(alloc.buffer, name="q", shape=(symbol("n", lo=5),)))
    broken = (*program.instructions[:2], other, Return(values=()))
    with pytest.raises(VerifyError) as caught:
        verify_program(replace(program, instructions=broken))
    assert caught.value.code == "unique-symbol"


def test_numbers_of_one_call_have_names_of_their_own() -> None:
    text = (
        'program @p {{\n  extern "mine.sizes.default" () defines (size u0 in [0, inf], size {0} in [0, '
        "inf])\n  return (`u0`, `{0}`)\n}}\n"
    )
    verify_program(parse_program(text.format("u1")))
    with pytest.raises(VerifyError, match="two results are u0"):
        verify_program(parse_program(text.format("u0")))


def test_every_rule_has_a_test() -> None:
    assert {code for code, _ in CASES} | {"symbol-declared", "unique-symbol"} == set(RULES)
