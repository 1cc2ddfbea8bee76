"""What the host's time in a call of a model goes to: `python -m benchmarks.calls --breakdown gpt2 [--train]`.

On the GPU if there is one, at the model's full size with a batch of one; else on the CPU with one thread at
the reduced size, where kernels and operators are mostly work. Times are from the beginning of a call, with
the device idle, until it returns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from benchmarks.backends import resolve_backend
from benchmarks.models import Instance, Setting, Size, find_case, first_rows, instantiate
from benchmarks.training import make_training_step
from coilwork_runtime import NativeProgram, load_native
from coilwork_runtime.executor import choice
from coilwork_runtime.executor.profiler import KindTime

Call = Callable[[], Any]
ROUNDS = 15
SECONDS = 2.0


def breakdown(
    model: str, *, train: bool, options: Mapping[str, Any], inductor: bool = False, rows: int = 14
) -> str:
    """The table. `options` are Coilwork's; with `inductor`, its call is measured, too."""
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        torch.set_num_threads(1)
    instance = _instance(model, on_gpu=on_gpu, train=train)
    programs: list[NativeProgram] = []

    def load_and_keep(data: bytes, **rest: Any) -> NativeProgram:
        programs.append(load_native(data, **rest))
        return programs[-1]

    lines = []
    with torch.set_grad_enabled(train), torch._dynamo.config.patch(dict(find_case(model).dynamo)):
        with mock.patch.object(choice, "load_native", load_and_keep):
            call = _compile_instance(
                instance, "coilwork", dict(options) | {"executor": "native"}, train=train
            )
            whole = issue_us(call)
        found = list(programs)
        with ExitStack() as stack:
            for program in found:
                stack.enter_context(program.stopwatch)
            timed = statistics.fmean(_issue_times_us(call))
        table = _table(found)
        lines.append(f"{model}, {'training step' if train else 'inference'}: {whole:.1f} us")
        if not train:
            lines.append(f"  Dynamo alone: {issue_us(_dynamo_alone(instance)):.1f} us")
        inside = sum(one.microseconds for one in _phases(found))
        lines.append(
            f"  outside of {len(found)} programs (Dynamo, AOTAutograd, autograd): {timed - inside:.1f} us"
        )
        lines += [_line(one) for one in _phases(found)]
        lines.append("  of the instructions:")
        lines += [_line(one, indent=4) for one in table[:rows]]
        if inductor:
            torch._dynamo.reset()
            lines.append(
                f"  inductor: {issue_us(_compile_instance(instance, 'inductor', {}, train=train)):.1f} us"
            )
    torch._dynamo.reset()
    return "\n".join(lines)


def issue_us(call: Call) -> float:
    """Median microseconds until a call returns, whose work the device has not begun before."""
    for _ in range(3):
        call()
    return statistics.median(_issue_times_us(call))


def _issue_times_us(call: Call) -> list[float]:
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < ROUNDS or (not torch.cuda.is_available() and time.perf_counter() < end):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def _instance(model: str, *, on_gpu: bool, train: bool) -> Instance:
    setting = Setting(
        size=Size.FULL if on_gpu else Size.REDUCED,
        device=torch.device("cuda" if on_gpu else "cpu"),
        dtype=torch.bfloat16 if on_gpu else torch.float32,
    )
    return first_rows(instantiate(find_case(model), setting, training=train), 1)


def _compile_instance(instance: Instance, backend: str, options: Mapping[str, Any], *, train: bool) -> Call:
    def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
        if backend == "inductor":
            return torch.compile(function)
        made: Callable[..., Any] = torch.compile(
            function, backend=resolve_backend(backend), options=dict(options)
        )
        return made

    compiled = make_training_step(instance, compile_function) if train else compile_function(instance.module)
    return lambda: compiled(*instance.inputs)


def _dynamo_alone(instance: Instance) -> Call:
    """The model under a backend that returns what it once returned."""
    torch._dynamo.reset()

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        kept: list[Any] = []

        def call(*args: Any) -> Any:
            if not kept:
                kept.append(gm(*args))
            return kept[0]

        return call

    compiled = torch.compile(instance.module, backend=backend)
    return lambda: compiled(*instance.inputs)


def _phases(programs: Sequence[NativeProgram]) -> list[KindTime]:
    """The phases of all programs together."""
    phases = [program.stopwatch.phases() for program in programs]
    return [
        KindTime(kind=same[0].kind, count=len(same), microseconds=sum(one.microseconds for one in same))
        for same in zip(*phases, strict=True)
    ]


def _table(programs: Sequence[NativeProgram]) -> list[KindTime]:
    """The instructions of all programs together, by kind."""
    found: dict[str, list[KindTime]] = {}
    for program in programs:
        for one in program.stopwatch.kinds():
            found.setdefault(one.kind, []).append(one)
    summed = (
        KindTime(
            kind=kind,
            count=sum(one.count for one in same),
            microseconds=sum(one.microseconds for one in same),
        )
        for kind, same in found.items()
    )
    return sorted(summed, key=lambda one: -one.microseconds)


def _line(one: KindTime, *, indent: int = 2) -> str:
    each = f"{one.count:6.1f} of {one.microseconds / one.count:7.3f}" if one.count else ""
    return f"{'':{indent}}{one.microseconds:8.1f} us  {each}  {one.kind}"
