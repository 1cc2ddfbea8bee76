"""The C functions that emitted text declares by hand, against torch's own headers and library."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch

from coilwork_cpp_wrapper.calls import make_shim_prototype
from coilwork_cpp_wrapper.module import read_preamble
from coilwork_runtime.c_shim import C_FUNCTIONS, find_schema
from coilwork_runtime.cpp.toolchain import find_toolchain

HEADERS = Path(torch.__file__).parent / "include"
LIBRARY = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"


def prototypes() -> list[str]:
    """One declaration per entry of the table."""
    found: list[str] = []
    for target, shim in C_FUNCTIONS.items():
        schema = find_schema(target)
        assert schema is not None, target
        found.append(make_shim_prototype(schema, shim))
    return found


def test_every_function_is_exported() -> None:
    library = ctypes.CDLL(str(LIBRARY))
    declared = re.findall(r"\b((?:aoti_)?torch_\w+)\(", read_preamble("shim.hpp"))
    optional = {"torch_exception_get_what_without_backtrace"}  # since 2.13, declared weak
    names = {shim.symbol for shim in C_FUNCTIONS.values()} | set(declared) - optional
    assert len(names) > 70
    assert [name for name in sorted(names) if not hasattr(library, name)] == []


def compile_with_headers(declarations: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile our declarations after torch's. C linkage makes another type an error."""
    source = folder / "both.cpp"
    source.write_text(
        "#include <torch/csrc/inductor/aoti_torch/c/shim.h>\n"
        "#include <torch/csrc/stable/c/shim.h>\n"
        "#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>\n"
        "#include <torch/csrc/inductor/aoti_torch/generated/c_shim_aten.h>\n" + declarations,
        encoding="utf-8",
    )
    command = [*find_toolchain().words, "-std=c++20", "-fsyntax-only", f"-I{HEADERS}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_declarations_agree_with_the_headers_of_torch(tmp_path: Path) -> None:
    if not (HEADERS / "torch" / "csrc" / "inductor" / "aoti_torch" / "c" / "shim.h").exists():
        pytest.skip("this torch ships no headers")
    declarations = read_preamble("shim.hpp") + 'extern "C" {\n' + "\n".join(prototypes()) + "\n}\n"
    done = compile_with_headers(declarations, tmp_path)
    assert done.returncode == 0, done.stderr
    wrong = declarations.replace("aoti_torch_cpu_mm_out(AtenTensorHandle,", "aoti_torch_cpu_mm_out(int,")
    assert compile_with_headers(wrong, tmp_path).returncode != 0
