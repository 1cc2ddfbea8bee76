"""Measured costs of convolutions in one layout and another, for passes that choose layouts.

Bytes stand for time: what memory moves meanwhile.

They hold for 16 bits on GPUs, and for `f32` on CPUs. On GPUs `f32` stays as captured unless it rounds to
TF32, a setting of torch's that the scheduler is told. Without, products run on the units of single threads
(67 TFLOP/s by NVIDIA's data sheet of an H200), and as captured take 0.55 to 1.02 of the time of
channels-last, but for depthwise ones; with it, on matrix units, they take 1.0 to 1.9 times as long, and 0.95
to 1.7 in 16 bits: `python -m benchmarks.convolution_rates` on an H200, torch 2.11. What is not measured has
no number here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

FEWEST_CHANNELS: Final = 8
"""Kernels for fewer channels do not use the matrix units' layout, so nothing is converted around them."""

WORTHWHILE: Final = 0.75
"""Copies of ours must cost at most this share of the conversions that they replace."""

BLOCKED_WEIGHT_PRICE: Final = 3
"""Where kernels have blocked layouts of their own, the copy of a weight comes on top of what they do to it
anyway, and finds it in no cache: measured on a CPU in `f32`, a byte of it takes three times as long as one of
the conversions of activations that it replaces.
"""

LAUNCH_BYTES: Final = 8_000_000
"""The start of a kernel of a GPU, some 3 us at 2 to 4 TB/s. A copy of ours is one, and so is a conversion
around a convolution in 16 bits. Small graphs in `f32` stay as captured, and with them the rounding of their
kernels.
"""

NEST_BYTES: Final = 200_000
"""The start of a loop nest on a CPU, some 10 us at 10 to 20 GB/s."""

DEPTHWISE_SLOWDOWN: Final = 5
"""How many times longer a GPU's depthwise kernels for 16 bits take as captured than cuDNN's in channels-last:
measured on an H200, in a training step of ConvNeXt-T with 64 images, 22.7 ms of all forward and gradient
kernels beside 4.6.
"""

_MOST_QUICK_TAPS: Final = 9


def has_slow_depthwise_kernel(
    groups: int, channels: int, window: Sequence[int], *, is_gradient: bool = False
) -> bool:
    """Tell if a GPU's kernel for a convolution as captured is one of those that `DEPTHWISE_SLOWDOWN` is
    about.

    Args:
        groups: of the convolution.
        channels: the smaller of input channels in a group and output channels.
        window: sizes of the weight in space. What is small is written out in generated code, which takes any
            layout.
        is_gradient: it makes gradients, which are a library's whatever the window: of 32 images of 96 x 56 x
            56 and 3 x 3 taps the weight's takes 154 us on an H200, beside 73 for 7 x 7 in channels-last.
    """
    is_written_out = not is_gradient and prod(window) <= _MOST_QUICK_TAPS
    return groups > 1 and channels == 1 and not is_written_out
