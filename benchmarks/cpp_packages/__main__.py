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
from benchmarks.cpp_packages.export import MODELS, list_sizes
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
    libraries = ["torch_cpu", "torch", "c10"]
    if (TORCH / "lib" / "libtorch_cuda.so").exists():
        # nothing in the program names them
        libraries = [*libraries, "torch_cuda", "c10_cuda"]
    words += [f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-Wl,--no-as-needed"]
    return _compile("aotinductor", folder, [*words, *(f"-l{name}" for name in libraries), "-ldl"])


def _compile(name: str, folder: Path, words: list[str]) -> Path:
    source, made = HERE / f"{name}.cpp", folder / name
    # the program only loads and calls: torch's headers take long enough to compile as it is
    command = ["g++", "-std=c++20", "-O0", str(source), "-o", str(made), *words, "-pthread"]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    return made


def measure(command: list[str]) -> tuple[float, ...]:
    """Seconds to load and of the first call, and microseconds of a steady one: of the host, and until its
    work is done. Medians of processes.
    """
    rows = []
    for _ in range(ROUNDS):
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
        )
        rows.append(tuple(map(float, done.stdout.split()[-4:])))
    return tuple(sorted(column)[ROUNDS // 2] for column in zip(*rows, strict=True))


def main() -> None:
    """Export, build, measure, and print a line for each side."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=sorted(MODELS), default="blocks")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--target", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coilwork-cpp-packages-") as name:
        folder = Path(name)
        sizes = ",".join(map(str, list_sizes(options.model, options.width, options.rows)))
        given = [options.device, MODELS[options.model][1], sizes]
        programs = {"coilwork": build_ours(folder), "aotinductor": build_aotinductor(folder)}
        for side, program in programs.items():
            path = folder / ("model.cw" if side == "coilwork" else "model.pt2")
            shape = [str(options.layers), str(options.width), str(options.rows)]
            target = options.target if side == "coilwork" else ""
            words = [side, str(path), options.model, *shape, options.device, target]
            command = [sys.executable, "-m", "benchmarks.cpp_packages.export", *words]
            subprocess.run(command, check=True, timeout=LIMIT_S)
            torch_words = [str(TORCH / "lib" / "libtorch_cpu.so")] if side == "coilwork" else []
            load, first, host, whole = measure([str(program), str(path), *given, *torch_words])
            print(
                f"{side}: load {load:.4f} s, first call {first:.4f} s, steady call {host:.1f} us of the "
                f"host, {whole:.1f} us in all, {path.stat().st_size:,} bytes",
                flush=True,
            )


if __name__ == "__main__":
    main()
