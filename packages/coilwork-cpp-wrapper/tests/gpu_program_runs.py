"""Runs C++ programs for a GPU on one that is not there (`stub_gpu.py`), in a process of its own.

`python gpu_program_runs.py FOLDER` prints what happened as JSON.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from hand_programs import program_of
from stub_gpu import load_stubs

from coilwork_cpp_wrapper import build_cpp, embed_kernels, emit_cpp, write_sources
from coilwork_runtime.generated import TritonKernel
from coilwork_runtime.launch_descriptor import GpuEntry, Launcher, encode_descriptor, encode_gpu_binding
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.manifest.readable import ReadableVersion
from coilwork_runtime.triton_kernels.compilation import GpuBinary

TEXT = """program @p {
  symbol s0 in [0, inf]
  input %x: f32[s0, 4] @cuda:0
  input %w: f32[4] @cuda:0
  RELU_ADD
  DOUBLE
  bind s0 in [0, inf] size %x 0
  check %x
  check %w aligned
  pool %memory `16*s0` "cuda:0"
  carve %y: f32[s0, 4] @cuda:0 of %memory at `0`
  launch @relu_add (%x, %x, %y) sizes [4*s0] loc("relu" "aten.relu" "model.py":7 "y = x.relu() + x" "")
  launch @double (%y) sizes [4*s0]
  alloc %z: f32[s0, 4] @cuda:0
  launch @relu_add (%y, %x, %z) sizes [4*s0]
  free (%y, %x)
  return (%z)
}"""


def spec(name: str, **fields: Any) -> KernelSpec:
    return TritonKernel(name=name, source="", entry=name, target="sm_90", **fields)


SPECS = {
    "relu_add": spec(
        "relu_add",
        args=("*in:f32:16", "*in:f32", "*out:f32", "size:i64"),
        arg_names=("in0", "in1", "out0", "n0"),
        grid=("(n0 + XBLOCK - 1) // XBLOCK",),
        configs=({"XBLOCK": 64, "VERSION": 1}, {"XBLOCK": 32, "VERSION": 0}),
        versions=(ReadableVersion(guard="n0 % 16"), ReadableVersion()),
    ),
    "double": spec(
        "double",
        args=("*inout:f32", "size:i32", "*scratch:f64=2*n0"),
        arg_names=("io0", "n0", "scratch0"),
        grid=("(n0 + XBLOCK - 1) // XBLOCK",),
        configs=({"XBLOCK": 32},),
    ),
}

NAMES = {"relu_add": "relu_add", "double": "double_it"}


def make_binary(name: str, threads: int) -> GpuBinary:
    return GpuBinary(image=NAMES[name].encode() + b"\0", name=name, shared_bytes=0, threads=threads)


def list_binaries(name: str) -> list[tuple[dict[str, int], GpuBinary]]:
    return [(dict(config), make_binary(name, config["XBLOCK"])) for config in SPECS[name].configs]


def expected(x: torch.Tensor) -> torch.Tensor:
    return (2 * (x.relu() + x)).relu() + x


class Python:
    """Launchers that compute with torch, and settle after their second launch; a kernel may fail."""

    def __init__(self, driver: ctypes.CDLL) -> None:
        self.launches = 0
        self.fails = False
        self._driver = driver

    def launchers(self) -> dict[str, Launcher]:
        return {name: self._launcher(name) for name in SPECS}

    def _launcher(self, name: str) -> Launcher:
        asked: list[int] = []

        def call(*args: Any) -> None:
            self.launches += 1
            if self.fails:
                raise KeyError(f"kernel {name}")
            if name == "double":
                args[0].mul_(2)
            else:
                torch.add(args[0].relu(), args[1], out=args[2])

        def describe() -> bytes | None:
            asked.append(1)
            if len(asked) < 2:
                return None
            bindings = [
                encode_gpu_binding(SPECS[name], config, self._entry(name, binary))
                for config, binary in list_binaries(name)
            ]
            return encode_descriptor(SPECS[name], bindings)

        return Launcher(call=call, descriptor=describe)

    def _entry(self, name: str, binary: GpuBinary) -> GpuEntry:
        module = ctypes.c_void_p()
        assert self._driver.cuModuleLoadData(ctypes.byref(module), binary.image) == 0
        return GpuEntry(
            launch_address=ctypes.cast(self._driver.cuLaunchKernel, ctypes.c_void_p).value or 0,
            set_context_address=ctypes.cast(self._driver.cuCtxSetCurrent, ctypes.c_void_p).value or 0,
            context=0x70,
            handle=module.value or 0,
            device=0,
            threads=binary.threads,
            shared_bytes=0,
            compiler_scratch_bytes=0,
        )


def fault(function: Callable[[], Any]) -> str:
    try:
        function()
    except (RuntimeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder: Path) -> dict[str, Any]:
    driver, cuda = load_stubs(folder)

    def numbers(*names: str) -> list[int]:
        return [ctypes.c_int64.in_dll(driver, name).value for name in names]

    found: dict[str, Any] = {}
    cpp = emit_cpp(program_of(TEXT), SPECS)
    found["gpu"] = [cpp.gpu, list(cpp.gpu_kernels)]
    w = torch.ones(4)

    python = Python(driver)
    call = build_cpp(cpp, launchers=python.launchers(), workers=1)
    for rows in (3, 5, 8, 16, 0):
        x = torch.randn(rows, 4)
        (z,) = call([x, w])
        assert isinstance(z, torch.Tensor) and torch.equal(z, expected(x)), rows
    # double is bound after its second launch, which is in the second call, relu_add in the first one
    found["by Python"] = python.launches
    found["launches"] = numbers("launches", "last_stream", "last_blocks", "last_threads")
    (z,) = call([x := torch.randn(4, 4), w])
    found["16 elements"] = numbers("last_blocks", "last_threads")
    (z,) = call([x := torch.randn(3, 4), w])
    found["12 elements"] = numbers("last_blocks", "last_threads")

    ctypes.c_int32.in_dll(cuda, "current_device").value = 1
    call([torch.randn(3, 4), w])
    found["open guards"] = ctypes.c_int64.in_dll(cuda, "guards").value
    ctypes.c_int32.in_dll(cuda, "current_device").value = 0
    ctypes.c_int64.in_dll(driver, "refuse").value = 700
    found["refused"] = fault(lambda: call([torch.randn(3, 4), w]))
    ctypes.c_int64.in_dll(driver, "refuse").value = 0

    embedded = embed_kernels(cpp, SPECS, {name: list_binaries(name) for name in SPECS})
    before = numbers("loads")[0]
    alone = build_cpp(cpp, embedded=embedded, workers=1)
    found["without a launch"] = numbers("loads")[0] - before
    wrong: list[int] = []

    def run() -> None:
        for rows in range(1, 60):
            x = torch.randn(rows, 4)
            (z,) = alone([x, w])
            if not isinstance(z, torch.Tensor) or not torch.equal(z, expected(x)):
                wrong.append(rows)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["wrong"], found["loads"] = wrong, numbers("loads")[0] - before

    python.fails = True
    failing = build_cpp(cpp, launchers=python.launchers(), workers=1)
    found["failed in Python"] = fault(lambda: failing([torch.randn(3, 4), w]))
    damaged = embed_kernels(
        cpp, SPECS, {**{name: list_binaries(name) for name in SPECS}, "double": [({"XBLOCK": 32}, GpuBinary(
            image=b"nothing", name="double", shared_bytes=0, threads=32))]}
    )  # fmt: skip
    broken = build_cpp(cpp, embedded=damaged, workers=1)
    found["damaged"] = fault(lambda: broken([torch.randn(3, 4), w]))
    nothing = build_cpp(cpp, workers=1)
    found["not brought"] = fault(lambda: nothing([torch.randn(3, 4), w]))

    script = write_sources(cpp, folder / "sources", embedded=embedded)
    (folder / "torch_lib").mkdir()
    for name in ("libtorch_cpu.so", "libc10.so"):
        (folder / "torch_lib" / name).symlink_to(Path(torch.__file__).parent / "lib" / name)
    (folder / "torch_lib" / "libtorch_cuda.so").symlink_to(folder / "libtorch_cuda.so")
    subprocess.run(
        ["sh", str(script)], check=True, env={"PATH": "/usr/bin:/bin", "TORCH_LIB": str(folder / "torch_lib")}
    )
    library = ctypes.CDLL(str(folder / "sources" / "program.so"))
    library.coilwork_use_device(1)
    library.coilwork_signature.restype = ctypes.c_char_p
    found["signature"] = library.coilwork_signature().decode()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
