"""Packages of programs that wrappers saved or traces wrote, without the model and the compiler."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import coilwork
from coilwork.compile_graph import compile_graph
from coilwork.compile_options import CompileOptions
from coilwork.registries import WRAPPERS
from coilwork_aot import InputError, PackageError, load, save_program
from coilwork_ir.program.text import parse_program
from coilwork_ir.wrapper import WrapOptions
from coilwork_lowering import LoweringOptions, decompositions
from coilwork_runtime.manifest.kernel_manifest import encode_kernels
from coilwork_runtime.saved_program import SavedProgram, write_program
from coilwork_wrapper.native.emit import encode_program

PROGRAM = """program @p {{
  symbol s0 in [0, inf]
  input %x: f32[s0, 3]
  input size `s0`
  input %t: i64[2]{{2}}
  constant "w" %w: f32[3]
  bind s0 in [0, inf] size %x 0
  check %x
  {check}
  extern "aten.add.Tensor" (%x, %w) defines (%y: f32[s0, 3])
  return (%y, `s0 + 1`)
}}"""


def save(folder: Path, *, check: str = "check %t") -> Path:
    text = PROGRAM.format(check=check)
    options = WrapOptions(constants={"w": torch.arange(6.0)[::2]})
    WRAPPERS.find("python").emit(parse_program(text), {}, options).save(folder)
    return folder


def call(model: object, x: torch.Tensor, t: torch.Tensor) -> list[object]:
    assert callable(model)
    y, size = model(x, len(x), t)
    return [y.tolist(), size]


def test_a_package_runs_as_the_program_does(tmp_path: Path) -> None:
    save_program(save(tmp_path / "saved"), tmp_path / "p.cw")
    t = torch.arange(4)[::2]
    # in Python, and by the executor that lies in the compiler's store
    for model in (load(tmp_path / "p.cw"), coilwork.load(tmp_path / "p.cw")):
        assert model.name == "p"
        for rows in (2, 0, 5):
            x = torch.ones(rows, 3)
            assert call(model, x, t) == [(x + torch.tensor([0.0, 2, 4])).tolist(), rows + 1]
    with pytest.raises(InputError, match=r"x has torch\.float64"):
        model(torch.ones(2, 3).double(), 2, t)
    with pytest.raises(InputError, match="x is 4"):
        model(torch.ones(2, 4), 2, t)
    # the program may write to it, so no copy is made
    with pytest.raises(InputError, match="strides"):
        model(torch.ones(2, 3), 2, torch.arange(2))


def test_equal_programs_give_equal_packages(tmp_path: Path) -> None:
    for number in range(2):
        save_program(save(tmp_path / str(number)), tmp_path / f"{number}.cw")
    assert (tmp_path / "0.cw").read_bytes() == (tmp_path / "1.cw").read_bytes()


def test_a_trace_is_packaged_with_its_constants_and_kernels(tmp_path: Path) -> None:
    linear = torch.nn.Linear(6, 5).requires_grad_(False)
    x = torch.randn(3, 6)
    graph = make_fx(
        lambda x: (torch.softmax(linear(x), -1),), decomposition_table=decompositions(LoweringOptions())
    )(x)
    options = CompileOptions(strict=True, executor="python", trace=str(tmp_path / "trace"))
    (wanted,) = compile_graph(graph, [x], role="inference", options=options)([x])
    (folder,) = (path.parent for path in (tmp_path / "trace").glob("*/program.bin"))
    with pytest.raises(PackageError, match="missing-constant"):
        save_program(folder, tmp_path / "t.cw")
    constants = {one.target: getattr(graph, one.target) for one in graph.graph.find_nodes(op="get_attr")}
    save_program(folder, tmp_path / "t.cw", constants=constants)
    (found,) = load(tmp_path / "t.cw")(x)
    assert torch.equal(found, wanted)


def damage(folder: Path) -> Iterable[Path]:
    """Yield the folder with each of its files damaged or missing, which people do not read."""
    for name in ("program.bin", "kernels.bin", "constants.bin", "facts.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-3])
        yield folder
        (folder / name).write_bytes(whole)
    (folder / "kernels.bin").unlink()
    yield folder


def test_what_is_no_whole_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"unchecked-input(.|\n)*input t of program p"):
        save_program(save(tmp_path / "unchecked", check=""), tmp_path / "p.cw")
    for folder in (tmp_path / "nothing", *damage(save(tmp_path / "saved"))):
        with pytest.raises(PackageError, match="damaged-program"):
            save_program(folder, tmp_path / "p.cw")
    assert not (tmp_path / "p.cw").exists()


def test_launches_of_the_users_kernels_are_refused(tmp_path: Path) -> None:
    text = """program @p {
      input %x: f32[3]
      check %x
      extern "coilwork_kernels.scale_0123456789ab.default" (%x) defines (_)
      return (%x)
    }"""
    program = encode_program(parse_program(text)).data
    saved = SavedProgram(name="p", program=program, kernels=encode_kernels([]))
    write_program(tmp_path / "saved", saved, module="")
    with pytest.raises(PackageError, match=r"user-kernels(.|\n)*scale_0123456789ab"):
        save_program(tmp_path / "saved", tmp_path / "p.cw")
