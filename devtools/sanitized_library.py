"""Runs packages in C++ under the address and the leak sanitizer.

    python -m devtools.sanitized_library open a model.cw input x x.bin 5,16 repeat 10000 a forward x ';'

The words are those of `packages/coilwork/tests/cpp_model_driver.cpp`. The library, the driver and nothing of
torch's are built with sanitizers. The exit code is the driver's: 0 without a finding.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch

import coilwork_runtime
from coilwork_aot.cpp_library import INCLUDE, LIBRARY, build_library
from coilwork_runtime import native_build
from coilwork_runtime.cpp.toolchain import find_toolchain

DRIVER: Final = Path(__file__).parents[1] / "packages" / "coilwork" / "tests" / "cpp_model_driver.cpp"
FLAGS: Final = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g1")
# What torch allocates once in its own libraries and never frees.
SUPPRESSED: Final = "leak:libtorch\nleak:libc10\nleak:libgomp\n"


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
        (folder / "suppressed").write_text(SUPPRESSED)
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
        os.environ["ASAN_OPTIONS"] = "detect_leaks=1"
        os.environ["LSAN_OPTIONS"] = f"suppressions={folder / 'suppressed'}"
        torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        done = native_build.run_tool([str(folder / "driver"), str(torch_library), *words])
        print(done.output, done.complaint, sep="", end="")
        return done.code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
