"""Packages for a GPU that C++ loads in a process without Python: results to the bit are Python's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor, nn

import coilwork
import coilwork_aot
import coilwork_runtime
from coilwork_aot.cpp_library import INCLUDE, LIBRARY, build_library
from coilwork_runtime import native_build
from coilwork_runtime.executor.choice import ExecutorOptions, Products

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DRIVER: Final = Path(__file__).with_name("cpp_model_on_gpu.cpp")


class Block(nn.Module):
    """Products, kernels with reductions, a scan that takes scratch memory, and a sort; and weights that go to
    the device in several pieces.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (16, 32, 48, 32)
        parts = [(nn.Linear(a, b), nn.GELU(), nn.LayerNorm(b)) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*chain.from_iterable(parts))
        self.table = nn.Parameter(torch.randn(60_001, widths[-1]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x) + self.table.sum(0)
        return torch.sort(y + y.sum(-1, keepdim=True).cumsum(0), dim=-1).values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver, and a package that tensors on the host were exported to for this GPU."""
    folder = tmp_path_factory.mktemp("cpp")
    data = build_library(native_build, Path(coilwork_runtime.__file__).parent, "g++", ("-O1",))
    assert data is not None
    (folder / LIBRARY.name).write_bytes(data)
    words = ["g++", "-std=c++17", "-O0", f"-I{INCLUDE}", str(DRIVER), str(folder / LIBRARY.name)]
    subprocess.run(
        [*words, f"-Wl,-rpath,{folder}", "-pthread", "-ldl", "-o", str(folder / "driver")], check=True
    )
    torch.manual_seed(0)
    major, minor = torch.cuda.get_device_capability()
    rows = torch.export.Dim("b", min=2, max=4096)
    coilwork.export(
        Block().eval(),
        (torch.randn(4, 16),),
        dynamic_shapes=({0: rows},),
        target=f"sm_{major}{minor}",
        path=folder / "model.cw",
    )
    return folder


@torch.no_grad()
@pytest.mark.parametrize("rows", [5, 1024])
@pytest.mark.parametrize(("device", "uses"), [("cuda", "all"), ("cuda:1", "all"), ("cuda", "torch")])
def test_results_are_pythons(folder: Path, device: str, uses: str, rows: int) -> None:
    """In C++ as in Python, libraries of the vendor's do products, and the driver repeats work as graphs; or
    neither, where that is asked for.
    """
    if device == "cuda:1" and torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    index = 1 if device == "cuda:1" else 0
    x = torch.randn(rows, 16)
    products: Products = "auto" if uses == "all" else "aten"
    left = ExecutorOptions(executor="native", strict=True, products=products, replay=uses == "all")
    wanted = coilwork_aot.load(folder / "model.cw", device=f"cuda:{index}", options=left)(x.cuda(index))
    (folder / "x.bin").write_bytes(x.numpy().tobytes())
    torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    command = [folder / "driver", torch_library, folder / "model.cw", device, folder / "x.bin", rows, 16]
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [*map(str, command), str(folder / "result.bin"), uses],
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    used = int(uses == "all")
    counted = f"products {used} graphs {used}"
    wanted_words = f"differing 0 failed 0 device {index} current 0 kept 0 {counted}\n"
    assert done.stdout == wanted_words, done.stderr
    assert (folder / "result.bin").read_bytes() == wanted.cpu().numpy().tobytes()


@torch.no_grad()
def test_a_package_that_was_tuned_gives_the_models_results(tmp_path: Path) -> None:
    """Buffers that the model writes to are as before tuning, and each version of a kernel has one binary."""
    model, x = nn.Sequential(Block(), nn.BatchNorm1d(32)).cuda().train(), torch.randn(64, 16, device="cuda")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    coilwork.export(model, (x,), path=tmp_path / "tuned.cw", tunes=True)
    loaded = coilwork_aot.load(tmp_path / "tuned.cw", device="cuda")
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, before[name]), name
    torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-4)
    (variant,) = loaded.manifest.entries["forward"]
    assert variant.binaries and all(len(kept) == 1 for kept in variant.binaries.values())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_weights_are_on_the_device_when_python_has_loaded(folder: Path, mode: Callable[[], Any]) -> None:
    with mode():
        loaded = coilwork_aot.load(folder / "model.cw", device="cuda").state_dict()
    torch.manual_seed(0)
    expected = Block().state_dict()
    assert list(loaded) == list(expected)
    assert all(torch.equal(loaded[name].cpu(), value) for name, value in expected.items())
