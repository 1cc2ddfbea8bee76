"""Back ends and wrappers are found by name, ours and other packages'."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import coilwork
from coilwork import registries
from coilwork.caches import list_key_parts
from coilwork.compile_options import CompileOptions, list_options
from coilwork.errors import CoilworkFallbackWarning, CompileError, IgnoredOptionWarning, OptionError
from coilwork.registries import BACKENDS, WRAPPERS, find_codegen, find_device_backend
from coilwork.stage_settings import make_executor_options
from coilwork.targets import find_target
from coilwork_aot import load, save_program
from coilwork_cache import GraphCache, NullStore, compiler_identity
from coilwork_cpp import CppCodegen
from coilwork_ir import registration
from coilwork_ir.conformance import check_wrapper, format_failures
from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, get_traits, has_trait
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.program.text import parse_program
from coilwork_ir.registration import RegistrationError
from coilwork_ir.target import LEAST, TARGETS, Capabilities, Target, get_target
from coilwork_ir.wrapper import WrapOptions, Wrapper
from coilwork_runtime import DeviceError

STRANGE = replace(TARGETS["sm_90"], name="npu_1", kind="npu", arch="1")


class StrangeCodegen:
    """A third party's generator."""

    name = "strange"

    def supports(self, target: Target) -> bool:
        return target.kind == "npu"

    def capabilities(self, target: Target) -> Capabilities:
        return LEAST

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        return KernelSource(name=kernel.name, language="npu", text="", entry="", args=())


class StrangeBackend:
    """A third party's back end."""

    name = "strange"
    device_types = ("npu",)
    kinds = ("npu",)
    languages = ("npu",)
    traits = frozenset({"processor"})

    def refuses(self) -> str:
        return "there is no such device"

    def devices(self) -> tuple[str, ...]:
        return ()

    def describe(self, device: str) -> Target:
        return replace(STRANGE, arch=device)

    def targets(self) -> Mapping[str, Target]:
        return {"npu_1": STRANGE}

    def codegen(self, target: Target) -> StrangeCodegen:
        return StrangeCodegen()

    def compiler(self, store: object) -> None:
        return None

    def device(self, store: object) -> None:
        return None


BACKEND = StrangeBackend()
NO_BACKEND = 3


def read_again() -> None:
    """What is installed is read again."""
    for cached in (registration._list, compiler_identity, get_traits):
        cached.cache_clear()


@pytest.fixture
def forget() -> Iterator[None]:
    read_again()
    yield
    read_again()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forget: None) -> Path:
    """The metadata of a distribution that registers `BACKEND`."""
    folder = tmp_path / "npu-2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: npu\nVersion: 2.0\n")
    (folder / "entry_points.txt").write_text(f"[{BACKENDS.group}]\nstrange = {__name__}:BACKEND\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder / "entry_points.txt"


@pytest.mark.parametrize(
    ("target", "name"),
    [("x86-64-avx512", "cpp"), ("aarch64-neon", "cpp"), ("sm_90", "triton"), ("gfx942", "triton")],
)
def test_each_target_has_our_generator(target: str, name: str) -> None:
    assert find_codegen(TARGETS[target]).name == name


def test_ours_are_what_the_metadata_registers() -> None:
    path = Path(registries.__file__).parents[3] / "pyproject.toml"
    if not path.exists():
        path = Path(__file__).parents[1] / "pyproject.toml"
    assert tomllib.loads(path.read_text())["project"]["entry-points"][BACKENDS.group] == BACKENDS.own


def test_a_target_nobody_serves() -> None:
    with pytest.raises(CompileError, match="no code generator supports target npu_1") as caught:
        find_codegen(STRANGE)
    assert caught.value.code == "no-codegen"
    assert BACKENDS.group in str(caught.value)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("meta", "torch.compiler.disable"),
        ("xpu:0", "serve cpu, cuda"),
        ("abacus", "eager with torch.compiler"),
    ],
)
def test_devices_nobody_serves_say_what_helps(device: str, words: str) -> None:
    with pytest.raises(DeviceError, match=words):
        find_device_backend(device)


@pytest.mark.usefixtures("installed")
def test_another_packages_back_end_is_asked_like_ours() -> None:
    assert find_codegen(STRANGE).name == "strange"
    assert find_device_backend("npu:1") is BACKEND
    assert find_target("npu:1", CompileOptions()).arch == "npu:1"
    assert BACKENDS.list()[-1].origin == "npu 2.0"


@pytest.mark.usefixtures("installed")
def test_a_back_end_says_what_its_devices_are_like() -> None:
    assert has_trait("npu:1", PROCESSOR)
    assert not has_trait("npu", ATEN_CPU)
    assert not has_trait("abacus:0", PROCESSOR)
    assert has_trait("cpu", ATEN_CPU)
    assert not has_trait("cuda:1", ATEN_CPU)
    assert not has_trait("meta", ATEN_CPU)


def test_installing_a_back_end_is_another_compiler_to_caches(installed: Path) -> None:
    def key() -> str:
        return GraphCache(NullStore()).key(*list_key_parts("graph", "cpu", CompileOptions()).values())

    here = key()
    installed.write_text("")
    read_again()
    assert key() != here


def test_what_is_no_back_end_says_so_and_who_brings_it(installed: Path) -> None:
    installed.write_text(f"[{BACKENDS.group}]\nstrange = {__name__}:NO_BACKEND\n")
    with pytest.raises(RegistrationError, match="is no back end") as caught:
        find_codegen(STRANGE)
    assert "it has no codegen, compiler" in str(caught.value)
    assert "uninstall npu 2.0" in str(caught.value)
    # ours are found before it is looked at
    assert find_codegen(TARGETS["sm_90"]).name == "triton"


@pytest.mark.parametrize(
    ("target", "needed", "spared"),
    [("sm_90", "coilwork_triton", "coilwork_cpp"), ("x86-64-avx2", "coilwork_cpp", "coilwork_triton")],
)
def test_only_the_generator_that_is_needed_is_imported(target: str, needed: str, spared: str) -> None:
    code = f"""
import sys
import coilwork.backend
from coilwork.registries import find_codegen
from coilwork_tools.graph_key import COMPONENTS
from coilwork_cache import compiler_identity
from coilwork_ir.target import TARGETS
compiler_identity(COMPONENTS)
assert not {{"coilwork_cpp", "coilwork_triton", "coilwork_cpp_wrapper"}} & set(sys.modules)
find_codegen(TARGETS["{target}"])
assert "{needed}" in sys.modules and "{spared}" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


Install = Callable[[str, str], None]
Compile = Callable[..., Callable[..., Any]]

LOGGED = """
from coilwork_wrapper.fx_wrapper import FX
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


@pytest.mark.parametrize("name", [name for name in WRAPPERS.own if name not in ("fx", "package")])
def test_ours_keep_the_contract_of_wrappers(name: str) -> None:
    """FX is tried in its own package, with interpreted kernels. Packages run after they are loaded."""
    results = check_wrapper(WRAPPERS.find(name), codegen=CppCodegen(), target=get_target("x86-64-avx2"))
    assert format_failures(results) == ""
    assert not [result.case for result in results if result.status == "refused"]


@pytest.mark.parametrize("name", ["python", "native"])
def test_of_a_saved_program_a_package_is_made(name: str, tmp_path: Path) -> None:
    text = """program @p {
      input %x: f32[3]
      constant "w" %w: f32[3]
      check %x
      extern "aten.add.Tensor" (%x, %w) defines (%y: f32[3])
      return (%y)
    }"""
    options = WrapOptions(constants={"w": torch.arange(3.0)})
    WRAPPERS.find(name).emit(parse_program(text), {}, options).save(tmp_path / "saved")
    digest = save_program(tmp_path / "saved", tmp_path / "p.cw")
    (result,) = load(tmp_path / "p.cw", digest=digest)(torch.ones(3))
    assert result.tolist() == [1.0, 2.0, 3.0]


def test_native_is_the_executors_whatever_else_is_asked_for() -> None:
    options = CompileOptions(wrapper="native", executor="auto")
    assert options.keeps_graphs and options.runs_natively
    assert make_executor_options(options).executor == "native"
    assert not CompileOptions(executor="python").runs_natively and CompileOptions().runs_natively
    assert all(CompileOptions(wrapper=wrapper).keeps_graphs for wrapper in ("fx", "cpp"))
    with pytest.warns(IgnoredOptionWarning, match="executor='python' has no effect"):
        coilwork.compile(torch.sin, wrapper="native", executor="python")
