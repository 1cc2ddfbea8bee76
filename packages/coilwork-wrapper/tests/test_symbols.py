"""Size symbols: given, read off inputs, of any name, and index arithmetic on them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wrapper_programs import check_agreement, fx_module, program_of

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, evaluate, floordiv, maximum, minimum, mod, symbol
from coilwork_ir.program.nodes import CondCall
from coilwork_ir.program.text import parse_program
from coilwork_ir.program.walk import list_outer_symbols, list_program_symbols
from coilwork_ir.syntax.python import print_expression
from coilwork_wrapper import emit_fx, emit_python
from coilwork_wrapper.python.scope import index_expression


def test_sizes_as_inputs_more_than_once_and_as_expressions() -> None:
    check_agreement(
        """program @p {
          symbol s0 in [1, inf]
          symbol s1 in [1, inf]
          input size `s0`
          input %x: f32[s0, s1]
          input size `s0`
          input size `2*s1`
          bind s0 in [1, inf] size %x 0
          bind s1 in [1, inf] size %x 1
          check %x
          return (`s0*s1 - 3`, `s1 // 2`)
        }""",
        [4, torch.ones(4, 6), 4, 12],
        [5, torch.ones(5, 7), 5, 14],
    )


def test_strides_are_symbols_too() -> None:
    check_agreement(
        """program @p {
          symbol t0 in [0, inf]
          input %x: f32[3]{t0}
          bind t0 in [0, inf] stride %x 0
          check %x
          view %y: f32[2]{2*t0} of %x offset `0`
          return (%y, `t0`)
        }""",
        [torch.arange(3.0)],
        [torch.arange(6.0)[::2]],
    )


@pytest.mark.parametrize("name", ["args", "lambda", "x", "float32", "check_layout", "max", "call", "_", "rt"])
def test_symbols_and_buffers_may_have_any_name(name: str) -> None:
    buffer = "x" if name != "x" else "torch"
    check_agreement(
        f"""program @p {{
          symbol {name} in [1, inf]
          input %{buffer}: f32[{name}]
          bind {name} in [1, inf] size %{buffer} 0
          check %{buffer}
          alloc %{name}: f32[{name}, 2]
          extern "aten.stack.out" ([%{buffer}, %{buffer}], 1) out ("out" %{name})
          view %size_0: f32[2*{name}] of %{name} offset `0`
          return (%size_0, `min(8, {name} + 3)`, `max(8, {name})`)
        }}""",
        [torch.randn(3)],
        [torch.randn(9)],
    )


NESTED = """program @p {
  symbol s0 in [1, inf]
  input %flag: bool[]
  input %x: f32[s0]
  bind s0 in [1, inf] size %x 0
  cond %flag (%x) defines (%y: f32[s0]) {
    program @then {
      symbol n in [0, inf]
      input %a: f32[s0]
      bind n in [0, inf] size %a 0
      extern "aten.add.Scalar" (%a, `n + s0`) defines (%b: f32[s0])
      return (%b)
    }
    program @otherwise {
      input %a: f32[s0]
      return (%a)
    }
  }
  return (%y)
}"""


def test_symbols_that_a_program_binds_and_takes() -> None:
    program = program_of(NESTED)
    (cond,) = [i for i in program.instructions if isinstance(i, CondCall)]
    assert [s.name for s in list_outer_symbols(program)] == []
    assert [s.name for s in list_program_symbols(program)] == ["s0"]
    assert [s.name for s in list_outer_symbols(cond.then)] == ["s0"]
    assert [s.name for s in list_program_symbols(cond.then)] == ["n"]
    check_agreement(NESTED, [torch.tensor(True), torch.ones(3)])


def test_a_size_without_a_value_is_an_error_when_emitting() -> None:
    program = parse_program("program @p {\n symbol s0 in [1, inf]\n input %x: f32[s0]\n return (`s0`)\n}")
    for emit in (lambda: emit_python(program, {}), lambda: emit_fx(program, {})):
        with pytest.raises(EmitError, match="size s0 is not bound in program @p"):
            emit()


S0, S1 = symbol("s0", lo=0), symbol("s1", lo=1)


def expressions() -> st.SearchStrategy[Expr]:
    """Index expressions over `s0` and `s1`."""
    leaves = st.sampled_from([S0, S1, S0 + 1, 3 * S1 - 2])
    positive = st.sampled_from([2, 3, 8])

    def deeper(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] * p[1] - 4),
            st.tuples(inner, positive).map(lambda p: floordiv(*p)),
            st.tuples(inner, positive).map(lambda p: mod(*p)),
            st.tuples(inner, inner).map(lambda p: minimum(*p)),
            st.tuples(inner, inner).map(lambda p: maximum(*p)),
        )

    return st.recursive(leaves, deeper, max_leaves=6)


@settings(max_examples=80, deadline=None)
@given(expressions(), st.integers(0, 40), st.integers(1, 40))
def test_index_arithmetic_in_python_and_fx(expr: Expr, s0: int, s1: int) -> None:
    wanted = evaluate(expr, {"s0": s0, "s1": s1})
    assert (
        eval(print_expression(index_expression(expr, {"s0": "s0", "s1": "s1"})), {"s0": s0, "s1": s1})
        == wanted
    )
    renamed = index_expression(expr, {"s0": "a_long_name", "s1": "s0"})
    assert eval(print_expression(renamed), {"a_long_name": s0, "s0": s1}) == wanted
    program = (
        "program @p {\n symbol s0 in [0, inf]\n symbol s1 in [1, inf]\n input size `s0`\n input size `s1`\n"
    )
    assert fx_module(f"{program} return (`{expr!r}`)\n}}")(s0, s1) == (wanted,)
