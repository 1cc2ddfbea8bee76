"""Small programs whose speed depends on layouts: convolutions of every kind, and streams behind them.

    python -m benchmarks.layout_programs [--programs convnext ...] [--modes train infer] [--predict]

With a GPU each line has the microseconds in which the GPU is busy in a call, compiled by Coilwork and by
TorchInductor and in eager mode, how far results are from those of the last of these, and the slowest kernels
of Coilwork's call with `--top`. Without one, and
with `--predict`, each line has what `benchmarks.convolution_layouts` counts in the programs for an absent
GPU; with `--calls` a line for each convolution: its operands and results, and the order of dimensions in
memory.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from benchmarks.backends import compile_with
from benchmarks.convolution_layouts import count, list_convolutions
from benchmarks.kernels import KernelTime, kernel_times
from benchmarks.layout_programs.programs import PROGRAMS, LayoutProgram, open_call
from benchmarks.planner import Planner
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import as_int
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import index_buffers

TARGET: Final = "sm_90"
BACKENDS: Final = ("coilwork", "inductor", "eager")
_REPEATS: Final = 5
_ROUNDS: Final = 3

# ---- Plans ----


def plan(program: LayoutProgram, *, train: bool) -> list[Program]:
    """Return the programs of one call for a GPU that is not there."""
    planner = Planner(target=TARGET)
    torch._dynamo.reset()
    compiler = lambda module: torch.compile(module, backend=planner, dynamic=False)  # noqa: E731
    open_call(program, compiler, "cpu", train=train)()
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


def time_program(
    program: LayoutProgram, backend: str, *, train: bool, lock: str | None
) -> tuple[list[KernelTime], Tensor]:
    """Return the time of each kernel of a call, of the quickest of a few rounds, and the call's result."""
    torch._dynamo.reset()
    call = open_call(program, lambda module: compile_with(module, backend), "cuda", train=train)
    result = call().detach().double()
    with _hold(lock):
        call()
        rounds = [kernel_times(call, repeats=_REPEATS) for _ in range(_ROUNDS)]
    return min(rounds, key=lambda kernels: sum(kernel.total_us for kernel in kernels)), result


@contextmanager
def _hold(lock: str | None) -> Iterator[None]:
    """Measure alone among the processes that share the file `lock`."""
    if lock is None:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Print a line for each program and mode."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layout_programs", description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--modes", nargs="+", choices=("train", "infer"), default=["train", "infer"])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--predict", action="store_true", help="plan, though there is a GPU")
    parser.add_argument("--calls", action="store_true", help="a line for each convolution of a plan")
    parser.add_argument("--lock", help="file; processes that share it measure one after another")
    parser.add_argument("--top", type=int, default=0, help="kernels of Coilwork's call to print")
    found = parser.parse_args(arguments)
    is_timed = torch.cuda.is_available() and not found.predict
    for name in found.programs:
        for mode in found.modes:
            program, train = PROGRAMS[name], mode == "train"
            if not is_timed:
                programs = plan(program, train=train)
                print(f"{name:16} {mode:5} {count(programs, 0.0)}", flush=True)
                for line in describe_calls(programs) if found.calls else ():
                    print(f"    {line}", flush=True)
                continue
            timed = {
                each: time_program(program, each, train=train, lock=found.lock) for each in found.backends
            }
            busy = {each: sum(kernel.total_us for kernel in kernels) for each, (kernels, _) in timed.items()}
            said = " | ".join(f"{busy[each]:9.1f}" for each in found.backends)
            results = [result for _, result in timed.values()]
            off = max(float((one - results[-1]).norm() / results[-1].norm()) for one in results)
            print(f"{name:16} {mode:5} {said}  off {off:.1e}", flush=True)
            for kernel in timed["coilwork"][0][: found.top] if "coilwork" in timed else ():
                print(f"    {kernel.total_us:9.1f} us {kernel.launches:4} x {kernel.name[:90]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
