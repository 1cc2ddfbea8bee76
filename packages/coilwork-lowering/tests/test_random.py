"""Random numbers: the published function, its distribution, and what repeats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_against_eager import externs, trace_and_lower

from coilwork_ir.dtypes import DType
from coilwork_ir.interpretation.scalars import Domain, Evaluator
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.scalar import const
from coilwork_lowering import LoweringOptions
from coilwork_lowering.ops.random import philox

aten = torch.ops.aten
GENERATED = LoweringOptions(random="generated")
SEED = ["aten.randint.low"]


def run(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Any]:
    lowered = trace_and_lower(function, inputs, options=GENERATED)
    assert externs(lowered.graph) == SEED
    return list(interpret_graph(lowered.graph, inputs, lowered.constants))


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0), 0, (0xFF1DAE59, 0x6CD10DF2)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
        ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
    ],
)
def test_philox_gives_the_published_words(counter: tuple[int, int], key: int, words: tuple[int, int]) -> None:
    first, second = (const(word, DType.U32) for word in counter)
    evaluator = Evaluator(Domain((), {}), {})
    found = [int(evaluator.full(w).item()) for w in philox((first, second), const(key, DType.U32))]
    assert found == list(words)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_what_it_says(p: float, dtype: torch.dtype) -> None:
    x = torch.full((100, 200), 3.0, dtype=dtype)
    out, mask = run(lambda a: aten.native_dropout(a, p, True), x)
    assert mask.dtype == torch.bool and out.dtype == dtype
    # five standard deviations
    assert mask.float().mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p) / x.numel()) ** 0.5)
    wanted = torch.where(mask, 3.0 / (1 - p), 0.0).to(dtype)
    torch.testing.assert_close(out, wanted)
    # rows and columns are not alike
    assert mask.float().mean(0).std() < 0.1 > mask.float().mean(1).std()
    assert not torch.equal(mask[0], mask[1]) and not torch.equal(mask[:, 0], mask[:, 1])


def test_dropout_keeps_all_or_nothing() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), 2.0])
    out, mask = run(lambda a: aten.native_dropout(a, 0.0, True), x)
    assert mask.all()
    torch.testing.assert_close(out, x, equal_nan=True)
    out, mask = run(lambda a: aten.native_dropout(a, 1.0, True), x)
    assert not mask.any()
    torch.testing.assert_close(out, x * 0, equal_nan=True)


def test_operators_draw_different_numbers_from_one_seed() -> None:
    x = torch.ones(1000)
    first, second = run(lambda a: (torch.rand_like(a), torch.rand_like(a)), x)
    assert first.min() >= 0 and first.max() < 1
    assert first.mean().item() == pytest.approx(0.5, abs=0.05)
    assert first.var().item() == pytest.approx(1 / 12, abs=0.015)
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 0.2
    assert abs(torch.corrcoef(torch.stack([first[1:], first[:-1]]))[0, 1].item()) < 0.2


def test_seeds_come_from_the_generator() -> None:
    x, found = torch.ones(100), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(run(lambda a: aten.bernoulli.p(a, 0.3), x)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_what_eager_draws() -> None:
    x = torch.ones(8)
    for options in (LoweringOptions(), LoweringOptions(random="eager")):
        lowered = trace_and_lower(lambda a: aten.native_dropout(a, 0.5, True), (x,), options=options)
        assert externs(lowered.graph) == ["aten.native_dropout.default"]
    for function in (lambda a: torch.rand_like(a, dtype=torch.float64), lambda a: torch.multinomial(a, 2)):
        lowered = trace_and_lower(function, (x,), options=GENERATED)
        assert externs(lowered.graph) != SEED
