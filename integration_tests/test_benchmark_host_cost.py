"""What a call costs the host of a GPU: the loops of the floors, and the page."""

from __future__ import annotations

import ctypes
import math

import pytest
import torch

from benchmarks.host_cost import __main__ as command
from benchmarks.host_cost.floors import Floors, build_floors
from benchmarks.host_cost.page import Cost, page
from benchmarks.host_cost.programs import PROGRAMS

Drop = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
Multiply = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
LONGS = (ctypes.POINTER(ctypes.c_int64),) * 2
INTS = (ctypes.c_int32,) * 3
Make = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, *LONGS, *INTS, ctypes.POINTER(ctypes.c_void_p))
Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *(ctypes.c_uint,) * 7, *(ctypes.c_void_p,) * 3)


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return build_floors()


def test_a_floor_calls_with_its_arguments(library: ctypes.CDLL) -> None:
    seen: list[tuple[int, ...]] = []
    multiply = Multiply(lambda *handles: seen.append(handles) or 0)
    handles = (ctypes.c_void_p(1), ctypes.c_void_p(2), ctypes.c_void_p(3))
    assert library.products(multiply, *handles, ctypes.c_int64(5)) > 0
    assert seen == [(1, 2, 3)] * 5


def test_the_launch_floor_launches_one_warp(library: ctypes.CDLL) -> None:
    seen: list[tuple[object, ...]] = []
    launch = Launch(lambda *arguments: seen.append(arguments) or 0)
    kernel, stream, parameters = ctypes.c_void_p(7), ctypes.c_void_p(8), ctypes.c_void_p(9)
    assert library.launches(launch, kernel, stream, parameters, ctypes.c_int64(2)) > 0
    assert seen == [(7, 1, 1, 1, 32, 1, 1, 0, 8, 9, None)] * 2


def test_the_allocation_floor_frees_its_tensors(library: ctypes.CDLL) -> None:
    asked: list[tuple[int, ...]] = []
    dropped: list[int] = []

    def make(rank: int, sizes: LONGS, strides: LONGS, dtype: int, kind: int, device: int, made: LONGS) -> int:
        asked.append((rank, sizes[0], strides[0], dtype, kind, device))
        made[0] = 4096 + len(asked)
        return 0

    drop = Drop(lambda handle: dropped.append(handle) or 0)
    kinds = ctypes.c_int32(6), ctypes.c_int32(1), ctypes.c_int32(0)
    assert library.allocations(Make(make), drop, ctypes.c_int64(64), *kinds, ctypes.c_int64(3)) > 0
    assert asked == [(1, 64, 1, 6, 1, 0)] * 3
    assert dropped == [4097, 4098, 4099]


def test_a_failed_call_gives_no_floor(library: ctypes.CDLL) -> None:
    multiply = Multiply(lambda *handles: 1)
    handles = (ctypes.c_void_p(1), ctypes.c_void_p(2), ctypes.c_void_p(3))
    assert library.products(multiply, *handles, ctypes.c_int64(5)) == -1


def test_the_page_shows_marginal_costs() -> None:
    kinds = {"kernels": (1000.0, 2800.0), "allocations": (2.0, 60.0), "frees": (9.0, 40.0)}
    found = {
        ("kernels-1", "dynamo"): Cost(us=10.0),
        ("kernels-1", "inductor"): Cost(us=40.0, launches=1),
        ("kernels-1", "coilwork"): Cost(us=17.0, launches=1),
        ("kernels-1", "coilwork-pieces"): Cost(us=18.0, launches=1),
        ("kernels-100", "coilwork"): Cost(us=60.0, launches=100),
        ("kernels-1000", "coilwork"): Cost(us=240.0, launches=1000),
        ("kernels-100", "coilwork-pieces"): Cost(us=300.0, launches=100),
        ("kernels-1000", "coilwork-pieces"): Cost(us=3000.0, launches=1000, kinds=kinds),
    }
    floors = Floors(launch=4.0, allocation=2.0, product=12.0, launch_when_idle=5.0, allocation_when_idle=2.0)
    text = page(found, floors, command="python -m benchmarks.host_cost", machine={"gpu": "one"})
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    ours = {row[0].removeprefix("| "): row for row in rows}
    assert ours["one kernel more by itself, and all that goes with it"][1:3] == ["3.00", "4.00"]
    assert ours["one kernel more in a graph"][1:3] == ["0.20", "4.00"]
    assert ours["of it, the launch"][1] == "2.80"
    assert ours["of it, allocations and frees"][1] == "0.10"
    assert ours["a call of one kernel"][-1] == "1.70 |"
    assert ours["of it, beyond Dynamo"][1:3] == ["7.00", "7.00"]
    assert ours["one kernel"][1:] == ["1", "1", "40.0", "17.0", "18.0", "0.42 |"]
    # neither measured nor made up
    assert "product more" not in text and "GPT-2" not in text


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if program.launches])
def test_chains_have_the_stated_length(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for maker in ("rand", "eye"):
        original = getattr(torch, maker)
        monkeypatch.setattr(torch, maker, lambda *a, original=original, device, **k: original(*a, **k))
    function, inputs = PROGRAMS[name].make()
    result = function(*inputs)
    assert isinstance(result, torch.Tensor) and result.shape == inputs[0].shape
    assert math.isfinite(result.float().sum().item())


def test_programs_can_be_selected() -> None:
    assert {program for program, _ in command.pairs()} == set(PROGRAMS)
    assert ("kernels-1", "dynamo") in command.pairs()
    assert command.pairs(["products-10"]) == (
        ("products-10", "inductor"),
        ("products-10", "coilwork"),
        ("products-10", "coilwork-pieces"),
        ("products-10", "coilwork-aten"),
    )


def test_without_a_gpu_the_command_explains(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        command.main([])
    assert "there is no GPU; `python -m benchmarks.calls`" in capsys.readouterr().err
