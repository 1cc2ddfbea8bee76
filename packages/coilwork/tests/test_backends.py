"""Which back end serves a device and a target, third parties' included."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coilwork import registries
from coilwork.caches import graph_key
from coilwork.compile_options import CompileOptions
from coilwork.errors import CompileError
from coilwork.registries import BACKENDS, backend_of_device, codegen_for
from coilwork.targets import target_of_device
from coilwork_cache import GraphCache, NullStore, compiler_identity
from coilwork_ir import registration
from coilwork_ir.capabilities import LEAST, Capabilities
from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, has_trait, traits_of
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.registration import RegistrationError
from coilwork_ir.target import TARGETS, Target
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
    for cached in (registration._list, compiler_identity, traits_of):
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
def test_ours(target: str, name: str) -> None:
    assert codegen_for(TARGETS[target]).name == name


def test_ours_are_what_the_metadata_registers() -> None:
    path = Path(registries.__file__).parents[3] / "pyproject.toml"
    if not path.exists():
        path = Path(__file__).parents[1] / "pyproject.toml"
    assert tomllib.loads(path.read_text())["project"]["entry-points"][BACKENDS.group] == BACKENDS.own


def test_a_target_nobody_serves() -> None:
    with pytest.raises(CompileError, match="no code generator supports target npu_1") as caught:
        codegen_for(STRANGE)
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
        backend_of_device(device)


@pytest.mark.usefixtures("installed")
def test_another_packages_back_end_is_asked_like_ours() -> None:
    assert codegen_for(STRANGE).name == "strange"
    assert backend_of_device("npu:1") is BACKEND
    assert target_of_device("npu:1", CompileOptions()).arch == "npu:1"
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
        return graph_key(GraphCache(NullStore()), "graph", "cpu", CompileOptions())

    here = key()
    installed.write_text("")
    read_again()
    assert key() != here


def test_what_is_no_back_end_says_so_and_who_brings_it(installed: Path) -> None:
    installed.write_text(f"[{BACKENDS.group}]\nstrange = {__name__}:NO_BACKEND\n")
    with pytest.raises(RegistrationError, match="is no back end") as caught:
        codegen_for(STRANGE)
    assert "it has no codegen, compiler" in str(caught.value)
    assert "uninstall npu 2.0" in str(caught.value)
    # ours are found before it is looked at
    assert codegen_for(TARGETS["sm_90"]).name == "triton"


@pytest.mark.parametrize(
    ("target", "needed", "spared"),
    [("sm_90", "coilwork_triton", "coilwork_cpp"), ("x86-64-avx2", "coilwork_cpp", "coilwork_triton")],
)
def test_only_the_generator_that_is_needed_is_imported(target: str, needed: str, spared: str) -> None:
    code = f"""
import sys
import coilwork.backend
from coilwork.registries import codegen_for
from coilwork.caches import COMPONENTS
from coilwork_cache import compiler_identity
from coilwork_ir.target import TARGETS
compiler_identity(COMPONENTS)
assert not {{"coilwork_cpp", "coilwork_triton", "coilwork_cpp_wrapper"}} & set(sys.modules)
codegen_for(TARGETS["{target}"])
assert "{needed}" in sys.modules and "{spared}" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
