"""The C++ wrapper as a registered value: what it refuses before there are sources, and programs saved and
loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hand_programs import SOURCES, program_of

from coilwork_cpp_wrapper import load_cpp
from coilwork_cpp_wrapper.wrapper import CPP
from coilwork_ir.wrapper import WrapOptions, Wrapper
from coilwork_runtime import ArtifactError

TEXT = """program @p {
  symbol n in [0, inf]
  input %x: f32[n, 4]
  constant "w" %w: f32[4]
  DOUBLE
  bind n in [0, inf] size %x 0
  check %x
  launch @double (%x) sizes [4*n] loc("mul" "aten.mul.Tensor" "model.py":3 "x *= 2" "")
  extern "aten.add.Tensor" (%x, %w) defines (%y: f32[n, 4])
  return (%y, `n`)
}"""


def test_what_it_refuses_is_named_without_sources() -> None:
    assert isinstance(CPP, Wrapper) and CPP.name == "cpp"
    assert CPP.refuses(program_of(TEXT)) == ""
    refused = CPP.refuses(program_of(TEXT.replace("f32[n, 4]", "f32[n, 4] @cuda:0")))
    assert "%x is on device cuda:0" in refused


def test_a_saved_program_is_loaded_and_computes_the_same(tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    options = WrapOptions(constants={"w": torch.arange(4.0)}, write=texts.__setitem__, workers=1)
    artifact = CPP.emit(program_of(TEXT), SOURCES, options)
    artifact.save(tmp_path / "saved")
    loaded = load_cpp(tmp_path / "saved")
    assert (tmp_path / "saved" / "program.cpp").read_text() == texts["program.cpp"]
    for call in (artifact, loaded):
        x = torch.ones(3, 4)
        result, rows = call([x])
        assert rows == 3 and result.tolist() == [[2.0, 3.0, 4.0, 5.0]] * 3

    (tmp_path / "saved" / "program.json").write_text("{}")
    with pytest.raises(ArtifactError, match="holds no program"):
        load_cpp(tmp_path / "saved")
