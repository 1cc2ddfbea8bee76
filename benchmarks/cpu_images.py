"""Models of images in `f32` on one thread of a CPU, whose speed depends on layouts.

    python -m benchmarks.cpu_images [--programs resnet ...] [--modes infer train] [-o page.md]

Milliseconds of processor time of a call, the least of rounds that alternate between eager mode, TorchInductor
and Coilwork, by default and with frozen parameters (inference only). `--profile` adds what Coilwork's call
spends in each operator and kernel, and `--last` gives images and weights in channels-last.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from benchmarks.backends import resolve_backend
from benchmarks.layout_programs import images, networks
from benchmarks.machine import machine_description
from benchmarks.pages import wrap_prose
from benchmarks.report import table
from benchmarks.stream_layouts import build_vit

PROGRAMS: Final[Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]]] = {
    "resnet": (networks.build_resnet, (4, 3, 224, 224)),
    "mobile": (images.build_mobile, (4, 3, 224, 224)),
    "convnext": (images.build_convnext, (4, 3, 224, 224)),
    "vit": (lambda: build_vit(2), (4, 3, 224, 224)),
    "excited": (networks.Excited, (8, 40, 28, 28)),
    "denoiser": (networks.Denoiser, (4, 4, 32, 32)),
}
"""How each module is made, and the shape of its input."""

MODES: Final = ("infer", "train")
BACKENDS: Final = ("eager", "inductor", "inductor, frozen", "coilwork", "coilwork, frozen")
_SECONDS: Final = 3.0
_LEAST_ROUNDS: Final = 5


def open_call(
    module: nn.Module, inputs: Sequence[Tensor], backend: str, *, train: bool
) -> Callable[[], Tensor]:
    """Return a call of `module` as `backend` compiles it: inference, or a forward and a backward pass."""
    family, _, frozen = backend.partition(", ")
    torch._dynamo.reset()
    if family == "eager":
        compiled: Callable[..., Tensor] = module
    else:
        chosen: Any = resolve_backend(family)
        options: dict[str, Any] = {"freezing": True} if frozen else {}
        if callable(chosen):
            chosen, options = partial(chosen, options=options), {}
        compiled = torch.compile(module, backend=chosen, options=options or None, dynamic=False)

    def call() -> Tensor:
        with torch.set_grad_enabled(train):
            found = compiled(*inputs)
            if train:
                module.zero_grad(set_to_none=True)
                torch.autograd.backward(found.square().mean())
        return found.detach()

    return call


def measure_program(
    name: str, mode: str, backends: Sequence[str], *, last: bool = False
) -> tuple[dict[str, float], dict[str, Callable[[], Tensor]]]:
    """Return the milliseconds of a call by backend, and the calls.

    Raises:
        AssertionError: a result differs from eager's, or lies otherwise.
    """
    build, shape = PROGRAMS[name]
    torch.manual_seed(0)
    module, train = build().train(mode == "train"), mode == "train"
    inputs = [torch.randn(shape)]
    if last:
        for parameter in module.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        inputs = [x.contiguous(memory_format=torch.channels_last) for x in inputs]
    state = {key: value.clone() for key, value in module.state_dict().items()}
    calls = {each: open_call(module, inputs, each, train=train) for each in backends}
    expected: Tensor | None = None
    for each, call in calls.items():
        module.load_state_dict(state)
        result = call()
        expected = result if expected is None else expected
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
        assert result.stride() == expected.stride(), f"{each}: results of {name} lie otherwise"
    best = dict.fromkeys(backends, float("inf"))
    end, rounds = time.perf_counter() + _SECONDS * len(backends), 0
    while time.perf_counter() < end or rounds < _LEAST_ROUNDS:
        rounds += 1
        for each, call in calls.items():
            begun = time.process_time_ns()
            call()
            best[each] = min(best[each], (time.process_time_ns() - begun) / 1e6)
    return best, calls


def list_costs(call: Callable[[], Tensor], most: int = 25) -> list[str]:
    """Return a line for each operator or kernel of a call: its own milliseconds, and how often it runs."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)
    return [
        f"    {event.self_cpu_time_total / 1e3:8.3f} ms {event.count:4} x {event.key[:90]}"
        for event in events[:most]
    ]


def write_page(rows: Sequence[tuple[str, str, Mapping[str, float]]], *, last: bool) -> str:
    """Return the page with the table of all rows."""
    measured = [each for each in BACKENDS if any(each in found for _, _, found in rows)]
    lines = [
        [name, mode, *(f"{found[each]:.2f}" if each in found else "" for each in measured)]
        for name, mode, found in rows
    ]
    order = "channels-last" if last else "channels-first"
    described = "; ".join(f"{key}: {value}" for key, value in machine_description("cpu").items())
    text = (
        "# Models of images on a CPU\n\n"
        f"`python -m benchmarks.cpu_images`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Milliseconds of "
        f"processor time of a call in `f32` on one thread, captured in {order}: the least of rounds "
        "that alternate between the columns. *Frozen* computes once what depends on parameters alone, with "
        "`freezing` of both compilers. *train* is a forward and a backward pass.\n\n"
        f"{described}\n\n"
    )
    return wrap_prose(text) + "\n".join(table(["program", "mode", *measured], lines)) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measure the programs, print a line for each, and write the page if one is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_images", description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--last", action="store_true", help="images and weights in channels-last")
    parser.add_argument("--profile", action="store_true", help="what Coilwork's calls spend where")
    parser.add_argument("-o", "--output", type=Path, help="page to write")
    found = parser.parse_args(arguments)
    torch.set_num_threads(1)
    # TorchInductor's cache does not tell frozen graphs from others
    torch.compiler.config.force_disable_caches = True
    rows: list[tuple[str, str, Mapping[str, float]]] = []
    for name in found.programs:
        for mode in found.modes:
            backends = [each for each in found.backends if mode == "infer" or "frozen" not in each]
            times, calls = measure_program(name, mode, backends, last=found.last)
            rows.append((name, mode, times))
            print(name, mode, "|".join(f" {each} {ms:.2f} " for each, ms in times.items()), flush=True)
            for each in [each for each in calls if found.profile and each.startswith("coilwork")]:
                print("\n".join([each, *list_costs(calls[each])]), flush=True)
    if found.output:
        found.output.write_text(write_page(rows, last=found.last), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
