"""Packages that C++ loads in a process without Python: results to the bit those of Python, refusals too."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import save_file
from torch.utils import _pytree as pytree

import coilwork
import coilwork_runtime
from coilwork_aot.cpp_library import INCLUDE, LIBRARY, build_library
from coilwork_aot.exporting import Entry
from coilwork_runtime import native_build

DRIVER: Final = Path(__file__).parent / "cpp_model_driver.cpp"
# What these begin with chooses instructions of torch's libraries, and with them the order of sums.
OF_LIBRARIES: Final = ("ATEN_", "DNNL_", "MKL_", "OMP_", "ONEDNN_")
DTYPES: Final = {torch.float32: 6, torch.int64: 4, torch.bool: 11}


class Model(torch.nn.Module):
    """A product, a buffer that is written to, operators of ATen's, views, numbers and fixed results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.tied = self.linear.weight
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x: torch.Tensor, *, scale: float = 2.0) -> Any:
        self.calls.add_(1.0)
        y = torch.nn.functional.gelu(self.linear(x)) * scale + self.calls.sum()
        top = torch.topk(y, 3)
        return {"y": y, "rest": [x, x[0], 7, None, y.shape[0], "text"]}, top.values, top.indices, self.calls


class Plain(torch.nn.Module):
    """What several threads may call: it writes nowhere."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.relu(self.model.linear(x)).cumsum(1), dim=1).values * index.sum()


class Loss(torch.nn.Module):
    """A step of training, on a part of the model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.model.linear(x)).square().mean()


@dataclass(frozen=True)
class Room:
    """A compiled driver, and a package with the inputs that it is called with."""

    program: Path
    package: Path
    folder: Path

    def run(self, *words: str | Path) -> list[str]:
        """What the driver prints, without Python; libraries compute as in this process."""
        torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
        command = [str(self.program), str(torch_library), *map(str, words)]
        kept = {name: value for name, value in os.environ.items() if name.startswith(OF_LIBRARIES)}
        done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout.splitlines()

    def input(self, name: str, value: torch.Tensor, sizes: str) -> list[str]:
        path = self.folder / f"{name}.bin"
        path.write_bytes(value.contiguous().numpy().tobytes())
        return ["input", name, str(path), sizes]


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Room:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("cpp")
    library = folder / LIBRARY.name
    if LIBRARY.exists():
        shutil.copy(LIBRARY, library)
    else:
        data = build_library(native_build, Path(coilwork_runtime.__file__).parent, "g++", ("-O0",))
        assert data is not None
        library.write_bytes(data)
    program = folder / "driver"
    words = ["g++", "-std=c++17", "-O0", f"-I{INCLUDE}", str(DRIVER), str(library), f"-Wl,-rpath,{folder}"]
    subprocess.run([*words, "-pthread", "-o", str(program)], check=True, timeout=300)
    torch.manual_seed(0)
    model = Model().eval()
    rows = torch.export.Dim("b", min=2, max=64)
    x, index = torch.randn(3, 16), torch.ones(2)
    coilwork.export(
        {
            "forward": [
                Entry(model=model, args=(x[:1],), kwargs={"scale": 2.0}),
                Entry(
                    model=model,
                    args=(x,),
                    kwargs={"scale": 2.0},
                    dynamic_shapes={"x": {0: rows}, "scale": None},
                ),
            ],
            "plain": Entry(
                model=Plain(model), args=(x, index), dynamic_shapes={"x": {0: rows}, "index": None}
            ),
            "step": Entry(model=Loss(model), args=(x,), dynamic_shapes={"x": {0: rows}}, loss=0),
        },
        path=folder / "model.cw",
    )
    return Room(program, folder / "model.cw", folder)


def describe(value: Any) -> str:
    """As the driver prints a result."""
    if isinstance(value, torch.Tensor):
        sizes = "".join(f" {size}" for size in value.shape)
        data = "".join(f" {byte:x}" for byte in value.detach().contiguous().numpy().tobytes())
        return f"tensor {DTYPES[value.dtype]}{sizes} :{data}"
    if value is None:
        return "nothing"
    return f"text {value}" if isinstance(value, str) else f"integer {value}"


def describe_all(results: Any) -> list[str]:
    return list(map(describe, pytree.tree_leaves(results, is_leaf=lambda one: one is None)))


def list_state(values: Iterable[tuple[str, torch.Tensor]]) -> list[str]:
    return [f"{name} {describe(value)}" for name, value in values]


def test_results_state_and_sharing_are_pythons(room: Room) -> None:
    """Calls of both variants, which write to a buffer, and a second model with the same tensors."""
    model = coilwork.load(room.package)
    x, index = torch.randn(5, 16), torch.tensor([1.0, 2.0])
    calls = [
        lambda: model(x, scale=2.0),
        lambda: model(x[:1], scale=2.0),
        lambda: model.entry("plain")(x, index),
        lambda: model(x, scale=2.0),
        lambda: model.entry("step")(x),
    ]
    wanted = [line for call in calls for line in describe_all(call())]
    found = room.run(
        *room.input("x", x, "5,16"),
        *room.input("row", x[:1], "1,16"),
        *room.input("index", index, "2"),
        *["open", "a", room.package, "share", "b", "a", room.package],
        *["call", "a", "", "x", ";", "call", "a", "forward", "row", ";"],
        *["call", "b", "plain", "x", "index", ";", "close", "a", "call", "b", "", "x", ";"],
        *["call", "b", "step", "x", ";"],
        *["state", "b", "python"],
    )
    assert found[:3] == ["entry forward", "entry plain", "entry step"]
    assert found[3:] == [*wanted, *list_state(model.state_dict().items()), "python 0"]


def test_inputs_are_described_and_refused_as_in_python(room: Room) -> None:
    x = torch.randn(4, 16)
    model = coilwork.load(room.package)
    # in other strides, it is copied
    wanted = describe_all(model.entry("plain")(x.t().contiguous().t(), torch.ones(2)))
    found = room.run(
        *room.input("x", x, "4,16"),
        *room.input("turned", x.t(), "t4,16"),
        *room.input("index", torch.ones(2), "2"),
        *room.input("many", torch.ones(65, 16), "65,16"),
        *room.input("wide", torch.ones(2, 17), "2,17"),
        *["open", "a", room.package, "takes", "a", "forward", "takes", "a", "plain"],
        *["call", "a", "plain", "turned", "index", ";"],
        *["call", "a", "plain", "many", "index", ";", "call", "a", "plain", "wide", "index", ";"],
        *["call", "a", "plain", "x", ";", "call", "a", "plain", "x", "3", ";"],
        *["call", "a", "other", "x", ";", "call", "a", "forward", "many", ";"],
        *["open", "b", "/missing", "share", "b", "a", "/dev/zero", "weights", "a", room.package, "copy"],
    )
    assert found[3:6] == [
        "0 x 1 6 1..1 16..16",
        "1 x 1 6 2..64? 16..16",
        "0 x 1 6 2..64? 16..16",
    ]
    assert found[6] == "0 index 1 6 2..2"
    assert found[7:8] == wanted
    refusals = ["InputError shape"] * 2 + ["InputError nesting", "InputError no-tensor"]
    refusals += ["PackageError unknown-entry", "InputError shape"]
    refusals += ["PackageError unreadable"] * 2 + ["PackageError damaged-weights"]
    assert found[8:] == refusals


def test_weights_are_exchanged(room: Room) -> None:
    model, x, index = coilwork.load(room.package), torch.randn(5, 16), torch.ones(2)
    values = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
    file = room.folder / "other.safetensors"
    save_file(values, file)
    model.load_state_dict(values)
    wanted = describe_all(model.entry("plain")(x, index))
    inputs = [*room.input("x", x, "5,16"), *room.input("index", index, "2")]
    for how in ("copy", "assign"):
        found = room.run(
            *inputs,
            *["open", "a", room.package, "weights", "a", file, how, "call", "a", "plain", "x", "index", ";"],
        )
        assert found[3:] == wanted
    save_file({"linear.weight": torch.ones(16, 16)}, file)
    assert room.run("open", "a", room.package, "weights", "a", file, "copy")[3:] == [
        "PackageError wrong-state"
    ]


def test_eight_threads_share_a_model(room: Room) -> None:
    found = room.run(
        *room.input("x", torch.randn(5, 16), "5,16"),
        *room.input("index", torch.ones(2), "2"),
        *["open", "a", room.package, "threads", "a", "plain", "x", "index", ";"],
    )
    assert found[3:] == ["differing 0"]


def test_cmake_finds_the_package_and_the_example_runs(room: Room) -> None:
    """With the library of a wheel alone: a build by CMake takes as long as one without."""
    if shutil.which("cmake") is None or not LIBRARY.exists():
        pytest.skip("needs cmake and a wheel with the library")
    cpp = LIBRARY.parents[1]
    build = room.folder / "build"
    configure = ["cmake", "-S", str(cpp / "example"), "-B", str(build), f"-Dcoilwork_DIR={cpp / 'cmake'}"]
    subprocess.run(configure, check=True, capture_output=True, timeout=120)
    subprocess.run(["cmake", "--build", str(build)], check=True, capture_output=True, timeout=120)
    torch_library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    command = [str(build / "run_model"), str(room.package), "plain", str(torch_library)]
    done = subprocess.run(command, env={"PATH": os.defpath}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Model on cpu\n  a tensor of 2 16:")
