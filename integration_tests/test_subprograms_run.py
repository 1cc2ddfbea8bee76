"""Subprograms by bytes and in C++: one part for all calls of a body, whoever drives it; a part may be
replaced where Python drives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from coilwork_cache import open_local_store
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.text import parse_program
from coilwork_ir.program.verify import verify_program
from coilwork_runtime.executor.interpreter import load_interpreted
from coilwork_runtime.executor.native_program import load_native
from coilwork_runtime.executor.program_reader import Code, read_program
from coilwork_wrapper.native.emit import emit_native


def layer(source: str, result: str) -> str:
    return f"""region nested (%{source}) sizes (s0 in [1, inf]) leaves (%{result}) {{
    extern "aten.cos.default" (%{source}) defines (%{result}_cos: f32[s0, 4])
    extern "aten.mul.Tensor" (%{result}_cos, 2.0) defines (%{result}: f32[s0, 4])
    free (%{result}_cos)
  }}"""


TEXT = f"""program @layers {{
  symbol s0 in [1, inf]
  input %x: f32[s0, 4]
  bind s0 in [1, inf] size %x 0
  {layer("x", "a")}
  {layer("a", "b")}
  {layer("b", "c")}
  free (%a)
  region partition @mine (%b, %c) sizes (s0 in [1, inf]) leaves (%d) {{
    extern "aten.sub.Tensor" (%b, %c) defines (%d: f32[s0, 4])
  }}
  free (%b, %c)
  return (%d, %x)
}}
"""


@pytest.fixture
def program() -> Program:
    made = parse_program(TEXT)
    verify_program(made)
    return made


def refuse() -> Any:
    raise AssertionError("the native executor left a call to Python")


def load(executor: str, data: bytes, replacements: Mapping[str, Any] = {}) -> Any:
    if executor == "python":
        return load_interpreted(data, launchers={}, constants={}, replacements=replacements)
    given: dict[str, Any] = {"fallback": refuse, "store": open_local_store(None)}
    return load_native(data, launchers={}, constants={}, replacements=replacements, **given).call


@pytest.mark.parametrize("executor", ["native", "python"])
def test_a_body_is_one_subprogram_for_all_calls(executor: str, program: Program) -> None:
    data = emit_native(program)
    _, parts = read_program(data)
    assert [part.name for part in parts] == ["layers", "nested", "mine"]
    assert [step.code for step in parts[0].steps].count(Code.RUN) == 4
    call = load(executor, data)
    for rows in (3, 1):
        x = torch.randn(rows, 4)
        found, same = call([x])
        wanted, _ = interpret_program(program, [x])
        assert torch.equal(found, wanted) and same is x


@pytest.mark.parametrize("executor", ["native", "python"])
def test_a_subprogram_may_be_replaced(executor: str, program: Program) -> None:
    seen: list[int] = []

    def instead(args: list[Any]) -> tuple[torch.Tensor, ...]:
        b, c, rows = args
        args.clear()
        seen.append(rows)
        return (b + c,)

    x = torch.randn(2, 4)
    data = emit_native(program)
    found = load(executor, data, {"mine": instead})([x])[0]
    b = (x.cos() * 2).cos() * 2
    torch.testing.assert_close(found, b + b.cos() * 2)
    assert seen == [2]
    with pytest.raises(ValueError, match=r"no part yours.*mine, nested"):
        load(executor, data, {"yours": instead})
    with pytest.raises(ValueError, match="no part layers"):
        load(executor, data, {"layers": instead})


@pytest.mark.parametrize("executor", ["native", "python"])
def test_a_wrong_replacement_is_an_error(executor: str, program: Program) -> None:
    def raises(args: list[Any]) -> tuple[torch.Tensor, ...]:
        raise LookupError("nothing here")

    def returns_nothing(args: list[Any]) -> tuple[torch.Tensor, ...]:
        return ()

    data = emit_native(program)
    with pytest.raises(LookupError, match="nothing here"):
        load(executor, data, {"mine": raises})([torch.randn(2, 4)])
    with pytest.raises(ValueError):
        load(executor, data, {"mine": returns_nothing})([torch.randn(2, 4)])
