"""A pytest plugin: the native executor is built with the address sanitizer before any test asks for it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from coilwork_runtime.cpp.toolchain import find_toolchain
from coilwork_runtime.executor.native_program import FOLDER
from coilwork_runtime.extensions import import_from
from coilwork_runtime.native_build import EXECUTOR, compile_extension, list_source_files, read_sources

FLAGS = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1")


def pytest_configure(config: pytest.Config) -> None:
    """Build and load it. Its file stays until the process ends, which names functions by it."""
    library = compile_extension(find_toolchain().words, read_sources(list_source_files(FOLDER)), FLAGS)
    if library is None:
        pytest.exit("the native executor cannot be built with the address sanitizer here", returncode=3)
    folder = tempfile.TemporaryDirectory(prefix="coilwork-sanitized-")
    config.add_cleanup(folder.cleanup)
    path = Path(folder.name, f"{EXECUTOR}.so")
    path.write_bytes(library)
    sys.modules[EXECUTOR] = import_from(EXECUTOR, path)


def pytest_report_header() -> str:
    """So that a log says what ran."""
    return f"native executor: {sys.modules[EXECUTOR].__file__}, {' '.join(FLAGS)}"
