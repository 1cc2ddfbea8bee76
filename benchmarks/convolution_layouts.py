"""Convolutions laid out by the scheduler's pass beside those that stay as captured.

    python -m benchmarks.convolution_layouts [--models resnet50 ...] [--modes train infer]
        [--autocast | --f32] [--layouts captured auto channels_last]

Each model of the suite is compiled once for each layout, a value of the option `conv_layout`, in 16 bits or
in `f32` that rounds to TF32. With a GPU the kernels of both are timed (microseconds in which the GPU is busy,
per call; a training call is forward and backward). Without one, with `--predict`, and for a CPU (`--target`),
programs for a device that is not there are planned: kernels, what they move and hold, what the library
converts, kernels that only copy, and calls of convolutions with those among them that compute in
channels-last.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Final, Literal, TypeAlias

import torch
from torch import Tensor

from benchmarks.kernels import kernel_times
from benchmarks.lifetimes import peak_of
from benchmarks.memory_bound.traffic import traffic
from benchmarks.models import Instance, Setting, Size, find_case, instantiate
from benchmarks.planner import Planner
from coilwork.backend import backend
from coilwork.compile_options import CompileOptions
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import Expr, as_int
from coilwork_ir.kernels import Kernel
from coilwork_ir.program.nodes import ExternCall, Launch, Program
from coilwork_ir.program.walk import index_buffers, list_kernels
from coilwork_ir.scalar import Load
from coilwork_ir.target import TARGETS
from coilwork_lowering.options import ConvolutionLayout
from coilwork_scheduler.layouts.convolutions import is_channels_last

MODELS: Final = ("resnet50", "unet", "convnext", "efficientnet", "vit", "whisper")
TARGET: Final = "sm_90"
Kind: TypeAlias = Literal["bf16", "autocast", "f32"]
"""Types of parameters; `autocast` are those in `f32` that bf16 is made of."""
_REPEATS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What the programs of one call do.

    Attributes:
        kernels, moved_mb: launches of generated kernels, and what they read and write.
        peak_mb: the most memory that one of them holds at a time.
        converted_mb: what the library reads and writes to convert tensors around convolutions: activations of
            calls as captured, and operands of calls in channels-last that lie otherwise.
        copies: those among them that only copy, of which one may copy several tensors.
        calls, channels_last: calls of convolutions and their gradients, and those whose results are
            channels-last.
        seconds: processor time of compiling.
    """

    kernels: int
    moved_mb: float
    peak_mb: float
    converted_mb: float
    copies: int
    calls: int
    channels_last: int
    seconds: float


def count(programs: Sequence[Program], seconds: float) -> Count:
    """Return what `programs` do, which took that long to compile."""
    steps = [step for program in programs for step in traffic(program)]
    copying = {kernel.name for program in programs for kernel in list_kernels(program) if is_copy(kernel)}
    launched = [i.kernel for p in programs for i in p.instructions if isinstance(i, Launch)]
    calls = list_convolutions(programs)
    return Count(
        kernels=len(launched),
        moved_mb=sum(step.total for step in steps if not step.extern) / 1e6,
        peak_mb=max((peak_of(program).size_bytes for program in programs), default=0) / 1e6,
        converted_mb=sum(map(count_converted, programs)) / 1e6,
        copies=sum(name in copying for name in launched),
        calls=len(calls),
        channels_last=sum(makes_channels_last(call) for call in calls),
        seconds=seconds,
    )


def is_copy(kernel: Kernel) -> bool:
    """Tell if a kernel stores nothing but what it loads."""
    body = kernel if kernel.combined is None else kernel.combined.body
    values = [store.value for store in body.stores]
    return bool(values) and all(isinstance(value, Load) for value in values)


def list_convolutions(programs: Sequence[Program]) -> list[ExternCall]:
    """Calls of convolutions and of their gradients."""
    calls = [i for program in programs for i in program.instructions if isinstance(i, ExternCall)]
    return [call for call in calls if "convolution" in call.target]


def makes_channels_last(call: ExternCall) -> bool:
    """Tell if the results of a convolution are channels-last."""
    made = [b for b in call.outputs if isinstance(b, Buffer) and len(b.shape) > 2]
    several = [b for b in made if as_int(b.shape[1]) != 1 and any(as_int(n) != 1 for n in b.shape[2:])]
    return bool(several) and all(as_int(b.strides[1]) == 1 for b in several)


def count_converted(program: Program) -> int:
    """Bytes that a library reads and writes to convert tensors around the convolutions of `program`."""
    known, total = index_buffers(program), 0
    for call in list_convolutions((program,)):
        read = [known[arg.name] for arg in call.args if isinstance(arg, Ref)]
        *activations, weight = [b for b in read if len(b.shape) > 2]
        made = [b for b in call.outputs if isinstance(b, Buffer) and len(b.shape) > 2]
        if makes_channels_last(call):
            converted = [
                b
                for b in (*activations, weight)
                if not is_channels_last(_numbers(b.shape), _numbers(b.strides))
            ]
        else:
            converted = [b for b in (*activations, *made) if b.shape != weight.shape]
        total += sum(2 * prod(_numbers(b.shape)) * b.dtype.itemsize for b in converted)
    return total


def _numbers(sizes: Sequence[Expr]) -> list[int]:
    return [as_int(size) or 0 for size in sizes]


def plan(
    name: str,
    *,
    train: bool,
    kind: Kind,
    layout: ConvolutionLayout = "auto",
    size: Size = Size.FULL,
    target: str = TARGET,
) -> Count:
    """The programs of one call of the model `name`, for a device that is not there."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    case = find_case(name)
    instance = instantiate(
        case,
        Setting(size=size, device=torch.device("cpu"), dtype=dtype, absent_gpu=TARGETS[target].is_gpu),
        training=train,
    )
    planner = Planner(target=target, options=CompileOptions(strict=True, conv_layout=layout))
    torch._dynamo.reset()
    begin = time.process_time()
    with torch._dynamo.config.patch(dict(case.dynamo)):
        _call(instance, planner, "cpu", train=train, kind=kind)()
    return count(planner.programs, time.process_time() - begin)


def _call(
    instance: Instance, compiler: Callable[..., object], device: str, *, train: bool, kind: Kind
) -> Callable[[], None]:
    compiled = torch.compile(instance.module, backend=compiler, dynamic=False)
    around = torch.autocast(device, dtype=torch.bfloat16) if kind == "autocast" else nullcontext()

    def call() -> None:
        with torch.set_grad_enabled(train):
            with around:
                found = compiled(*instance.inputs)
            value = found if isinstance(found, Tensor) else found[0]
            if train:
                value.backward(torch.ones_like(value))

    return call


def time_kernels(name: str, *, train: bool, kind: Kind, layout: ConvolutionLayout) -> tuple[float, int]:
    """Microseconds of all kernels of one call, and their number."""
    case = find_case(name)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    setting = Setting(size=Size.FULL, device=torch.device("cuda"), dtype=dtype)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(dict(case.dynamo)):
        instance = instantiate(case, setting, training=train)
        asked = {"cache": False, "conv_layout": layout}
        compiler = lambda gm, inputs: backend(gm, inputs, options=asked)  # noqa: E731
        call = _call(instance, compiler, "cuda", train=train, kind=kind)
        for _ in range(3):
            call()
        times = kernel_times(call, repeats=_REPEATS)
    return sum(each.total_us for each in times), sum(each.launches for each in times)


def main(arguments: list[str]) -> int:
    """Print a line for each model, mode and way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolution_layouts", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--modes", nargs="+", choices=("train", "infer"), default=["train"])
    types = parser.add_mutually_exclusive_group()
    types.add_argument(
        "--autocast",
        action="store_const",
        const="autocast",
        dest="kind",
        default="bf16",
        help="parameters in f32, bf16 by autocast",
    )
    types.add_argument(
        "--f32", action="store_const", const="f32", dest="kind", help="f32 that rounds to TF32"
    )
    parser.add_argument(
        "--layouts", nargs="+", choices=("captured", "auto", "channels_last"), default=["captured", "auto"]
    )
    parser.add_argument("--target", choices=sorted(TARGETS), default=TARGET, help="plan for this device")
    parser.add_argument("--predict", action="store_true", help="plan, though there is a GPU")
    parser.add_argument("--reduced", action="store_true", help="plan small models")
    found = parser.parse_args(arguments)
    size = Size.REDUCED if found.reduced else Size.FULL
    is_timed = torch.cuda.is_available() and not found.predict and TARGETS[found.target].is_gpu
    for name in found.models:
        for mode in found.modes:
            for layout in found.layouts:
                train = mode == "train"
                if is_timed:
                    us, launches = time_kernels(name, train=train, kind=found.kind, layout=layout)
                    said = f"{us:10.1f} us busy in {launches} kernels"
                else:
                    said = str(
                        plan(
                            name,
                            train=train,
                            kind=found.kind,
                            layout=layout,
                            size=size,
                            target=found.target,
                        )
                    )
                print(f"{name:14} {mode:5} {layout:13} {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
