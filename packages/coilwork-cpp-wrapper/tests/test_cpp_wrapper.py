"""The C++ wrapper as a registered value: what it refuses before there are sources, and programs saved and
loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hand_programs import SOURCES, program_of

from coilwork_cpp_wrapper import load_cpp
from coilwork_cpp_wrapper.wrapper import CPP
from coilwork_ir.kernel_source import write_kernels
from coilwork_ir.program.text import format_program, parse_program
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


class Kept:
    """A store over a mapping."""

    def __init__(self, kept: dict[str, bytes]) -> None:
        self.get = kept.get
        self.put = kept.__setitem__


def test_what_it_refuses_is_named_without_sources() -> None:
    wrapper: object = CPP
    assert isinstance(wrapper, Wrapper) and CPP.name == "cpp"
    assert CPP.refuses(program_of(TEXT)) == ""
    assert CPP.refuses(program_of(TEXT.replace("f32[n, 4]", "f32[n, 4] @cuda:0"))) == ""
    refused = CPP.refuses(program_of(TEXT.replace("f32[n, 4]", "f32[n, 4] @xpu:0")))
    assert "%x is on device xpu:0" in refused


def test_a_saved_program_is_loaded_and_computes_the_same(tmp_path: Path) -> None:
    texts: dict[str, str] = {}
    kept: dict[str, bytes] = {}
    store = Kept(kept)
    options = WrapOptions(constants={"w": torch.arange(4.0)}, write=texts.__setitem__, workers=1, store=store)
    artifact = CPP.emit(program_of(TEXT), SOURCES, options)
    artifact.save(tmp_path / "saved")
    loaded = load_cpp(tmp_path / "saved")
    assert (tmp_path / "saved" / "program.cpp").read_text() == texts["program.cpp"]
    # what a store keeps of a graph is its text and its kernels; the library is there, so nothing is built
    before = dict(kept)
    restored = CPP.restore(
        parse_program(format_program(program_of(TEXT))), write_kernels([(SOURCES["double"], ())]), options
    )
    assert kept == before and restored.library == artifact.library
    for call in (artifact, loaded, restored):
        x = torch.ones(3, 4)
        result, rows = call([x])
        assert rows == 3 and isinstance(result, torch.Tensor)
        assert result.tolist() == [[2.0, 3.0, 4.0, 5.0]] * 3

    (tmp_path / "saved" / "program.json").write_text("{}")
    with pytest.raises(ArtifactError, match="holds no program"):
        load_cpp(tmp_path / "saved")
