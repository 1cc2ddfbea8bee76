"""Random numbers: the published function, its distribution, and what repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from lowering_against_eager import externs, trace_and_lower
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.dtypes import DType
from coilwork_ir.interpretation.scalars import Domain, Evaluator
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.scalar import const
from coilwork_lowering import Lowered, LoweringOptions, lower
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.size_table import SizeTable
from coilwork_lowering.ops import random
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


# Operators that generated code draws for, and what they are called with beside a tensor.
DRAWN: dict[str, Callable[[torch.Tensor], Any]] = {
    "aten.native_dropout": lambda x: aten.native_dropout(x, 0.5, True),
    "aten.rand": lambda x: torch.rand(x.shape),
    "aten.rand_like": torch.rand_like,
    "aten.bernoulli": lambda x: aten.bernoulli.p(x, 0.3),
    "aten.randn": lambda x: torch.randn(x.shape),
    "aten.randn_like": torch.randn_like,
    "aten.normal_functional": lambda x: aten.normal_functional(x, 1.0, 2.0),
    "aten.normal": lambda x: torch.normal(x, 2.0),
    "aten.log_normal": aten.log_normal,
    "aten.uniform": lambda x: aten.uniform(x, -1.0, 1.0),
    "aten.exponential": aten.exponential,
    "aten.cauchy": aten.cauchy,
    "aten.geometric": lambda x: aten.geometric(x, 0.25),
    "aten.randint": lambda x: torch.randint(0, 9, x.shape),
    "aten.randint_like": lambda x: torch.randint_like(x, 9, dtype=torch.int64),
}


def test_every_operator_with_a_stream_is_tried() -> None:
    drawn = {target.rpartition(".")[0] for rule in random.RULES for target in rule.targets}
    assert {name for name in drawn if name.startswith("aten.")} == set(DRAWN)


# What draws before and behind it.
AROUND = ("aten.log_normal", "aten.native_dropout", "aten.cauchy", "aten.uniform")


@pytest.mark.parametrize("before", [0, 1], ids=["before all others", "between others"])
@pytest.mark.parametrize("name", DRAWN)
def test_numbers_stay_where_one_operator_falls_back(name: str, before: int) -> None:
    """Left to ATen by its name, or in one place."""
    x = torch.linspace(0.1, 1.0, 64)
    around = [other for other in AROUND if other != name]

    def function(a: torch.Tensor) -> list[torch.Tensor]:
        made = [DRAWN[other](a) for other in (*around[:before], name, *around[before:])]
        return [one[1] if isinstance(one, tuple) else one for one in made]

    gm = make_fx(function, tracing_mode="fake")(x)
    (node,) = (node for node in gm.graph.nodes if str(node.target).startswith(f"{name}."))
    target = str(node.target)
    by_name = replace(GENERATED, fallback=(name,))
    in_place = replace(GENERATED, fallback=(target,), fallback_nodes=((target, node.name),))
    wanted = evaluate(lower(gm, name="graph", options=GENERATED), x)
    for options in (by_name, in_place):
        lowered = lower(gm, name="graph", options=options)
        assert len(externs(lowered.graph)) == 2
        found = evaluate(lowered, x)
        assert not torch.equal(found[before], wanted[before])
        for number in {*range(len(wanted))} - {before}:
            torch.testing.assert_close(found[number], wanted[number], rtol=0, atol=0)


def evaluate(lowered: Lowered, x: torch.Tensor) -> list[Any]:
    torch.manual_seed(5)
    return list(interpret_graph(lowered.graph, (x,), lowered.constants))


def test_numbers_that_were_not_made_after_all_have_no_seed() -> None:
    """What a rule has begun and given up leaves nothing behind that others would read."""
    builder = Builder(options=GENERATED, sizes=SizeTable())
    mark = builder.mark()
    random.graph_seed(builder, "cpu")
    builder.rewind(mark)
    random.graph_seed(builder, "cpu")
    assert len(builder.nodes) == 1
