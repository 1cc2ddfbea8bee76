"""Programs on streams by all four drivers: the interpreter's results, on the streams that they name."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

from coilwork_cpp_wrapper import emit_cpp
from coilwork_ir.errors import EmitError
from coilwork_ir.program.interpreter import Hooks, interpret_program
from coilwork_runtime.executor import slow_path
from integration_tests.stream_programs import (
    BESIDE,
    FAILING,
    draw_program,
    inputs_on,
    make_drivers,
    program_on,
)


def test_all_drivers_agree_with_the_interpreter_on_streams() -> None:
    program = program_on("cpu", BESIDE)
    wanted = interpret_program(program, inputs_on("cpu"))
    for name, call in make_drivers(program).items():
        for _ in range(2):
            found = call(inputs_on("cpu"))
            for one, other in zip(found, wanted, strict=True):
                torch.testing.assert_close(
                    one, other, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
                )


def test_random_programs_agree_in_all_drivers() -> None:
    for seed in range(60):
        program = draw_program("cpu", seed)
        wanted = interpret_program(program, inputs_on("cpu"))
        for name, call in make_drivers(program, cpp=seed < 2).items():
            for one, other in zip(call(inputs_on("cpu")), wanted, strict=True):
                assert torch.equal(one, other), (seed, name)


def test_random_gpu_programs_do_not_depend_on_order() -> None:
    for seed in range(60):
        program = draw_program("cuda:0", seed)
        wanted = interpret_program(program, inputs_on("cpu"))
        for turn in range(3):
            found = interpret_program(program, inputs_on("cpu"), hooks=Hooks(turns=Random(f"{seed} {turn}")))
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other), (seed, turn)


def test_cpp_refuses_streams_of_other_devices_by_name() -> None:
    program = program_on("cpu", 'program @p {\n fork %s "cuda:0"\n join %s\n return ()\n}\n')
    with pytest.raises(EmitError, match="a stream or event of cuda:0"):
        emit_cpp(program, {})


class Recorder:
    """Writes down what the native executor does to streams and events."""

    def __init__(self) -> None:
        self.orders: list[tuple[int, int, int, str]] = []
        self.closed = 0

    def order(self, *what: Any) -> None:
        self.orders.append(what)

    def close(self) -> None:
        self.closed += 1


FORK, RECORD, WAIT, SYNCHRONIZE, JOIN, USE = range(6)
S, T, COPIED = 1, 2, 3


def test_the_native_executor_switches_streams_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(slow_path, "make_streams", lambda: recorder)
    make_drivers(program_on("cpu", BESIDE), cpp=False)["native"](inputs_on("cpu"))
    assert recorder.orders == [
        (FORK, S, 0, "cpu"),
        (FORK, T, S, "cpu"),
        (USE, S, 0, ""),
        (USE, 0, 0, ""),
        (RECORD, COPIED, S, "cpu"),
        (USE, T, 0, ""),
        (USE, 0, 0, ""),
        (JOIN, T, S, ""),
        (SYNCHRONIZE, COPIED, 0, ""),
        (JOIN, S, 0, ""),
    ]
    assert recorder.closed == 1


def test_a_failed_call_restores_the_current_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(slow_path, "make_streams", lambda: recorder)
    call = make_drivers(program_on("cpu", FAILING), cpp=False)["native"]
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        call([torch.zeros(64, 64), torch.zeros(3, 3)])
    assert recorder.orders[-1] == (USE, S, 0, "") and recorder.closed == 1
