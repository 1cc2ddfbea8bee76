"""Building emitted kernels with g++ and calling them with torch tensors."""

from __future__ import annotations

import atexit
import ctypes
import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from coilwork_cpp import CppCodegen
from coilwork_ir.dtypes import DType
from coilwork_ir.index import evaluate
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.target import Target, get_target

Runner = Callable[..., int]

# Tests import the modules beside them; their names are unique in the repository.
sys.path.insert(0, str(Path(__file__).parent))

# How a builder spells the features that a KernelSource names.
FLAGS = {
    "avx2": "-mavx2", "fma": "-mfma", "f16c": "-mf16c", "avx512f": "-mavx512f", "avx512dq": "-mavx512dq",
    "avx512bw": "-mavx512bw", "avx512vl": "-mavx512vl", "avx512_bf16": "-mavx512bf16",
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--random-mappings N` draws more mappings."""
    parser.addoption(
        "--random-mappings", type=int, default=24, help="how many mappings are drawn, built and compared"
    )


def present_target() -> Target:
    """The widest built-in x86-64 target that this machine can run."""
    words = Path("/proc/cpuinfo").read_text().split()
    for name in ("x86-64-avx512", "x86-64-avx2"):
        if set(get_target(name).features) <= set(words):
            return get_target(name)
    return get_target("x86-64-avx2")


@functools.cache
def empty_torch() -> Path:
    """A folder with an empty library of the name that torch's has.

    Kernels are linked against it: reading all symbols of torch's own took three quarters of a build. When a
    kernel is loaded, the name stands for torch's library, which is in the process already.
    """
    folder = tempfile.TemporaryDirectory(prefix="coilwork-cpp-")
    atexit.register(folder.cleanup)
    name = "libtorch_cpu.so"
    library = Path(folder.name) / name
    command = ["g++", "-shared", f"-Wl,-soname,{name}", "-x", "c++", "/dev/null", "-o", str(library)]
    subprocess.run(command, check=True)
    return library.parent


def build(source: KernelSource, folder: Path, optimize: str = "-O3") -> ctypes.CDLL:
    """Compile and load one kernel."""
    number = len(
        list(folder.iterdir())
    )  # a library that is loaded twice under one path is the first one again
    text = folder / f"{source.name}_{number}.cpp"
    text.write_text(source.text)
    library = text.with_suffix(".so")
    arch = [FLAGS[feature] for feature in source.features if feature in FLAGS]
    command = [
        "g++", optimize, "-shared", "-fPIC", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math",
        "-ffp-contract=off", "-fno-delete-null-pointer-checks",
        *(f"-fno-builtin-{name}" for name in ("atan", "atanf", "atanh", "atanhf", "pow", "powf")),
        "-mprefer-vector-width=512" if "avx512f" in source.features else "-mprefer-vector-width=256",
        *arch, "-Wall", "-Wno-unused-variable", "-Wno-unknown-pragmas", str(text), "-o", str(library),
        "-lmvec", "-lm",
        "-Wl,--no-as-needed", f"-L{empty_torch()}", "-ltorch_cpu",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, f"{done.stderr}\n{source.text}"
    return ctypes.CDLL(str(library))


def launcher(source: KernelSource, library: ctypes.CDLL) -> Runner:
    """A function of tensors, then sizes; it provides scratch memory and returns the entry's result."""
    entry = library[source.entry]
    entry.restype = ctypes.c_int64 if source.checks else None

    def call(*values: torch.Tensor | int) -> int:
        given = [v for v in source.args if v.role != "scratch"]
        assert len(values) == len(given)
        sizes = {a.name: v for a, v in zip(given, values, strict=True) if isinstance(v, int)}
        arguments: list[object] = [
            ctypes.c_int64(v) if isinstance(v, int) else ctypes.c_void_p(v.data_ptr()) for v in values
        ]
        scratch = []
        for arg in source.args:
            if arg.role == "scratch":
                assert arg.elements is not None
                count = evaluate(arg.elements, sizes)
                scratch.append(torch.full((count * arg.dtype.itemsize + 64,), 0xA5, dtype=torch.uint8))
        arguments += [ctypes.c_void_p(s.data_ptr()) for s in scratch]
        return int(entry(*arguments) or 0)

    return call


@pytest.fixture
def machine() -> Target:
    """This machine, as a target."""
    return present_target()


@pytest.fixture
def build_source(tmp_path: Path) -> Callable[[KernelSource], Runner]:
    """Build and load a source; equal sources are built once."""
    done: dict[KernelSource, Runner] = {}

    def get(source: KernelSource) -> Runner:
        if source not in done:
            done[source] = launcher(source, build(source, tmp_path))
        return done[source]

    return get


@pytest.fixture
def quick_build(tmp_path: Path) -> Callable[[KernelSource], Runner]:
    """As `build_source`, with less time for optimisation."""
    done: dict[KernelSource, Runner] = {}

    def get(source: KernelSource) -> Runner:
        if source not in done:
            done[source] = launcher(source, build(source, tmp_path, "-O1"))
        return done[source]

    return get


@pytest.fixture
def load_kernel(tmp_path: Path) -> Callable[..., Runner]:
    """Emit, build and load a kernel."""

    def load(kernel: Kernel, **options: object) -> Runner:
        source = CppCodegen().emit(kernel, present_target(), options)
        return launcher(source, build(source, tmp_path))

    return load


def torch_type(dtype: DType) -> torch.dtype:
    """The torch element type."""
    found = getattr(torch, dtype.torch_name)
    assert isinstance(found, torch.dtype)
    return found


@pytest.fixture
def torch_dtype() -> Callable[[DType], torch.dtype]:
    """`torch_type`, for test modules."""
    return torch_type


@pytest.fixture
def threads() -> Callable[[Callable[[], Sequence[torch.Tensor]]], None]:
    """Check that a computation gives the same bits on 1, 2 and 3 threads."""

    def check(compute: Callable[[], Sequence[torch.Tensor]]) -> None:
        before = torch.get_num_threads()
        results = []
        try:
            for count in (1, 2, 3):
                torch.set_num_threads(count)
                results.append([t.clone() for t in compute()])
        finally:
            torch.set_num_threads(before)
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))

    return check
