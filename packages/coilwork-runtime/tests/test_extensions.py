"""Extension modules are built once, kept, and built again where what was kept does not load."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from coilwork_cache import KernelCache, MemoryStore
from coilwork_runtime import extensions
from coilwork_runtime.executor.native_program import FOLDER
from coilwork_runtime.extensions import load_extension
from coilwork_runtime.native_build import list_source_files

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

MODULE = """#include "room/answer.hpp"
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(the_answer()); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_NAME() { return PyModule_Create(&module); }
"""


def sources(folder: Path, name: str) -> Mapping[str, Path]:
    texts = {
        "room/answer.hpp": "#include <Python.h>\nint the_answer();\n",
        "room/answer.cpp": '#include "room/answer.hpp"\nint the_answer() { return 42; }\n',
        "module.cpp": MODULE.replace("NAME", name),
    }
    for file, text in texts.items():
        Path(folder, file).parent.mkdir(exist_ok=True)
        Path(folder, file).write_text(text)
    return list_source_files(folder)


def test_built_kept_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    module = load_extension("coilwork_sample_a", sources(tmp_path, "coilwork_sample_a"), store)
    assert module is not None and module.answer() == 42
    assert load_extension("coilwork_sample_a", {}, store) is module
    monkeypatch.delitem(sys.modules, "coilwork_sample_a")
    monkeypatch.setattr(extensions, "_build", lambda texts: pytest.fail("it was kept"))
    again = load_extension("coilwork_sample_a", sources(tmp_path, "coilwork_sample_a"), store)
    assert again is not None and again.answer() == 42


def test_what_does_not_load_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    files = sources(tmp_path, "coilwork_sample_b")
    load_extension("coilwork_sample_b", files, store)
    (entry,) = store.entries()
    KernelCache(store).put(entry.key, b"no library")
    monkeypatch.delitem(sys.modules, "coilwork_sample_b")
    again = load_extension("coilwork_sample_b", files, store)
    assert again is not None and again.answer() == 42
    assert KernelCache(store).get(entry.key) != b"no library"


def test_a_text_that_does_not_compile_is_none(tmp_path: Path) -> None:
    Path(tmp_path, "module.cpp").write_text("this is no C++")
    assert load_extension("coilwork_sample_c", list_source_files(tmp_path), None) is None


def test_the_executor_declares_what_torch_declares(tmp_path: Path) -> None:
    """Its own declarations compile beside torch's headers: a function with other parameters would be an
    error.
    """
    include = Path(torch.__file__).parent / "include"
    text = "\n".join(
        (
            "#define USE_CUDA",
            "#include <torch/csrc/stable/c/shim.h>",
            "#include <type_traits>",
            '#include "interface.hpp"',
            "#define SAME(name, result, parameters) \\",
            "  static_assert(std::is_same<decltype(&name), result(*) parameters>::value, #name);",
            "COILWORK_TORCH_FUNCTIONS(SAME)",
            "COILWORK_CUDA_FUNCTIONS(SAME)",
        )
    )
    ours = Path(FOLDER, "interfaces/torch.hpp").read_text()
    start = ours.index('extern "C" {')
    # the types are torch's; the table is ours
    Path(tmp_path, "interface.hpp").write_text(
        ours[:start] + ours[ours.index("// name, result, parameters") :]
    )
    Path(tmp_path, "check.cpp").write_text(text)
    python = sysconfig.get_paths()["include"]
    checked = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-w", f"-I{include}", f"-I{python}", "check.cpp"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
