"""Softmax, log-sum-exp, and losses on them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, first_bytes

F16, F32 = torch.float16, torch.float32
LOSS_AGAIN = "the backward pass starts when the mean of the losses is known"


def rows(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m),)


def rows_f16(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m, dtype=F16),)


def rows_f32(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m, dtype=F32),)


def labelled(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.integers(n, below=m)


def scores(make: Make, b: int, n: int, m: int) -> Arguments:
    return make.normal(b, n, m), make.bits(n, m, one_in=4)


def softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def log_softmax(x: Tensor) -> Tensor:
    return x.log_softmax(-1)


def logsumexp(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def masked_softmax(x: Tensor, hidden: Tensor) -> Tensor:
    return x.mul(0.125).masked_fill(hidden, -1e4).softmax(-1)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(x, target)


def smoothed_cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(x.float(), target, label_smoothing=0.1)


def nll(x: Tensor, target: Tensor) -> Tensor:
    return functional.nll_loss(x, target, reduction="none")


def nll_reads(x: Tensor, target: Tensor) -> int:
    """One sector of 32 bytes of each row."""
    return target.nbytes + min(x.nbytes, 32 * len(x))


CASES = (
    Case(name="softmax 4096x8192", function=softmax, inputs=rows, size=(4096, 8192), tiny=(6, 96)),
    Case(name="softmax 64x262144 f32", function=softmax, inputs=rows_f32, size=(64, 262144), tiny=(2, 3000)),
    Case(name="log softmax 8192x16384", function=log_softmax, inputs=rows, size=(8192, 16384), tiny=(6, 96)),
    Case(
        name="cross-entropy fwd+bwd 8192x50304",
        function=cross_entropy,
        inputs=labelled,
        size=(8192, 50304),
        tiny=(6, 90),
        train=True,
        again=first_bytes,
        why=LOSS_AGAIN,
    ),
    Case(name="logsumexp 8192x32768", function=logsumexp, inputs=rows, size=(8192, 32768), tiny=(6, 96)),
    Case(
        name="nll 4M rows of 32",
        function=nll,
        inputs=labelled,
        size=(1 << 22, 32),
        tiny=(60, 7),
        reads=nll_reads,
    ),
    Case(
        name="softmax fwd+bwd 16384x4096",
        function=softmax,
        inputs=rows,
        size=(16384, 4096),
        tiny=(6, 96),
        train=True,
        again=first_bytes,
        why="the backward pass reads the softmax, or what it was made of",
        set="more",
    ),
    Case(
        name="softmax 262144x256 f16",
        function=softmax,
        inputs=rows_f16,
        size=(262144, 256),
        tiny=(20, 24),
        set="more",
    ),
    Case(
        name="masked softmax 48x2048x2048",
        function=masked_softmax,
        inputs=scores,
        size=(48, 2048, 2048),
        tiny=(2, 9, 17),
        set="more",
    ),
    Case(
        name="softmax 2048x50257 f32",
        function=softmax,
        inputs=rows_f32,
        size=(2048, 50257),
        tiny=(3, 101),
        set="more",
    ),
    Case(
        name="log softmax 65536x1000 f32",
        function=log_softmax,
        inputs=rows_f32,
        size=(65536, 1000),
        tiny=(5, 100),
        set="more",
    ),
    Case(
        name="cross-entropy fwd+bwd 4096x128256",
        function=cross_entropy,
        inputs=labelled,
        size=(4096, 128256),
        tiny=(4, 130),
        train=True,
        again=first_bytes,
        why=LOSS_AGAIN,
        set="more",
    ),
    Case(
        name="smoothed cross-entropy fwd+bwd 8192x32000",
        function=smoothed_cross_entropy,
        inputs=labelled,
        size=(8192, 32000),
        tiny=(4, 130),
        train=True,
        again=first_bytes,
        why=LOSS_AGAIN,
        set="more",
    ),
    Case(
        name="softmax 1024x4096 in cache",
        function=softmax,
        inputs=rows,
        size=(1024, 4096),
        tiny=(4, 96),
        set="cached",
    ),
)
