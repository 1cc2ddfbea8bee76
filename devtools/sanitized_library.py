"""Runs packages in C++ under the address and the leak sanitizer.

    python devtools/sanitized_library.py open a model.cw input x x.bin 5,16 repeat 10000 a forward x ';'

The words are those of `packages/coilwork/tests/cpp_model_driver.cpp`. The library, the driver and nothing of
torch's are built with sanitizers. The exit code is 0 without a finding.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch
from sanitize import ASAN_OPTIONS, leaks

import coilwork_runtime
from coilwork_aot.cpp_library import INCLUDE, LIBRARY, build_library
from coilwork_runtime import native_build
from coilwork_runtime.cpp.toolchain import find_toolchain

FOUND: Final = 23
"""The exit code of a process in which a sanitizer found something."""
DRIVER: Final = Path(__file__).parents[1] / "packages" / "coilwork" / "tests" / "cpp_model_driver.cpp"
FLAGS: Final = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1")
# Frames of ours: what torch leaves behind by itself is passed over, and what it allocates for us is not.
OURS: Final = ("libcoilwork_model", "driver")


def main(words: list[str]) -> int:
    """Build, and run the driver with `words`."""
    compiler = find_toolchain().words
    with tempfile.TemporaryDirectory(prefix="coilwork-sanitized-") as name:
        folder = Path(name)
        library = build_library(native_build, Path(coilwork_runtime.__file__).parent, compiler, FLAGS)
        if library is None:
            print("the library does not compile with sanitizers here", file=sys.stderr)
            return 3
        (folder / LIBRARY.name).write_bytes(library)
        command = [
            *compiler,
            "-std=c++17",
            "-O1",
            *FLAGS,
            f"-I{INCLUDE}",
            str(DRIVER),
            str(folder / LIBRARY.name),
        ]
        built = native_build.run_tool(
            [*command, f"-Wl,-rpath,{folder}", "-pthread", "-o", str(folder / "driver")]
        )
        if built.code:
            print(built.complaint, file=sys.stderr)
            return 3
        options = ASAN_OPTIONS | {"exitcode": str(FOUND)}
        os.environ["ASAN_OPTIONS"] = ":".join(f"{name}={value}" for name, value in options.items())
        torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        done = native_build.run_tool([str(folder / "driver"), str(torch_library), *words])
        print(done.output, end="")
        found = [one for one in leaks(done.complaint) if any(name in one for name in OURS)]
        print(*found, f"{len(found)} leaks of ours", sep="\n")
        is_leak_alone = done.code == FOUND and "ERROR: AddressSanitizer" not in done.complaint
        if done.code and not is_leak_alone:
            print(done.complaint)
            return done.code
        return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
