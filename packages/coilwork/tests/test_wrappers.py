"""Wrappers are found by name, ours like anyone's, and what their packages do wrong is told by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import coilwork
from coilwork.compile_options import CompileOptions, list_options
from coilwork.errors import CoilworkFallbackWarning, IgnoredOptionWarning, OptionError
from coilwork.package_options import make_executor_options
from coilwork.registries import WRAPPERS
from coilwork_cpp import CppCodegen
from coilwork_ir.conformance import check_wrapper, failures
from coilwork_ir.program.text import parse_program
from coilwork_ir.registration import RegistrationError
from coilwork_ir.target import target
from coilwork_ir.wrapper import WrapOptions, Wrapper
from coilwork_runtime import load_artifact

Install = Callable[[str, str], None]
Compile = Callable[..., Callable[..., Any]]

LOGGED = """
from coilwork_wrapper.fx.wrapper import FX
CALLS = []

class Logged:
    name = "logged"

    def refuses(self, program):
        return "it reads no sizes" if program.symbols else ""

    def emit(self, program, sources, options):
        artifact = FX.emit(program, sources, options)

        def call(args):
            CALLS.append(len(args))
            return artifact(args)

        return call

THING = Logged()
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution that registers `THING` of its only module under its own name."""

    def add(name: str, text: str) -> None:
        folder = tmp_path / name
        metadata = folder / f"{name}-1.2.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[coilwork.wrappers]\n{name} = {name}_module:THING\n")
        (folder / f"{name}_module.py").write_text(text)
        monkeypatch.syspath_prepend(folder)

    return add


def test_ours_are_wrappers_of_their_names_and_say_so_in_their_packages() -> None:
    for name in WRAPPERS.own:
        wrapper = WRAPPERS.find(name)
        assert isinstance(wrapper, Wrapper) and wrapper.name == name
    registered = ""
    for project in Path(__file__).parents[2].glob("*/pyproject.toml"):
        registered += project.read_text().partition('[project.entry-points."coilwork.wrappers"]')[2]
    for name, place in WRAPPERS.own.items():
        assert f'{name} = "{place}"' in registered


def test_another_packages_wrapper_is_chosen_by_its_name(
    install: Install, strictly: Compile, leniently: Compile
) -> None:
    install("logged", LOGGED)
    assert [entry.origin for entry in WRAPPERS.list() if entry.name == "logged"] == ["logged 1.2"]
    assert "logged" in next(option.values for option in list_options() if option.name == "wrapper")
    x = torch.randn(4)
    torch.testing.assert_close(strictly(lambda x: x.sin() + 1, wrapper="logged")(x), x.sin() + 1)
    assert importlib.import_module("logged_module").CALLS == [1]

    grown = torch.randn(3, 4)
    torch._dynamo.mark_dynamic(grown, 0)
    with pytest.warns(CoilworkFallbackWarning, match=r"(?s)instead of wrapper='logged'.*it reads no sizes"):
        leniently(lambda x: x.sin() + 1, wrapper="logged")(grown)
    with pytest.warns(IgnoredOptionWarning, match="executor='native' has no effect"):
        coilwork.compile(torch.sin, wrapper="logged", executor="native")


def test_a_name_that_nobody_registers_lists_those_that_are(install: Install) -> None:
    install("logged", LOGGED)
    for name, hint in (("loged", "did you mean 'logged'"), ("strange", "one of")):
        with pytest.raises(OptionError, match=hint) as caught:
            coilwork.compile(torch.sin, wrapper=name)
        assert all(f"'{known}'" in str(caught.value) for known in (*WRAPPERS.own, "logged"))


@pytest.mark.parametrize(("text", "reason"), [("THING = 1", "is no wrapper"), ("1 / 0", "ZeroDivision")])
def test_a_package_that_registers_no_wrapper_is_named(install: Install, text: str, reason: str) -> None:
    name = f"broken_{len(text)}"
    install(name, text)
    with pytest.raises(RegistrationError, match=reason) as caught:
        WRAPPERS.find(name)
    assert f"uninstall {name} 1.2" in str(caught.value)


@pytest.mark.parametrize("name", [name for name in WRAPPERS.own if name != "fx"])
def test_ours_keep_the_contract_of_wrappers(name: str) -> None:
    """FX is tried in its own package, with kernels that are interpreted."""
    results = check_wrapper(WRAPPERS.find(name), codegen=CppCodegen(), target=target("x86-64-avx2"))
    assert failures(results) == ""
    refused = {result.case for result in results if result.status == "refused"}
    assert refused == ({"numbers that data decides"} if name == "cpp" else set())


@pytest.mark.parametrize("name", ["python", "native"])
def test_a_saved_program_is_loaded_by_the_runtime(name: str, tmp_path: Path) -> None:
    text = """program @p {
      input %x: f32[3]
      constant "w" %w: f32[3]
      extern "aten.add.Tensor" (%x, %w) defines (%y: f32[3])
      return (%y)
    }"""
    options = WrapOptions(constants={"w": torch.arange(3.0)})
    WRAPPERS.find(name).emit(parse_program(text), {}, options).save(tmp_path / "saved")
    (result,) = load_artifact(tmp_path / "saved" / "p.coilwork")(torch.ones(3))
    assert result.tolist() == [1.0, 2.0, 3.0]


def test_native_is_the_executors_whatever_else_is_asked_for() -> None:
    options = CompileOptions(wrapper="native", executor="auto")
    assert options.makes_module and options.runs_natively
    assert make_executor_options(options).executor == "native"
    assert not CompileOptions(executor="python").runs_natively and CompileOptions().runs_natively
    assert not CompileOptions(wrapper="fx").makes_module
    with pytest.warns(IgnoredOptionWarning, match="executor='python' has no effect"):
        coilwork.compile(torch.sin, wrapper="native", executor="python")
