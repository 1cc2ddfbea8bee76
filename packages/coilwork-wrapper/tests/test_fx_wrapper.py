"""The FX wrapper: what it refuses, one method overridden, and graphs that are saved and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import wrapper_stand_in
from wrapper_programs import SOURCES, program_of

from coilwork_ir.conformance import check_wrapper
from coilwork_ir.errors import EmitError
from coilwork_ir.program.nodes import CondCall, ExternCall, Launch
from coilwork_ir.wrapper import WrapOptions, Wrapper
from coilwork_wrapper import FxEmitter, FxWrapper
from coilwork_wrapper.fx_wrapper import FX

NESTED = """program @p {
  symbol n in [0, inf]
  input %x: f32[n]
  input %p: bool[]
  constant "w" %w: f32[1]
  RELU_ADD
  bind n in [0, inf] size %x 0
  alloc %y: f32[n]
  launch @relu_add (%x, %x, %y) sizes [n]
  cond %p (%y) defines (%z: f32[n]) {
    program @t {
      input %a: f32[n]
      extern "aten.mul.Tensor" (%a, 2) defines (%b: f32[n])
      return (%b)
    }
    program @e {
      input %a: f32[n]
      return (%a)
    }
  }
  extern "aten.add.Tensor" (%z, %w) defines (%r: f32[n])
  return (%r)
}"""


def launchers() -> dict[str, Any]:
    kernels = [
        wrapper_stand_in.CppKernel(name=name, source=source.text, entry=name, args=())
        for name, source in SOURCES.items()
    ]
    return wrapper_stand_in.build(kernels)


def options(**given: Any) -> WrapOptions:
    return WrapOptions(build=launchers, constants={"w": torch.tensor([0.5])}, **given)


def test_what_it_refuses_is_named() -> None:
    program = program_of(NESTED)
    wrapper: object = FX
    assert isinstance(wrapper, Wrapper) and FX.name == "fx" and FX.refuses(program) == ""
    nested = program.instructions[3]
    assert isinstance(nested, CondCall)
    assert "size n is not bound" in FX.refuses(nested.then)
    with pytest.raises(EmitError, match="size n is not bound"):
        FX.emit(nested.then, SOURCES, options())


def test_one_method_is_overridden_and_the_others_stay() -> None:
    """Nested programs are emitted by the same class."""
    told: list[str] = []

    def tell(what: str) -> None:
        told.append(what)

    class Telling(FxEmitter):
        def launch(self, launch: Launch) -> None:
            super().launch(launch)
            self.act(tell, launch.kernel)

        def extern_call(self, call: ExternCall) -> None:
            super().extern_call(call)
            self.act(tell, call.target)

    texts: dict[str, str] = {}
    wrapper = FxWrapper(name="telling", emitter=Telling)
    artifact = wrapper.emit(program_of(NESTED), SOURCES, options(write=texts.__setitem__))
    args = [torch.tensor([1.0, -2.0]), torch.tensor(True)]
    (result,) = artifact(args)
    assert result.tolist() == [4.5, -3.5] and args == []
    assert told == ["relu_add", "aten.mul.Tensor", "aten.add.Tensor"]
    assert "tell" in texts["fx.py"]


def test_a_saved_graph_is_loaded_and_computes_the_same(tmp_path: Path) -> None:
    artifact = FX.emit(program_of(NESTED), SOURCES, options())
    artifact.save(tmp_path / "saved")
    loaded = FX.load(tmp_path / "saved", lambda data: launchers() if b"relu_add" in data else {})
    assert loaded.code == artifact.graph.code
    for flag in (True, False):
        inputs = (torch.randn(3), torch.tensor(flag))
        torch.testing.assert_close(loaded(*inputs), artifact.graph(*inputs))


def test_it_keeps_the_contract_of_wrappers() -> None:
    results = check_wrapper(FX)
    assert {(result.status, result.reason) for result in results} == {("passed", "")}
