"""Features of recommenders and graphs: hashed, averaged, crossed, gathered at the ends of edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes, first_bytes
from benchmarks.memory_bound.cases.inputs import normal
from benchmarks.memory_bound.cases.states import bag_bytes, bags


def bag_means(table: Tensor, index: Tensor) -> Tensor:
    return functional.embedding_bag(index, table, mode="mean")


def crossed(x: Tensor) -> Tensor:
    wide = x.float()
    return 0.5 * (wide.sum(1).square() - wide.square().sum(1)).sum(-1)


def ids(make: Make, n: int, m: int) -> Arguments:
    return (make.integers(n, m, below=1 << 40),)


def hashed(x: Tensor) -> Tensor:
    mixed = x * 0x9E3779B1
    mixed = mixed ^ (mixed >> 15)
    return (mixed * 0x85EBCA6B).remainder(1000003)


def edges(make: Make, nodes: int, count: int, width: int) -> Arguments:
    return make.normal(nodes, width), make.integers(count, below=nodes), make.integers(count, below=nodes)


def edge_features(x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
    return torch.cat([x[targets], x[sources] - x[targets]], -1)


def edge_bytes(x: Tensor, sources: Tensor, targets: Tensor) -> int:
    return count_stored_bytes(x) + count_stored_bytes(sources) + count_stored_bytes(targets)


CASES = (
    Case(
        name="means of bags of 20, 1000000x64",
        function=bag_means,
        inputs=bags,
        size=(1_000_000, 64, 131072, 20),
        tiny=(30, 8, 5, 3),
        reads=bag_bytes,
        set="further",
    ),
    Case(
        name="crossed features fwd+bwd 131072x26x48",
        function=crossed,
        inputs=normal,
        size=(131072, 26, 48),
        tiny=(5, 3, 8),
        train=True,
        again=first_bytes,
        why="the backward pass reads the inputs again",
        set="further",
    ),
    Case(
        name="hashed ids 4096x8192 i64",
        function=hashed,
        inputs=ids,
        size=(4096, 8192),
        tiny=(5, 9),
        set="further",
    ),
    Case(
        name="features of 2M edges 100000x96",
        function=edge_features,
        inputs=edges,
        size=(100_000, 1 << 21, 96),
        tiny=(7, 9, 8),
        reads=edge_bytes,
        set="further",
    ),
)
