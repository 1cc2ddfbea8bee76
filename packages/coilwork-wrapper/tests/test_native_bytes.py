"""Programs in binary form: the same bytes every time, constants and sizes once each, refusals by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
from wrapper_programs import program_of

from coilwork_ir.errors import EmitError
from coilwork_ir.index import symbol
from coilwork_wrapper import emit_native
from coilwork_wrapper.native.operands import CONSTANT, Registers
from coilwork_wrapper.native.wire_format import MAGIC, VERSION, Numbers, Operation, Strings, Tag, u32

TEXT = """program @p {
  symbol s0 in [1, 64]
  input %x: f32[s0, 4]
  bind s0 in [1, 64] size %x 0
  check %x
  alloc %y: f32[s0, 4]
  extern "aten.exp.out" (%x) out ("out" %y)
  alloc %z: f32[4*s0]
  extern "aten.mul.out" (%y, 2.5) out ("out" %z)
  free (%x, %y)
  return (%z, `s0`)
}"""

SAME = """
import hashlib, sys
from coilwork_ir.program.text import parse_program
from coilwork_wrapper import emit_native
print(hashlib.sha256(emit_native(parse_program(sys.argv[1]))).hexdigest())
"""


def test_the_bytes_begin_with_magic_version_and_length() -> None:
    data = emit_native(program_of(TEXT))
    assert data[:16] == MAGIC + u32(VERSION) + u32(len(data) - 16)


def test_equal_programs_give_equal_bytes_in_every_process() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SAME, TEXT],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_comments_and_second_bindings_leave_no_trace() -> None:
    said = TEXT.replace("  check %x\n", '  comment "a word"\n  check %x\n')
    assert emit_native(program_of(said)) == emit_native(program_of(TEXT))


def test_strings_stand_in_the_order_of_first_use() -> None:
    strings = Strings()
    assert [strings.number(text) for text in ("b", "a", "b", "é")] == [0, 1, 0, 2]
    assert strings.table() == u32(3) + u32(1) + b"b" + u32(1) + b"a" + u32(2) + "é".encode()


def test_expressions_are_computed_once() -> None:
    registers = Registers()
    s0, s1 = symbol("s0", lo=1), symbol("s1", lo=1)
    assert registers.allocate(7) == registers.allocate(7) == CONSTANT
    product = registers.allocate(4 * s0)
    assert registers.allocate(4 * s0 + s1) != product
    operations = [key[0] for key, _ in registers.take_pending()]
    assert sorted(operations) == sorted([Operation.MULTIPLY, Operation.ADD])
    assert registers.allocate(s1 + s0 * 4) == registers.allocate(4 * s0 + s1)
    assert registers.take_pending() == []
    assert list(registers.constants) == [7, 4]


def test_calls_say_where_results_lie_and_what_tensors_hold() -> None:
    from coilwork_ir.program.text import parse_program

    def data(line: str) -> bytes:
        return emit_native(parse_program(f"program @p {{\n  input %x: f32[2]\n  {line}\n  return ()\n}}"))

    call = 'extern "lib.op.default" (%x) defines (_, _, _) tuple'
    paths = u32(3) + u32(1) + u32(0) + u32(2) + u32(1) + u32(0) + u32(2) + u32(1) + u32(1)
    assert paths in data(f"{call} paths ([0], [1, 0], [1, 1])") and paths not in data(call)
    made = 'extern "lib.q.default" (%x) defines (%q: qu8[2])'
    reference = u32(1) + bytes((Tag.REF,)) + u32(1) + bytes((Numbers.QUANTIZED,))
    assert reference in data(f'{made}\n  extern "lib.op.default" (%q)')


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        (TEXT.replace("2.5", str(1 << 70)), "native-unsupported", str(1 << 70)),
        (TEXT.replace("f32[4*s0]", f"f32[{1 << 70}]"), "native-unsupported", str(1 << 70)),
        (
            TEXT.replace("4*s0", "4*s9").replace("symbol s0", "symbol s9 in [1, 8]\n  symbol s0"),
            "unbound-symbol",
            "s9",
        ),
    ],
    ids=["an integer", "a size", "an unbound symbol"],
)
def test_what_cannot_be_written_is_refused_by_name(text: str, code: str, what: str) -> None:
    from coilwork_ir.program.text import parse_program

    with pytest.raises(EmitError, match=what) as caught:
        emit_native(parse_program(text))
    assert caught.value.code == code


def test_programs_that_choose_streams_are_refused() -> None:
    text = 'program @p {\n  input %x: f32[4]\n  extern "streams.fork.default" (0, 1)\n  return (%x)\n}'
    with pytest.raises(EmitError, match=r"streams\.fork\.default chooses the stream"):
        emit_native(program_of(text))
