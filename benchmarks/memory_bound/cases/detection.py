"""Boxes, maps and pairs: what detection and segmentation heads decode, and their losses with gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes
from benchmarks.memory_bound.cases.inputs import normal, normal_f16

F16, F32 = torch.float16, torch.float32
BACKWARD = "the backward pass reads the inputs again"


def both_bytes(x: Tensor, y: Tensor) -> int:
    return count_stored_bytes(x) + count_stored_bytes(y)


def anchored(make: Make, b: int, count: int) -> Arguments:
    return make.normal(b, count, 4, dtype=F32), make.near_one(count, 4, dtype=F32)


def decoded(deltas: Tensor, anchors: Tensor) -> Tensor:
    centres = deltas[..., :2] * 0.1 * anchors[:, 2:] + anchors[:, :2]
    sizes = (deltas[..., 2:] * 0.2).clamp(max=4.135).exp() * anchors[:, 2:]
    return torch.cat([centres - sizes / 2, centres + sizes / 2], -1).clamp(0, 1024)


def distances(x: Tensor) -> Tensor:
    b, _, places = x.shape
    bins = torch.arange(16, device=x.device, dtype=x.dtype)
    return (x.view(b, 4, 16, places).softmax(2) * bins[:, None]).sum(2)


def peaks(x: Tensor) -> Tensor:
    heat = x.sigmoid()
    return heat * (functional.max_pool2d(heat, 3, stride=1, padding=1) == heat)


def masks(make: Make, b: int, c: int, h: int, w: int) -> Arguments:
    return make.normal(b, c, h, w, dtype=F16), make.integers(b, c, h, w, below=2, dtype=torch.uint8)


def dice(x: Tensor, y: Tensor) -> Tensor:
    chance, target = x.sigmoid(), y.to(x.dtype)
    shared = (chance * target).sum((2, 3), dtype=F32)
    total = chance.sum((2, 3), dtype=F32) + target.sum((2, 3), dtype=F32)
    return (1 - (2 * shared + 1) / (total + 1)).mean()


def contrastive(x: Tensor) -> Tensor:
    own = torch.arange(x.shape[0], device=x.device)
    return (functional.cross_entropy(x.float(), own) + functional.cross_entropy(x.float().t(), own)) / 2


def labelled(make: Make, n: int, classes: int) -> Arguments:
    """Scores of which none is exactly 1 below that of the label, in numbers that differ by multiples of 1/8:
    no rounding decides who has a gradient.
    """
    scores, labels = make.normal(n, classes, dtype=F32), make.integers(n, below=classes)
    if make.values:
        scores.mul_(4).round_().div_(4).scatter_add_(
            1, labels[:, None], torch.full((n, 1), 0.125, device=make.device)
        )
    return scores, labels


def hinge(x: Tensor, y: Tensor) -> Tensor:
    return functional.multi_margin_loss(x, y)


def labelled_maps(make: Make, b: int, classes: int, h: int, w: int) -> Arguments:
    return make.normal(b, h, w, classes).permute(0, 3, 1, 2), make.integers(b, h, w, below=classes)


def map_loss(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x, y, label_smoothing=0.1, ignore_index=3)


def paired_boxes(make: Make, n: int) -> Arguments:
    def some() -> Tensor:
        return torch.cat([make.normal(n, 2, dtype=F32), make.near_one(n, 2, dtype=F32)], -1)

    return some(), some()


def generalised_overlap(a: Tensor, b: Tensor) -> Tensor:
    def area(sides: Tensor) -> Tensor:
        return sides[:, 0] * sides[:, 1]

    a_low, a_high, b_low, b_high = a[:, :2], a[:, :2] + a[:, 2:], b[:, :2], b[:, :2] + b[:, 2:]
    shared = area((torch.minimum(a_high, b_high) - torch.maximum(a_low, b_low)).clamp(min=0))
    hull = area(torch.maximum(a_high, b_high) - torch.minimum(a_low, b_low))
    union = area(a[:, 2:]) + area(b[:, 2:]) - shared
    return (1 - shared / union + (hull - union) / hull).mean()


CASES = (
    Case(
        name="decoded boxes 128x120087x4 f32",
        function=decoded,
        inputs=anchored,
        size=(128, 120087),
        tiny=(2, 5),
        set="further",
    ),
    Case(
        name="distances of 16 bins 256x64x8400 f16",
        function=distances,
        inputs=normal_f16,
        size=(256, 64, 8400),
        tiny=(2, 64, 5),
        set="further",
    ),
    Case(
        name="peaks of heat maps 128x80x128x128 f16",
        function=peaks,
        inputs=normal_f16,
        size=(128, 80, 128, 128),
        tiny=(2, 3, 5, 6),
        set="further",
    ),
    Case(
        name="Dice loss fwd+bwd 64x4x512x512 f16",
        function=dice,
        inputs=masks,
        size=(64, 4, 512, 512),
        tiny=(2, 3, 5, 6),
        train=True,
        again=both_bytes,
        why=BACKWARD,
        set="further",
    ),
    Case(
        name="contrastive loss 16384x16384",
        function=contrastive,
        inputs=normal,
        size=(16384, 16384),
        tiny=(7, 7),
        set="further",
    ),
    Case(
        name="hinge loss fwd+bwd 131072x1000 f32",
        function=hinge,
        inputs=labelled,
        size=(131072, 1000),
        tiny=(5, 9),
        train=True,
        set="further",
    ),
    Case(
        name="smoothed loss of maps fwd+bwd NHWC 16x512x1024x19",
        function=map_loss,
        inputs=labelled_maps,
        size=(16, 19, 512, 1024),
        tiny=(2, 5, 3, 4),
        train=True,
        again=both_bytes,
        why=BACKWARD,
        set="further",
    ),
    Case(
        name="generalised overlap fwd+bwd of 8M pairs f32",
        function=generalised_overlap,
        inputs=paired_boxes,
        size=(1 << 23,),
        tiny=(9,),
        train=True,
        again=both_bytes,
        why=BACKWARD,
        set="further",
    ),
)
