"""`python -m benchmarks.cpp_packages`: see the package's docstring."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch

import coilwork_runtime
from coilwork_aot.cpp_library import INCLUDE, LIBRARY, build_library
from coilwork_runtime import native_build

HERE: Final = Path(__file__).parent
TORCH: Final = Path(torch.__file__).parent
LIMIT_S: Final = 900.0
ROUNDS: Final = 5


def build_ours(folder: Path) -> Path:
    """Compile the library and the program that calls it."""
    library = folder / LIBRARY.name
    data = build_library(native_build, Path(coilwork_runtime.__file__).parent, "g++", ("-O2",))
    if data is None:
        raise SystemExit("the library does not compile")
    library.write_bytes(data)
    return _compile("ours", folder, [f"-I{INCLUDE}", str(library), f"-Wl,-rpath,{folder}"])


def build_aotinductor(folder: Path) -> Path:
    """Compile the program that calls AOTInductor's loader."""
    include = TORCH / "include"
    words = [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"]
    words += [f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-ltorch_cpu", "-ltorch", "-lc10"]
    return _compile("aotinductor", folder, words)


def _compile(name: str, folder: Path, words: list[str]) -> Path:
    source, made = HERE / f"{name}.cpp", folder / name
    # the program only loads and calls: torch's headers take long enough to compile as it is
    command = ["g++", "-std=c++20", "-O0", str(source), "-o", str(made), *words, "-pthread"]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    return made


def measure(command: list[str]) -> tuple[float, float, float]:
    """Seconds to load and of the first call, and microseconds of a steady one: medians of processes."""
    rows = []
    for _ in range(ROUNDS):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True, timeout=LIMIT_S
        )
        rows.append(tuple(map(float, done.stdout.split()[-3:])))
    load, first, steady = (sorted(column)[ROUNDS // 2] for column in zip(*rows, strict=True))
    return load, first, steady


def main() -> None:
    """Export, build, measure, and print a line for each side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coilwork-cpp-packages-") as name:
        folder = Path(name)
        shape = [str(options.rows), str(options.width)]
        programs = {"coilwork": build_ours(folder), "aotinductor": build_aotinductor(folder)}
        for side, program in programs.items():
            path = folder / ("model.cw" if side == "coilwork" else "model.pt2")
            sizes = [str(options.layers), str(options.width), str(options.rows)]
            words = [sys.executable, "-m", "benchmarks.cpp_packages.export", side, str(path), *sizes]
            subprocess.run(words, check=True, timeout=LIMIT_S)
            torch_words = [str(TORCH / "lib" / "libtorch_cpu.so")] if side == "coilwork" else []
            load, first, steady = measure([str(program), str(path), *torch_words, *shape])
            print(
                f"{side}: load {load:.4f} s, first call {first:.4f} s, steady call {steady:.1f} us, "
                f"{path.stat().st_size:,} bytes",
                flush=True,
            )


if __name__ == "__main__":
    main()
