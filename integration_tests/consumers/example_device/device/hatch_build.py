"""Compiles `queued.cpp` against the installed torch, into the wheel."""

from __future__ import annotations

import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "libqueued.so"


class CompiledLibrary(BuildHookInterface[Any]):
    """Adds the library to the wheel, and says what system it is for."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is put together."""
        self._folder = tempfile.TemporaryDirectory()
        library = Path(self._folder.name, NAME)
        package = Path(self.root, "src", "queued_device")
        installed = Path(torch.__file__).parent
        command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fPIC", "-shared", "-pthread"]
        command += [
            f"-I{installed / 'include'}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        ]
        command += [str(package / "queued.cpp"), "-o", str(library)]
        command += [f"-L{installed / 'lib'}", "-ltorch_cpu", "-lc10"]
        subprocess.run(command, check=True)
        build_data["force_include"][str(library)] = f"queued_device/{NAME}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
