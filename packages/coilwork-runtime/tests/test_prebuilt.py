"""Extensions that a wheel brings: loaded where they are for this Python and these sources,
otherwise built.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from coilwork_cache import MemoryStore
from coilwork_runtime import extensions
from coilwork_runtime.extensions import PACKAGE, load_extension, measure_executor
from coilwork_runtime.native_build import (
    EXECUTOR,
    LAUNCHER,
    PREBUILT,
    compile_extension,
    get_python_tag,
    list_extension_sources,
    list_source_files,
    make_library_name,
    read_sources,
)

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

NAME = "coilwork_prebuilt_sample"
SOURCE = """#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "coilwork_prebuilt_sample", nullptr, -1, methods};
PyMODINIT_FUNC PyInit_coilwork_prebuilt_sample() { return PyModule_Create(&module); }
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    sys.modules.pop(NAME, None)


@pytest.fixture
def sources(tmp_path: Path) -> Mapping[str, Path]:
    Path(tmp_path, "module.cpp").write_text(SOURCE)
    return list_source_files(tmp_path)


def put_library(tmp_path: Path, sources: Mapping[str, Path], data: bytes) -> Path:
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    Path(folder, make_library_name(NAME, read_sources(sources))).write_bytes(data)
    return folder


def compiled(sources: Mapping[str, Path]) -> bytes:
    data = compile_extension("g++", read_sources(sources))
    assert data is not None
    return data


def test_it_is_loaded_without_a_compiler(
    tmp_path: Path, sources: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put_library(tmp_path, sources, compiled(sources))
    monkeypatch.setattr(extensions, "_build", lambda texts: pytest.fail("it is there"))
    store = MemoryStore()
    module = load_extension(NAME, sources, store, prebuilt=folder)
    assert module is not None and module.answer() == 42 and Path(module.__file__).parent == folder
    assert not list(store.entries())


def test_one_that_does_not_load_is_built(tmp_path: Path, sources: Mapping[str, Path]) -> None:
    folder = put_library(tmp_path, sources, b"for another machine")
    module = load_extension(NAME, sources, None, prebuilt=folder)
    assert module is not None and module.answer() == 42


def test_one_of_other_sources_is_not_loaded(tmp_path: Path, sources: Mapping[str, Path]) -> None:
    folder = put_library(tmp_path, sources, compiled(sources))
    sources["module.cpp"].write_text(SOURCE.replace("42", "43"))
    module = load_extension(NAME, sources, None, prebuilt=folder)
    assert module is not None and module.answer() == 43


def test_names_tell_pythons_and_sources_apart() -> None:
    assert get_python_tag() in make_library_name("a", (("x.cpp", "1"),))
    names = {make_library_name("a", (("x.cpp", text),)) for text in ("1", "2")}
    assert len(names) == 2


def test_what_this_package_brings_is_of_its_sources() -> None:
    """Sources may have been edited since in a checkout, which has no folder of built ones."""
    folder = PACKAGE / PREBUILT
    brought = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    ours = {name for name in brought if get_python_tag() in name}
    known = {
        make_library_name(name, read_sources(list_extension_sources(PACKAGE, name)))
        for name in (EXECUTOR, LAUNCHER)
    }
    assert ours in (set(), known)


def test_each_extension_of_the_package_is_of_its_own_files() -> None:
    sources = {name: list_extension_sources(PACKAGE, name) for name in (EXECUTOR, LAUNCHER)}
    assert all(path.is_file() for files in sources.values() for path in files.values())
    assert set(sources[LAUNCHER]) == {"launcher.cpp", "interfaces/driver.hpp"}
    with pytest.raises(ValueError, match="no extension module of this package"):
        list_extension_sources(PACKAGE, "other")


def test_the_executors_build_and_size_are_measured() -> None:
    facts = measure_executor()
    assert facts.build_s is not None and facts.load_s is not None and facts.size_bytes is not None
    assert 0 < facts.load_s < facts.build_s and 10_000 < facts.size_bytes < 4_000_000
