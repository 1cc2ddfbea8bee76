"""Small programs whose speed depends on layouts: convolutions of every kind, and streams behind them.

    python -m benchmarks.layout_programs [--programs convnext ...] [--modes train infer] [--predict]

With a GPU each line has the microseconds in which the GPU is busy in a call, compiled by Coilwork and by
TorchInductor and in eager mode, and the slowest kernels of Coilwork's call with `--top`. Without one, and
with `--predict`, each line has what `benchmarks.convolution_layouts` counts in the programs for an absent
GPU; with `--calls` a line for each convolution: its operands and results, and the order of dimensions in
memory.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.backends import compile_with
from benchmarks.convolution_layouts import count, list_convolutions
from benchmarks.kernels import KernelTime, kernel_times
from benchmarks.planner import Planner
from benchmarks.stream_layouts import build_dit, build_vit, build_whisper
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.index import as_int
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.walk import index_buffers

TARGET: Final = "sm_90"
BACKENDS: Final = ("coilwork", "inductor", "eager")
_REPEATS: Final = 5
_ROUNDS: Final = 3

# ---- Modules ----


class ChannelNorm(nn.Module):
    """A layer norm over channels, which come second."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return found


class ConvNextBlock(nn.Module):
    """A depthwise convolution of 7 x 7, a norm, and two layers over channels, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        found: Tensor = x + y.permute(0, 3, 1, 2)
        return found


def build_convnext(depths: Sequence[int] = (1, 1, 2, 1)) -> nn.Module:
    """ConvNeXt-T with so many blocks in each of its stages."""
    widths = (96, 192, 384, 768)
    parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
    for k, depth in enumerate(depths):
        parts += [ConvNextBlock(widths[k]) for _ in range(depth)]
        if k < 3:
            parts += [ChannelNorm(widths[k]), nn.Conv2d(widths[k], widths[k + 1], 2, 2)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))


def build_depthwise(size: int = 7, width: int = 96) -> nn.Module:
    """A depthwise convolution, a norm over channels, and an activation."""
    depthwise = nn.Conv2d(width, width, size, padding=size // 2, groups=width)
    return nn.Sequential(depthwise, ChannelNorm(width), nn.GELU())


def build_mobile() -> nn.Module:
    """Inverted residuals without the residual: wide by 1 x 1, depthwise of 3 x 3, narrow by 1 x 1."""
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()]
    for narrow, wide, stride in ((32, 96, 1), (32, 192, 2), (32, 192, 1)):
        parts += [nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()]
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        parts += [depthwise, nn.BatchNorm2d(wide), nn.SiLU()]
        parts += [nn.Conv2d(wide, 32, 1, bias=False), nn.BatchNorm2d(32)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def build_decoder() -> nn.Module:
    """Transposed convolutions of 4 x 4, each of which doubles an image, with batch norms."""
    parts: list[nn.Module] = []
    for given, made in ((512, 256), (256, 128), (128, 64)):
        parts += [nn.ConvTranspose2d(given, made, 4, 2, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def build_transposed() -> nn.Module:
    """A transposed convolution and what follows it."""
    return nn.Sequential(nn.ConvTranspose2d(128, 64, 3, 2, 1, 1), nn.GELU())


class Residual1d(nn.Module):
    """Dilated convolutions over time beside a residual, as HiFi-GAN's."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(
            nn.Conv1d(width, width, size, padding=d * (size // 2), dilation=d) for d in (1, 3)
        )
        self.plain = nn.ModuleList(nn.Conv1d(width, width, size, padding=size // 2) for _ in (1, 3))

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(nn.Module):
    """A generator of waves like HiFi-GAN's: steps up in time, with residual blocks of several windows."""

    def __init__(self, width: int = 256, steps: int = 2) -> None:
        super().__init__()
        self.enter = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for _ in range(steps):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 16, 8, 4))
            width //= 2
            self.blocks.append(nn.ModuleList(Residual1d(width, size) for size in (3, 7)))
        self.leave = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            assert isinstance(blocks, nn.ModuleList)
            x = sum((block(x) for block in blocks), torch.zeros_like(x)) / len(blocks)
        return torch.tanh(self.leave(F.leaky_relu(x)))


class Audio(nn.Module):
    """Convolutions over time with group norms, as speech encoders begin."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(given, width, size, 2) for given, size in ((1, 10), (width, 3), (width, 3))
        )
        self.norm = nn.GroupNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for k, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = F.gelu(self.norm(x) if k == 0 else x)
        return x


class NormedConvolution(nn.Module):
    """A group norm, SiLU and a convolution of 3 x 3, twice, with a residual."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(F.silu(norm(y)))
        return x + y


def build_normed() -> nn.Module:
    """A group norm, SiLU and a convolution of 3 x 3."""
    return nn.Sequential(nn.GroupNorm(32, 128), nn.SiLU(), nn.Conv2d(128, 128, 3, padding=1))


def build_volume() -> nn.Module:
    """Convolutions over volumes, with group norms."""
    parts: list[nn.Module] = []
    for given, made in ((4, 32), (32, 64)):
        parts += [nn.Conv3d(given, made, 3, padding=1), nn.GroupNorm(8, made), nn.SiLU()]
    return nn.Sequential(*parts, nn.ConvTranspose3d(64, 32, 2, 2))


def build_shuffled() -> nn.Module:
    """Convolutions, pixels that become channels and back, and a resize."""
    return nn.Sequential(
        nn.Conv2d(64, 256, 3, padding=1),
        nn.PixelShuffle(2),
        nn.LeakyReLU(0.1),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(64, 32, 3, padding=1),
    )


# ---- Programs ----


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutProgram:
    """One program.

    Attributes:
        build: makes its module.
        shape: of its input.
        is_channels_last: the input is given in channels-last, and so are the parameters.
        is_narrow: parameters and input are in bf16, else in `f32`, and autocast computes in bf16.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    is_channels_last: bool = False
    is_narrow: bool = False


PROGRAMS: Final[Mapping[str, LayoutProgram]] = {
    "convnext": LayoutProgram(build=build_convnext, shape=(64, 3, 224, 224)),
    "convnext-last": LayoutProgram(build=build_convnext, shape=(64, 3, 224, 224), is_channels_last=True),
    "depthwise7": LayoutProgram(build=build_depthwise, shape=(32, 96, 56, 56)),
    "depthwise3": LayoutProgram(build=lambda: build_depthwise(3), shape=(32, 96, 56, 56)),
    "mobile": LayoutProgram(build=build_mobile, shape=(64, 3, 224, 224)),
    "decoder": LayoutProgram(build=build_decoder, shape=(32, 512, 16, 16)),
    "transposed": LayoutProgram(build=build_transposed, shape=(32, 128, 56, 56)),
    "vocoder": LayoutProgram(build=Vocoder, shape=(8, 80, 256)),
    "audio": LayoutProgram(build=Audio, shape=(8, 1, 64000)),
    "normed": LayoutProgram(build=build_normed, shape=(16, 128, 64, 64)),
    "normed-last": LayoutProgram(build=build_normed, shape=(16, 128, 64, 64), is_channels_last=True),
    "normed-bf16": LayoutProgram(
        build=build_normed, shape=(16, 128, 64, 64), is_channels_last=True, is_narrow=True
    ),
    "normed-residual": LayoutProgram(build=NormedConvolution, shape=(16, 128, 64, 64)),
    "volume": LayoutProgram(build=build_volume, shape=(2, 4, 32, 64, 64)),
    "shuffled": LayoutProgram(build=build_shuffled, shape=(8, 64, 64, 64)),
    "vit": LayoutProgram(build=lambda: build_vit(2), shape=(16, 3, 224, 224)),
    "dit": LayoutProgram(build=lambda: build_dit(2), shape=(16, 4, 32, 32)),
    "whisper": LayoutProgram(build=lambda: build_whisper(2), shape=(8, 80, 3000)),
}
"""All programs, by name."""


def open_call(
    program: LayoutProgram,
    compiler: Callable[[nn.Module], Callable[..., Tensor]],
    device: str,
    *,
    train: bool,
) -> Callable[[], Tensor]:
    """Return a call of `program` as `compiler` compiles it: inference, or a forward and a backward pass."""
    torch.manual_seed(0)
    module = program.build().to(device).train(train)
    x = torch.randn(program.shape, device=device)
    if program.is_narrow:
        x, module = x.bfloat16(), module.bfloat16()
    if program.is_channels_last:
        # all but streams of three dimensions have that format
        order = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=order)
        for parameter in module.parameters():
            if parameter.dim() == x.dim():
                parameter.data = parameter.data.contiguous(memory_format=order)
    compiled = compiler(module)

    def call() -> Tensor:
        with torch.set_grad_enabled(train):
            with torch.autocast(device, dtype=torch.bfloat16, enabled=not program.is_narrow):
                found = compiled(x)
            if train:
                found.float().square().mean().backward()
        return found

    return call


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


def time_program(program: LayoutProgram, backend: str, *, train: bool, lock: str | None) -> list[KernelTime]:
    """Return the time of each kernel of a call, of the quickest of a few rounds."""
    torch._dynamo.reset()
    call = open_call(program, lambda module: compile_with(module, backend), "cuda", train=train)
    call()
    torch.cuda.synchronize()
    with _hold(lock):
        call()
        rounds = [kernel_times(call, repeats=_REPEATS) for _ in range(_ROUNDS)]
    return min(rounds, key=lambda kernels: sum(kernel.total_us for kernel in kernels))


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
            times = {
                each: time_program(program, each, train=train, lock=found.lock) for each in found.backends
            }
            busy = {each: sum(kernel.total_us for kernel in kernels) for each, kernels in times.items()}
            said = " | ".join(f"{busy[each]:9.1f}" for each in found.backends)
            print(f"{name:16} {mode:5} {said}", flush=True)
            for kernel in times.get("coilwork", ())[: found.top]:
                print(f"    {kernel.total_us:9.1f} us {kernel.launches:4} x {kernel.name[:90]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
