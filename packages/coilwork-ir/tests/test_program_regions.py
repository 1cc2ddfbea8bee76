"""Nested and partition regions as calls of subprograms: what becomes of them, what is shared, what is
refused.
"""

from __future__ import annotations

import pytest
import torch

from coilwork_ir.errors import VerifyError
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import Program, SubprogramCall
from coilwork_ir.program.regions import outline_regions
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program


def layer(kind: str, source: str, result: str, scale: str = "2.0") -> str:
    return f"""region {kind} (%{source}) sizes (s0 in [1, inf]) leaves (%{result}) {{
    alloc %{result}_cos: f32[s0]
    extern "aten.cos.out" (%{source}) out ("out" %{result}_cos)
    extern "aten.mul.Tensor" (%{result}_cos, {scale}) defines (%{result}: f32[s0])
    free (%{result}_cos)
  }}"""


def program(*lines: str, result: str) -> Program:
    body = "\n  ".join(lines)
    made = parse_program(f"""program @main {{
  symbol s0 in [1, inf]
  input %x: f32[s0]
  bind s0 in [1, inf] size %x 0
  {body}
  return (%{result})
}}
""")
    verify_program(made)
    return made


def calls(made: Program) -> list[SubprogramCall]:
    return [one for one in made.instructions if isinstance(one, SubprogramCall)]


def check_outlined(made: Program) -> list[SubprogramCall]:
    """Outlined, it is legal, keeps its text, and computes the same."""
    outlined = outline_regions(made)
    verify_program(outlined)
    assert parse_program(format_program(outlined)) == outlined
    x = torch.randn(5)
    (found,), (wanted,) = interpret_program(outlined, [x]), interpret_program(made, [x])
    assert isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor)
    assert torch.equal(found, wanted)
    return calls(outlined)


def test_nested_regions_that_are_alike_share_a_body() -> None:
    made = program(
        layer("nested", "x", "a"),
        layer("nested", "a", "b"),
        layer("nested", "b", "c", scale="3.0"),
        result="c",
    )
    first, second, third = check_outlined(made)
    assert first.body is second.body and third.body != first.body
    assert [one.body.name for one in (first, second, third)] == ["nested", "nested", "nested_1"]


def test_a_shared_body_is_one_after_text_too() -> None:
    made = outline_regions(program(layer("nested", "x", "a"), layer("nested", "a", "b"), result="b"))
    first, second = calls(parse_program(format_program(made)))
    assert first.body is second.body
    assert format_program(made).count("aten.cos.out") == 1


def test_a_partition_is_its_own_and_keeps_its_name() -> None:
    made = program(layer("partition @mine", "x", "a"), layer("partition @mine", "a", "b"), result="b")
    first, second = check_outlined(made)
    assert [first.body.name, second.body.name] == ["mine", "mine_1"]
    assert [entry.name for entry in first.body.inputs] == ["x", "s0"]


def test_a_region_in_a_partition_is_called_by_it() -> None:
    inner = layer("nested", "x", "a").replace("\n", "\n  ")
    made = program(
        f"region partition @outer (%x) sizes (s0 in [1, inf]) leaves (%a) {{\n  {inner}\n  }}",
        layer("nested", "a", "b"),
        result="b",
    )
    outer, own = check_outlined(made)
    (call,) = calls(outer.body)
    assert call.body is own.body


def test_without_such_regions_the_program_is_the_same() -> None:
    made = program("region capture () {\n  }", "alloc %a: f32[s0]", result="a")
    assert outline_regions(made) is made


CUT = "sizes (s0 in [1, inf])"
REFUSED = {
    "alloc %a: f32[s0]\n  region nested (%a) {\n    free (%a)\n  }": "%a, of its surroundings, ends in it",
    f"region nested (%x) {CUT} leaves (%a) {{\n    reuse %a: f32[s0] of %x\n  }}": (
        "%x, of its surroundings, ends in it"
    ),
    f"region partition (%x) {CUT} leaves (%a) {{\n    view %a: f32[s0] of %x offset `0`\n  }}": (
        "%a shares memory with an operand"
    ),
    f"""region nested () {CUT} leaves (%a, %b) {{
    alloc %a: f32[s0]
    view %b: f32[s0] of %a offset `0`
  }}""": "%b shares memory with an operand, a constant or another result",
    f"""pool %p `4 * s0` "cpu"
  region nested (%p) {CUT} leaves (%a) {{
    carve %a: f32[s0] of %p at `0`
  }}""": "%p, of its surroundings, is no buffer",
    f'region nested () {CUT} leaves (%p) {{\n    pool %p `4 * s0` "cpu"\n  }}\n  alloc %a: f32[s0]': (
        "%p, which it leaves, is no buffer"
    ),
    """region nested (%x) leaves (%u) {
    extern "aten.nonzero.default" (%x) defines (%u: i64[u0, 1]) binds (u0 in [0, inf] of 0 0)
  }
  alloc %a: f32[s0]""".replace(
        "defines (%u: i64[u0, 1]) binds (u0 in [0, inf] of 0 0)",
        "binds (u0 in [0, inf] of 0 0) defines (%u: i64[u0, 1])",
    ): ("sizes are read of what aten.nonzero.default returns"),
}


@pytest.mark.parametrize(("lines", "why"), REFUSED.items(), ids=list(REFUSED.values()))
def test_what_is_no_function_is_refused(lines: str, why: str) -> None:
    with pytest.raises(VerifyError) as caught:
        program(lines, result="x" if "free (%a)" in lines else "a")
    assert caught.value.code == "region-outline" and why in str(caught.value)


BODY = """program @part {
    input %v: f32[4]
    {body}
    return (%w)
  }"""


@pytest.mark.parametrize(
    ("body", "code", "why"),
    [
        ("view %w: f32[4] of %v offset `0`", "subprogram-results", "@part: %w shares memory"),
        ("alloc %w: f32[n]", "symbol-bound", "n in n has no value here"),
        ("alloc %w: i64[4]", "region-signature", "returns nothing that fits %r"),
    ],
)
def test_bodies_that_are_no_functions_are_refused(body: str, code: str, why: str) -> None:
    text = f"""program @main {{
  symbol n in [1, inf]
  input %x: f32[4]
  input %y: f32[n]
  {BODY.replace("{body}", body)}
  bind n in [1, inf] size %y 0
  run @part (%x) defines (%r: f32[4])
  return (%r)
}}
"""
    if "[n]" in body:
        text = text.replace("input %v: f32[4]", "symbol n in [1, inf]\n    input %v: f32[4]")
    with pytest.raises(VerifyError) as caught:
        verify_program(parse_program(text))
    assert caught.value.code == code and why in str(caught.value)


def test_two_bodies_of_one_name_are_refused() -> None:
    made = outline_regions(
        program(layer("nested", "x", "a"), layer("partition @other", "a", "b"), result="b")
    )
    *rest, last = made.instructions
    renamed = []
    for one in rest:
        if isinstance(one, SubprogramCall):
            body = Program(
                name="same",
                symbols=one.body.symbols,
                inputs=one.body.inputs,
                instructions=one.body.instructions,
            )
            one = SubprogramCall(body=body, operands=one.operands, outputs=one.outputs)
        renamed.append(one)
    broken = Program(name="main", symbols=made.symbols, inputs=made.inputs, instructions=(*renamed, last))
    with pytest.raises(VerifyError, match="@same stands for two programs"):
        verify_program(broken)


def test_a_peak_names_sizes_that_instructions_bind() -> None:
    made = parse_program("""program @p {
      input %x: f32[3]
      peak `max(8*u0 + 64, 128)`
      bind u0 in [0, inf] size %x 0
      return (%x)
    }""")
    assert parse_program(format_program(made)) == made
    assert "max(8*u0 + 64, 128)" in format_program(made)
