"""Programs, as text, instruction by instruction."""

from __future__ import annotations

import pytest
import torch
from ir_cases import COPY, UPDATE
from tensor_results import tensors_of

from coilwork_ir.errors import InterpretError
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.text import parse_program
from coilwork_ir.program.verify import verify_program

MEMORY = f"""
program @memory {{
  symbol n in [2, inf]
  symbol k in [1, inf]
  input %x: f32[n, 4]{{k, 1}}
  constant "c" %c: f32[4]
  {COPY}
  {UPDATE}
  bind n in [2, inf] size %x 0
  bind k in [1, inf] stride %x 0
  check %x
  comment "one row"
  view %row: f32[4] of %x offset `k`
  alloc %a: f32[4]
  launch @copy (%row, %a) sizes [4]
  reuse %b: i32[4] of %a
  pool %m `256` "cpu"
  carve %p: f32[4] of %m at `64`
  launch @copy (%row, %p) sizes [4]
  launch @update (%row) sizes [4]
  extern "aten.add.out" (%p, %c) out ("out" %p)
  extern "aten.clone.default" (%p) defines (%q: f32[4])
  extern "aten.nonzero.default" (%q) binds (u0 in [0, inf] of 0 0) defines (%k: i64[u0, 1])
  free (%m, %k)
  assert `n` lt `100` "too many rows"
  return (%b, %p, %q, `u0 + n`, none)
}}
"""


def test_memory_instructions_share_and_copy_memory() -> None:
    program = parse_program(MEMORY)
    verify_program(program)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))[:, :4]
    before, c = x.clone(), torch.ones(4)
    *memory, size, nothing = interpret_program(program, [x], {"c": c})
    b, p, q = tensors_of(memory)
    assert torch.equal(b, before[1].view(torch.int32))
    assert torch.equal(p, before[1] + 1) and torch.equal(q, p)
    assert torch.equal(x[1], 2 * before[1]) and torch.equal(x[0], before[0])
    assert (size, nothing) == (4 + 3, None)


def test_memory_that_nothing_wrote_is_nan() -> None:
    program = parse_program("program @p {\n alloc %y: f32[3]\n return (%y)\n}")
    (y,) = interpret_program(program, [])
    assert isinstance(y, torch.Tensor) and bool(y.isnan().all())


def test_checks_of_sizes_and_layouts() -> None:
    text = """
program @p {
  symbol n in [0, inf]
  input %x: f32[n, 4]
  bind n in [0, inf] size %x 0
  check %x
  assert `n` lt `3` "too many rows"
  return (`n`)
}
"""
    program = parse_program(text)
    assert interpret_program(program, [torch.zeros(2, 4)]) == [2]
    with pytest.raises(RuntimeError, match="too many rows"):
        interpret_program(program, [torch.zeros(3, 4)])
    with pytest.raises(InterpretError, match="strides"):
        interpret_program(program, [torch.zeros(4, 2).t()])


REGIONS = f"""
program @regions {{
  symbol n in [1, inf]
  input %p: bool[]
  input %x: f32[n]
  bind n in [1, inf] size %x 0
  cond %p (%x) defines (%y: f32[n]) {{
    program @double {{
      input %a: f32[n]
      {UPDATE}
      alloc %b: f32[n]
      extern "aten.neg.out" (%a) out ("out" %b)
      launch @update (%b) sizes [n]
      return (%b)
    }}
    program @same {{
      input %a: f32[n]
      return (%a)
    }}
  }}
  while (%y) (%x) defines (%z: f32[n]) {{
    program @more {{
      input %a: f32[n]
      input %s: f32[n]
      extern "aten.max.default" (%a) defines (%t: f32[])
      extern "aten.lt.Scalar" (%t, 100.0) defines (%c: bool[])
      return (%c)
    }}
    program @body {{
      input %a: f32[n]
      input %s: f32[n]
      extern "aten.mul.Tensor" (%a, %s) defines (%b: f32[n])
      return (%b)
    }}
  }}
  return (%y, %z)
}}
"""


def test_branches_and_loops_are_interpreted() -> None:
    program = parse_program(REGIONS)
    verify_program(program)
    x = torch.tensor([2.0, 3.0])
    y, z = tensors_of(interpret_program(program, [torch.tensor(False), x]))
    assert torch.equal(y, x)
    assert z.tolist() == [2.0**5, 3.0**5]
    y, _ = tensors_of(interpret_program(program, [torch.tensor(True), -x]))
    assert torch.equal(y, 2 * x)


def test_a_program_without_return_is_refused() -> None:
    with pytest.raises(InterpretError, match="ended without"):
        interpret_program(parse_program("program @p {\n}"), [])
