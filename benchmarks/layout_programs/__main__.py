"""Small programs whose speed depends on layouts: convolutions of every kind, and streams behind them.

    python -m benchmarks.layout_programs [--programs convnext ...] [--modes train infer] [--predict]
    python -m benchmarks.layout_programs --precisions bf16 f32 tf32 strict --orders own last --top 8

With a GPU each line has the microseconds in which the GPU is busy in a call, compiled by Coilwork and by
TorchInductor and in eager mode, the memory in MB that a call takes at most, and how far results are from
those of the last of these; with `--top` the slowest kernels of each follow. A call trains from a gradient of
the result that stays: there is no loss, nor are gradients added to earlier ones. Without a GPU, and with
`--predict`, each line has what `benchmarks.convolution_layouts` counts in the programs for an absent GPU;
with `--calls` a line for each convolution: its operands and results, and the order of dimensions in memory.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

import torch

from benchmarks.convolution_layouts import count, list_convolutions
from benchmarks.layout_programs.programs import PROGRAMS, LayoutProgram, Precision, Setting, open_call
from benchmarks.layout_programs.timing import (
    Compiled,
    compile_program,
    measure_difference,
    sum_times,
    time_call,
)
from benchmarks.planner import Planner
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import as_int
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import index_buffers

TARGET: Final = "sm_90"
BACKENDS: Final = ("coilwork", "inductor", "inductor-max", "eager")
DEFAULT_BACKENDS: Final = ("coilwork", "inductor", "eager")

# ---- Plans ----


def plan(program: LayoutProgram, setting: Setting) -> list[Program]:
    """Return the programs of one call for a GPU that is not there."""
    planner = Planner(target=TARGET)
    torch._dynamo.reset()
    compiler = lambda module: torch.compile(module, backend=planner, dynamic=False)  # noqa: E731
    open_call(program, compiler, "cpu", setting=setting)()
    return planner.programs


def describe_calls(programs: Sequence[Program]) -> list[str]:
    """Return a line for each convolution: its tensors' extents from the outermost in memory to the innermost.

    A number of a dimension stands before each extent: `0:32 2:56 3:56 1:96` is channels-last.
    """
    lines: list[str] = []
    for program in programs:
        known = index_buffers(program)
        for call in list_convolutions((program,)):
            read = [known[arg.name] for arg in call.args if isinstance(arg, Ref)]
            made = [b for b in call.outputs if isinstance(b, Buffer)]
            texts = [
                " | ".join(_describe_order(b) for b in each if len(b.shape) > 1) for each in (read, made)
            ]
            lines.append(f"{call.target.split('.')[1]}: {texts[0]} -> {texts[1]}")
    return lines


def _describe_order(buffer: Buffer) -> str:
    extents = [as_int(extent) or 0 for extent in buffer.shape]
    steps = [as_int(step) or 0 for step in buffer.strides]
    order = sorted(range(len(extents)), key=lambda k: -steps[k])
    return " ".join(f"{k}:{extents[k]}" for k in order)


# ---- Times ----


def print_times(
    name: str, setting: Setting, compiled: Mapping[str, Compiled], found: argparse.Namespace
) -> None:
    """Print a line for a program, and with `--top` the slowest kernels of each backend."""
    timed = {
        backend: min((time_call(one.call) for _ in range(found.rounds)), key=sum_times)
        for backend, one in compiled.items()
    }
    busy = " | ".join(f"{sum_times(each):9.1f}" for each in timed.values())
    peaks = " | ".join(f"{each.peak_mb:8.1f}" for each in compiled.values())
    results = [each.results for each in compiled.values()]
    off = max(measure_difference(one, results[-1]) for one in results)
    print(f"{_describe(name, setting)} {busy}  MB {peaks}  off {off:.1e}", flush=True)
    for backend, each in timed.items() if found.top else ():
        print(f"  {backend}, {sum(kernel.launches for kernel in each)} launches", flush=True)
        for kernel in each[: found.top]:
            print(f"    {kernel.total_us:9.1f} us {kernel.launches:4} x {kernel.name[:90]}", flush=True)


def _describe(name: str, setting: Setting) -> str:
    order = "last" if setting.is_channels_last else "own"
    return f"{name:16} {'train' if setting.train else 'infer'} {setting.precision:6} {order:4}"


def _list_settings(found: argparse.Namespace) -> Iterator[Setting]:
    for order in found.orders:
        for precision in found.precisions:
            for mode in found.modes:
                yield Setting(precision=precision, is_channels_last=order == "last", train=mode == "train")


def main(arguments: list[str]) -> int:
    """Print a line for each program and setting."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layout_programs", description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--modes", nargs="+", choices=("train", "infer"), default=["train", "infer"])
    parser.add_argument("--precisions", nargs="+", choices=get_args(Precision), default=["bf16"])
    parser.add_argument(
        "--orders",
        nargs="+",
        choices=("own", "last"),
        default=["own"],
        help="as programs say, or channels last",
    )
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(DEFAULT_BACKENDS))
    parser.add_argument("--predict", action="store_true", help="plan, though there is a GPU")
    parser.add_argument("--calls", action="store_true", help="a line for each convolution of a plan")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of calls, of which the quickest counts")
    parser.add_argument("--top", type=int, default=0, help="kernels of each backend's call to print")
    found = parser.parse_args(arguments)
    cases = [(name, setting) for name in found.programs for setting in _list_settings(found)]
    if torch.cuda.is_available() and not found.predict:
        compiled = [
            {each: compile_program(PROGRAMS[name], each, setting) for each in found.backends}
            for name, setting in cases
        ]
        for (name, setting), each in zip(cases, compiled, strict=True):
            print_times(name, setting, each, found)
        return 0
    for name, setting in cases:
        programs = plan(PROGRAMS[name], setting)
        print(f"{_describe(name, setting)} {count(programs, 0.0)}", flush=True)
        for line in describe_calls(programs) if found.calls else ():
            print(f"    {line}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
