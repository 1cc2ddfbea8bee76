"""Which generator serves a target, third parties' included."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint

import pytest

from coilwork import codegens
from coilwork.codegens import ENTRY_POINT_GROUP, codegen_for
from coilwork.compile_options import CompileOptions
from coilwork.errors import CompileError
from coilwork_ir.capabilities import LEAST, Capabilities
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.target import TARGETS, Target

STRANGE = replace(TARGETS["sm_90"], name="npu_1", kind="npu", arch="1")


class StrangeCodegen:
    """A third party's generator."""

    name = "strange"

    def supports(self, target: Target) -> bool:
        return target.kind == "npu"

    def capabilities(self, target: Target) -> Capabilities:
        return LEAST

    def emit(self, kernel: Kernel, target: Target, options: Mapping[str, object]) -> KernelSource:
        return KernelSource(name=kernel.name, language="cpp", text="", entry="", args=())


@pytest.mark.parametrize(
    ("target", "name"),
    [("x86-64-avx512", "cpp"), ("aarch64-neon", "cpp"), ("sm_90", "triton"), ("gfx942", "triton")],
)
def test_ours(target: str, name: str) -> None:
    assert codegen_for(TARGETS[target], CompileOptions()).name == name


def test_a_target_nobody_serves() -> None:
    with pytest.raises(CompileError, match="no code generator supports target npu_1") as caught:
        codegen_for(STRANGE, CompileOptions())
    assert caught.value.code == "no-codegen"
    assert ENTRY_POINT_GROUP in str(caught.value)


def test_another_packages_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(name="strange", value=f"{__name__}:StrangeCodegen", group=ENTRY_POINT_GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: StrangeCodegen)
    monkeypatch.setattr(
        codegens, "entry_points", lambda *, group: [point] if group == ENTRY_POINT_GROUP else []
    )
    assert codegen_for(STRANGE, CompileOptions()).name == "strange"


@pytest.mark.parametrize(
    ("target", "needed", "spared"),
    [("sm_90", "coilwork_triton", "coilwork_cpp"), ("x86-64-avx2", "coilwork_cpp", "coilwork_triton")],
)
def test_only_the_generator_that_is_needed_is_imported(target: str, needed: str, spared: str) -> None:
    code = f"""
import sys
import coilwork.backend
from coilwork.codegens import codegen_for
from coilwork.compile_options import CompileOptions
from coilwork.caching.identity import compiler_identity
from coilwork_ir.target import TARGETS
compiler_identity()
assert not {{"coilwork_cpp", "coilwork_triton", "coilwork_cpp_wrapper"}} & set(sys.modules)
codegen_for(TARGETS["{target}"], CompileOptions())
assert "{needed}" in sys.modules and "{spared}" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
