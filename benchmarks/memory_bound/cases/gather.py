"""Reads and writes at computed places: embeddings, scattered additions, buckets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes

F32 = torch.float32


def tokens(make: Make, vocabulary: int, width: int, count: int) -> Arguments:
    return make.integers(count, below=vocabulary), make.normal(vocabulary, width)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    return functional.embedding(ids, weight)


def embedding_reads(ids: Tensor, weight: Tensor) -> int:
    """Each row that occurs once."""
    rows: int = ids.unique().numel()
    return count_stored_bytes(ids) + rows * count_stored_bytes(weight[0])


def additions(make: Make, n: int, width: int, count: int) -> Arguments:
    target = make.normal(n, width, dtype=F32)
    return target, make.integers(count, below=n), make.normal(count, width, dtype=F32)


def index_add(target: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return target.index_add(0, index, source)


def scattered(make: Make, n: int, width: int, count: int) -> Arguments:
    target = make.normal(n, width, dtype=F32)
    return target, make.integers(count, width, below=n), make.normal(count, width, dtype=F32)


def scatter_add(target: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return target.scatter_add(0, index, source)


def scatter_amax(target: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return target.scatter_reduce(0, index, source, "amax")


def values_and_bounds(make: Make, n: int, m: int, bounds: int) -> Arguments:
    boundaries = make.normal(bounds, dtype=F32)
    return make.normal(n, m, dtype=F32), boundaries.sort().values if make.values else boundaries


def bucketize(x: Tensor, boundaries: Tensor) -> Tensor:
    return torch.bucketize(x, boundaries, out_int32=True)


def selection(make: Make, n: int, m: int, k: int) -> Arguments:
    return make.normal(n, m), make.integers(n, k, below=m)


def gathered(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index)


def permuted_rows(make: Make, n: int, m: int) -> Arguments:
    order = torch.randperm(n, device=make.device) if make.values else make.integers(n, below=n)
    return make.normal(n, m), order


def take_rows(x: Tensor, order: Tensor) -> Tensor:
    return x[order]


CASES = (
    Case(
        name="embedding fwd+bwd 50257x768, 16384 tokens",
        function=embedding,
        inputs=tokens,
        size=(50257, 768, 16384),
        tiny=(50, 16, 30),
        train=True,
        reads=embedding_reads,
    ),
    Case(
        name="index_add 65536x512, 131072 rows f32",
        function=index_add,
        inputs=additions,
        size=(65536, 512, 131072),
        tiny=(20, 8, 30),
    ),
    Case(
        name="scatter_add 65536x256, 65536 rows f32",
        function=scatter_add,
        inputs=scattered,
        size=(65536, 256, 65536),
        tiny=(20, 8, 30),
    ),
    Case(
        name="bucketize 8192x8192 into 255 f32",
        function=bucketize,
        inputs=values_and_bounds,
        size=(8192, 8192, 255),
        tiny=(5, 40, 15),
    ),
    Case(
        name="embedding fwd 128256x4096, 32768 tokens",
        function=embedding,
        inputs=tokens,
        size=(128256, 4096, 32768),
        tiny=(50, 16, 30),
        reads=embedding_reads,
        set="more",
    ),
    Case(
        name="embedding fwd+bwd 32000x4096, 16384 tokens",
        function=embedding,
        inputs=tokens,
        size=(32000, 4096, 16384),
        tiny=(50, 16, 30),
        train=True,
        reads=embedding_reads,
        set="more",
    ),
    Case(
        name="gather along rows 16384x8192, half",
        function=gathered,
        inputs=selection,
        size=(16384, 8192, 4096),
        tiny=(5, 40, 20),
        set="more",
    ),
    Case(
        name="rows in another order 131072x1024",
        function=take_rows,
        inputs=permuted_rows,
        size=(131072, 1024),
        tiny=(30, 16),
        set="more",
    ),
    Case(
        name="scatter_reduce amax 65536x256, 65536 rows f32",
        function=scatter_amax,
        inputs=scattered,
        size=(65536, 256, 65536),
        tiny=(20, 8, 30),
        set="more",
    ),
    Case(
        name="embedding fwd 8192x1024, 4096 tokens in cache",
        function=embedding,
        inputs=tokens,
        size=(8192, 1024, 4096),
        tiny=(50, 16, 30),
        reads=embedding_reads,
        set="cached",
    ),
)
