"""Results of operators that may be marked as negated or conjugated: who reads them resolved, and who gets
them as they are.
"""

from __future__ import annotations

import pytest
from ir_cases import COPY, UPDATE

from coilwork_ir.program.lazy_conjugation import resolve_marks
from coilwork_ir.program.text import format_program, parse_program
from coilwork_ir.program.verify import verify_program

KERNEL_READS = """
  extern "my.op.default" (%x) defines (%y: f32[4])
  alloc %z: f32[4]
  launch @copy (%y, %z) sizes [4]
"""


def resolve(body: str, kept: int | None = None, kernel: str = COPY) -> list[str]:
    """The instructions that become of `body`, without those of the kernels."""
    program = parse_program(f"program @p {{\n  input %x: f32[4]\n  {kernel}\n{body}\n}}\n")
    verify_program(program)
    resolved = resolve_marks(program, kept=kept)
    verify_program(resolved)
    lines = format_program(resolved).splitlines()
    return [line.strip() for line in lines[lines.index("  }") + 1 : -1]]


def test_kernels_read_what_is_resolved() -> None:
    expected = [
        'extern "my.op.default" (%x) defines (%y_marked: f32[4])',
        'extern "aten.resolve_neg.default" (%y_marked) defines (%y: f32[4])',
        "free (%y_marked)",
        "alloc %z: f32[4]",
        "launch @copy (%y, %z) sizes [4]",
    ]
    assert resolve(KERNEL_READS + "return (%z)") == [*expected, "return (%z)"]
    # nobody may have what is marked
    assert resolve(KERNEL_READS + "return (%y, %z)", kept=0) == [*expected, "return (%y, %z)"]


def test_a_result_stays_as_it_is() -> None:
    body = [
        'extern "my.op.default" (%x) defines (%y: f32[4])',
        "view %v: f32[2, 2] of %y offset `0`",
        "return (%y, %v)",
    ]
    assert resolve("\n".join(body)) == body
    # integers have no marks
    body = [line.replace("f32", "i64") for line in body]
    assert resolve("\n".join(body), kept=0) == body


def test_what_is_read_and_returned_is_there_twice() -> None:
    found = resolve(
        KERNEL_READS + "view %v: f32[2, 2] of %y offset `0`\n view %w: f32[2] of %v offset `2`\n"
        "free (%x)\n return (%w, %z)"
    )
    assert found == [
        'extern "my.op.default" (%x) defines (%y_marked: f32[4])',
        'extern "aten.resolve_neg.default" (%y_marked) defines (%y: f32[4])',
        "alloc %z: f32[4]",
        "launch @copy (%y, %z) sizes [4]",
        "view %v_marked: f32[2, 2] of %y_marked offset `0`",
        "view %w_marked: f32[2] of %v_marked offset `2`",
        "free (%x)",
        "free (%y_marked, %v_marked)",
        "return (%w_marked, %z)",
    ]


def test_what_is_saved_for_another_graph_is_resolved() -> None:
    found = resolve('extern "my.op.default" (%x) defines (%y: f32[4])\n return (%y, %y)', kept=1)
    assert found == [
        'extern "my.op.default" (%x) defines (%y_marked: f32[4])',
        'extern "aten.resolve_neg.default" (%y_marked) defines (%y: f32[4])',
        "return (%y_marked, %y)",
    ]


@pytest.mark.parametrize("write", ["kernel", "operator"])
def test_what_is_written_to_is_one_tensor(write: str) -> None:
    body = 'extern "my.op.default" (%x) defines (%y: f32[4])\n'
    body += (
        "launch @update (%y) sizes [4]\n"
        if write == "kernel"
        else 'extern "aten.add_.Tensor" (%y, 1) defines (_)\n'
    )
    found = resolve(body + "return (%y)", kernel=UPDATE)
    assert found[1] == 'extern "aten.resolve_neg.default" (%y_marked) defines (%y: f32[4])'
    assert found[-1] == "return (%y)"


def test_conjugates_are_resolved_twice_and_not_seen_as_memory() -> None:
    body = 'extern "my.op.default" (%x) defines (%y: c64[2])\n'
    assert resolve(body + "return (%y)") == [body.strip(), "return (%y)"]
    view = "view %v: f32[2, 2] of %y offset `0`\n "
    found = resolve(body + view + 'extern "aten.sum.default" (%v) defines (%s: f32[])\n return (%y, %s)')
    assert found[-1] == "return (%y_marked, %s)"
    found = resolve(body + view + "return (%y, %v)")
    assert found == [
        'extern "my.op.default" (%x) defines (%y_marked: c64[2])',
        'extern "aten.resolve_conj.default" (%y_marked) defines (%y_marked1: c64[2])',
        'extern "aten.resolve_neg.default" (%y_marked1) defines (%y: c64[2])',
        "free (%y_marked1)",
        "free (%y_marked)",
        "view %v: f32[2, 2] of %y offset `0`",
        "return (%y, %v)",
    ]


@pytest.mark.parametrize("target", ["aten.neg.default", "_c10d_functional.wait_tensor.default"])
def test_results_of_operators_that_tell_are_left_alone(target: str) -> None:
    program = parse_program(
        f'program @p {{\n  input %x: f32[4]\n  extern "{target}" (%x) defines (%y: f32[4])\n  return '
        f"(%y)\n}}\n"
    )
    assert resolve_marks(program) is program
