"""The programs: a module, the shape of its input, and how both are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor, nn

from benchmarks.layout_programs import images, networks, sounds
from benchmarks.stream_layouts import build_dit, build_vit, build_whisper


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
    "convnext": LayoutProgram(build=images.build_convnext, shape=(64, 3, 224, 224)),
    "convnext-last": LayoutProgram(
        build=images.build_convnext, shape=(64, 3, 224, 224), is_channels_last=True
    ),
    "depthwise7": LayoutProgram(build=images.build_depthwise, shape=(32, 96, 56, 56)),
    "depthwise3": LayoutProgram(build=lambda: images.build_depthwise(3), shape=(32, 96, 56, 56)),
    "mobile": LayoutProgram(build=images.build_mobile, shape=(64, 3, 224, 224)),
    "decoder": LayoutProgram(build=images.build_decoder, shape=(32, 512, 16, 16)),
    "transposed": LayoutProgram(build=images.build_transposed, shape=(32, 128, 56, 56)),
    "vocoder": LayoutProgram(build=sounds.Vocoder, shape=(8, 80, 256)),
    "audio": LayoutProgram(build=sounds.Audio, shape=(8, 1, 64000)),
    "normed": LayoutProgram(build=images.build_normed, shape=(16, 128, 64, 64)),
    "normed-last": LayoutProgram(build=images.build_normed, shape=(16, 128, 64, 64), is_channels_last=True),
    "normed-bf16": LayoutProgram(
        build=images.build_normed, shape=(16, 128, 64, 64), is_channels_last=True, is_narrow=True
    ),
    "normed-residual": LayoutProgram(build=images.NormedConvolution, shape=(16, 128, 64, 64)),
    "volume": LayoutProgram(build=images.build_volume, shape=(2, 4, 32, 64, 64)),
    "shuffled": LayoutProgram(build=images.build_shuffled, shape=(8, 64, 64, 64)),
    "vit": LayoutProgram(build=lambda: build_vit(2), shape=(16, 3, 224, 224)),
    "dit": LayoutProgram(build=lambda: build_dit(2), shape=(16, 4, 32, 32)),
    "whisper": LayoutProgram(build=lambda: build_whisper(2), shape=(8, 80, 3000)),
    "resnet": LayoutProgram(build=networks.build_resnet, shape=(32, 3, 224, 224)),
    "resnet-last": LayoutProgram(
        build=networks.build_resnet, shape=(32, 3, 224, 224), is_channels_last=True, is_narrow=True
    ),
    "resnext": LayoutProgram(build=lambda: networks.build_resnet(32), shape=(16, 3, 224, 224)),
    "dense": LayoutProgram(build=networks.Dense, shape=(32, 64, 56, 56)),
    "branches": LayoutProgram(build=networks.Branches, shape=(32, 192, 28, 28)),
    "excited": LayoutProgram(build=networks.Excited, shape=(32, 40, 28, 28)),
    "excited-last": LayoutProgram(build=networks.Excited, shape=(32, 40, 28, 28), is_channels_last=True),
    "pyramid": LayoutProgram(build=networks.Pyramid, shape=(8, 3, 256, 256)),
    "dilated": LayoutProgram(build=networks.Dilated, shape=(8, 256, 33, 33)),
    "shufflenet": LayoutProgram(build=networks.Shuffled, shape=(64, 232, 14, 14)),
    "crossed": LayoutProgram(build=networks.Crossed, shape=(16, 128, 40, 40)),
    "denoiser": LayoutProgram(build=networks.Denoiser, shape=(8, 4, 64, 64)),
    "denoiser-last": LayoutProgram(
        build=networks.Denoiser, shape=(8, 4, 64, 64), is_channels_last=True, is_narrow=True
    ),
    "attention": LayoutProgram(build=lambda: networks.SpatialAttention(256), shape=(16, 256, 32, 32)),
    "styled": LayoutProgram(build=networks.Styled, shape=(8, 128, 64, 64)),
    "windows": LayoutProgram(build=networks.Windows, shape=(16, 3, 224, 224)),
    "mixer": LayoutProgram(build=networks.Mixer, shape=(32, 3, 224, 224)),
    "pooled": LayoutProgram(build=networks.Pooled, shape=(16, 3, 224, 224)),
    "restored": LayoutProgram(build=networks.Restored, shape=(4, 64, 128, 128)),
    "style-transfer": LayoutProgram(build=networks.build_style_transfer, shape=(4, 3, 256, 256)),
    "critic": LayoutProgram(build=networks.build_critic, shape=(32, 3, 128, 128)),
    "video": LayoutProgram(build=networks.build_video, shape=(4, 3, 8, 112, 112)),
    "compressor": LayoutProgram(build=networks.build_compressor, shape=(16, 3, 128, 128)),
    "conformer": LayoutProgram(build=sounds.Conformer, shape=(16, 500, 512)),
    "gated": LayoutProgram(build=sounds.Gated, shape=(8, 64, 16000)),
    "codec": LayoutProgram(build=sounds.Codec, shape=(8, 1, 48000)),
    "causal": LayoutProgram(build=sounds.Causal, shape=(8, 1024, 1024)),
}
"""All programs, by name."""


Precision = Literal["bf16", "f16", "f32", "tf32", "strict"]
"""What is computed in: under autocast, or in `f32` with torch's defaults, with TF32 allowed, without TF32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a program is given and run.

    Attributes:
        precision: what it computes in.
        is_channels_last: all programs over images are given in channels-last, and not only those that say so.
        train: forward and backward, else inference.
    """

    precision: Precision = "bf16"
    is_channels_last: bool = False
    train: bool = False


class OpenedCall:
    """A call of a program: inference, or a forward and a backward pass from a gradient of the result that
    stays.
    """

    def __init__(
        self, module: nn.Module, compiled: Callable[..., Tensor], x: Tensor, setting: Setting, is_cast: bool
    ) -> None:
        self._module, self._compiled, self._x = module, compiled, x
        self._setting, self._is_cast = setting, is_cast
        self._upstream: Tensor | None = None

    def __call__(self) -> Tensor:
        precision, train = self._setting.precision, self._setting.train
        dtype = torch.float16 if precision == "f16" else torch.bfloat16
        with torch.set_grad_enabled(train), _compute_in(precision):
            with torch.autocast(self._x.device.type, dtype=dtype, enabled=self._is_cast):
                found = self._compiled(self._x)
            if train:
                if self._upstream is None:
                    self._upstream = torch.randn_like(found)
                self._module.zero_grad()
                found.backward(self._upstream)
        return found

    def list_gradients(self) -> list[Tensor]:
        """Return the gradients of the parameters that the last call made."""
        return [each.grad for each in self._module.parameters() if each.grad is not None]


def open_call(
    program: LayoutProgram,
    compiler: Callable[[nn.Module], Callable[..., Tensor]],
    device: str,
    *,
    setting: Setting,
) -> OpenedCall:
    """Return a call of `program` as `compiler` compiles it."""
    torch.manual_seed(0)
    train, is_cast = setting.train, setting.precision in ("bf16", "f16")
    dtype = torch.float16 if setting.precision == "f16" else torch.bfloat16
    is_narrow = program.is_narrow and is_cast
    module = program.build().to(device).train(train)
    x = torch.randn(program.shape, device=device)
    if is_narrow:
        x, module = x.to(dtype), module.to(dtype)
    if program.is_channels_last or (setting.is_channels_last and x.dim() in (4, 5)):
        # all but streams of three dimensions have that format
        order = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        x = x.contiguous(memory_format=order)
        for parameter in module.parameters():
            if parameter.dim() == x.dim():
                parameter.data = parameter.data.contiguous(memory_format=order)
    is_cast = is_cast and not is_narrow
    return OpenedCall(module, compiler(module), x, setting, is_cast)


@contextmanager
def _compute_in(precision: Precision) -> Iterator[None]:
    """Let products and convolutions in `f32` round to TF32 or not, as `precision` says."""
    if precision not in ("tf32", "strict"):
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    rounds = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = rounds
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
