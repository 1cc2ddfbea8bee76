"""Random numbers have the distribution that they should, and are left to eager where it has a say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch.distributions import Cauchy, Exponential, LogNormal, Normal, Uniform

from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_lowering import LoweringOptions

aten = torch.ops.aten
GENERATED = LoweringOptions(random="generated")
SEED = ["aten.randint.low"]
SHAPE = (40, 500)


def run(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.Tensor:
    lowered = trace_and_lower(function, inputs, options=GENERATED)
    assert externs(lowered.graph) == SEED
    torch.manual_seed(3)
    (found,) = interpret_graph(lowered.graph, inputs, lowered.constants)
    assert isinstance(found, torch.Tensor)
    return found


def distance(values: torch.Tensor, probability: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Kolmogorov's, from the sample to a distribution function, times the root of the sample's size."""
    ordered = values.flatten().double().sort().values
    ranks = torch.arange(1, len(ordered) + 1) / len(ordered)
    return (probability(ordered) - ranks).abs().max().item() * len(ordered) ** 0.5


CONTINUOUS: dict[str, tuple[Callable[[torch.Tensor], Any], Any]] = {
    "randn": (lambda x: torch.randn(SHAPE), Normal(0.0, 1.0)),
    "randn_like": (lambda x: torch.randn_like(x.t()).t(), Normal(0.0, 1.0)),
    "normal_": (lambda x: aten.normal_functional(x, 2.0, 0.5), Normal(2.0, 0.5)),
    "normal": (lambda x: torch.normal(-1.0, 3.0, SHAPE), Normal(-1.0, 3.0)),
    "normal about": (lambda x: torch.normal(x, 2.0) - x, Normal(0.0, 2.0)),
    "log_normal_": (lambda x: aten.log_normal(x, 0.5, 0.25), LogNormal(0.5, 0.25)),
    "uniform_": (lambda x: aten.uniform(x, -2.0, 3.0), Uniform(-2.0, 3.0, validate_args=False)),
    "exponential_": (lambda x: aten.exponential(x, 1.5), Exponential(1.5)),
    "cauchy_": (lambda x: aten.cauchy(x, 1.0, 2.0), Cauchy(1.0, 2.0)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_samples_have_their_distribution(name: str) -> None:
    function, wanted = CONTINUOUS[name]
    found = run(function, torch.linspace(-1, 1, 20_000).view(SHAPE))
    assert found.dtype is torch.float32 and found.shape == SHAPE
    # exceeded by one sample in 10**5
    assert distance(found, wanted.cdf) < 2.5
    rows = torch.corrcoef(found.clamp(-5, 5))
    assert (rows - torch.eye(len(rows))).abs().max() < 0.3


def test_pairs_of_normal_numbers_are_independent() -> None:
    found = run(lambda x: torch.randn(512 * 64), torch.ones(1)).view(64, 2, 256)
    first, second = found[:, 0].flatten(), found[:, 1].flatten()
    assert abs((first * second).mean().item()) < 5 / len(first) ** 0.5
    assert abs((first.square() * second.square()).mean().item() - 1) < 0.2
    assert found.abs().max() > 3.5


def test_integers_are_equally_likely() -> None:
    found = run(lambda x: torch.randint(-3, 5, SHAPE), torch.ones(1))
    assert found.dtype is torch.int64
    counts = torch.bincount(found.flatten() + 3, minlength=8)
    assert len(counts) == 8
    assert (counts - 2500).abs().max() < 5 * math.sqrt(2500)
    narrow = run(lambda x: torch.randint_like(x, 2**31), torch.zeros(1000, dtype=torch.int64))
    assert narrow.min() >= 0 and narrow.max() > 2**30
    assert run(lambda x: torch.randint(7, 8, (5,), dtype=torch.int32), torch.ones(1)).tolist() == [7] * 5


def test_geometric_samples_have_their_probabilities() -> None:
    found = run(lambda x: aten.geometric(x, 0.3), torch.ones(SHAPE))
    assert found.min() == 1 and torch.equal(found, found.round())
    for k in (1, 2, 3):
        share = (found == k).double().mean().item()
        assert share == pytest.approx(0.3 * 0.7 ** (k - 1), abs=0.02)


def test_samples_of_16_bits_are_normal() -> None:
    found = run(lambda x: torch.randn_like(x), torch.ones(SHAPE, dtype=torch.bfloat16))
    assert found.dtype is torch.bfloat16 and distance(found, Normal(0.0, 1.0).cdf) < 4


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.randn_like(x, dtype=torch.float64),
        lambda x: torch.normal(x, x.abs()),
        lambda x: aten.uniform(x.bfloat16()),
        lambda x: torch.randint(0, 1 << 40, (3,)),
        lambda x: torch.randn(0),
    ],
)
def test_what_is_left_to_eager(function: Callable[[torch.Tensor], Any]) -> None:
    lowered = trace_and_lower(function, (torch.ones(4),), options=GENERATED)
    assert "seed" not in str(lowered.graph)
    assert [name for name in externs(lowered.graph) if name.startswith("aten.")]


def test_eager_draws_where_it_should() -> None:
    for options in (LoweringOptions(), LoweringOptions(random="eager")):
        lowered = trace_and_lower(lambda x: torch.randn_like(x), (torch.ones(4),), options=options)
        assert externs(lowered.graph) == ["aten.randn_like.default"]
