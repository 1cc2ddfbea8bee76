"""A template is a class and a row of the registry: nothing else of the scheduler knows it, and what it builds
runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal, Unpack

import pytest
import torch
from declared import ScheduleFields, schedule
from torch import Tensor

from coilwork_ir.index import as_int
from coilwork_ir.kernels import Candidate, Kernel, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.kernels.text import format_schedule, parse_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.matrix_products import MatrixProduct
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.mapping.product_blocks import Blocks, get_contraction, name_blocks, propose_candidates
from coilwork_ir.scalar import find_contraction
from coilwork_ir.target import TARGETS, Target
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote
from coilwork_scheduler.contractions.registry import REGISTRY

GRAPH = """graph @g {
  input %x: f32[6, TERMS]
  input %w: f32[TERMS, 7]
  %y: f32[6, 7] = contract f32 [i0: 6, i1: 7 | r0: TERMS] {
    t0 = load %x[i0, r0] : f32
    t1 = load %w[r0, i1] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }
  return (%y)
}
"""


@dataclass(frozen=True, slots=True)
class InFourPieces:
    """A template: products of many terms, whose sums are added in four pieces."""

    context: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "kernel"
    loss: ClassVar[str] = "one piece takes as long"

    def claims(self, product: MatrixProduct, target: Target) -> str | None:
        terms = as_int(product.sizes[2])
        if not product.is_plain or terms is None or terms % 4:
            return "the terms have no four equal pieces"
        return None

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        us = 0.0 if self.context.sizes.value(product.sizes[2]) >= 64 else inf
        return Quote(us=us, reason="four pieces are four times as fast", numbers={"pieces": 4.0})

    def least_gain_us(self, product: MatrixProduct, rival: Quote) -> float:
        return 0.0

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        return self.context.sums(target).build(product.node, pieces=4)


@dataclass(frozen=True, slots=True)
class InItsOwnBlocks(InFourPieces):
    """A template that also says in which blocks the pieces run."""

    def name_blocks(self, kernel: Kernel, target: Target) -> tuple[Candidate, ...]:
        if find_contraction(list_kernel_roots(kernel)) is None:
            return ()
        factors = get_contraction(kernel)
        sides = [
            Blocks(rows=16, columns=n, depth=16, warps=2, stages=1, reason=f"{n} at a time") for n in (32, 16)
        ]
        return tuple(name_blocks(kernel, factors, one) for one in sides)


def scheduled(terms: int, target: str, **options: Unpack[ScheduleFields]) -> Schedule:
    graph = parse_graph(GRAPH.replace("TERMS", str(terms)))
    made = schedule(
        graph,
        TARGETS[target],
        ScheduleOptions(**options),
        registry=replace(REGISTRY, products=(*REGISTRY.products, InFourPieces)),
    )
    verify_schedule(made)
    return made


def calls(made: Schedule) -> list[str]:
    return [step.target for step in made.steps if isinstance(step, Extern)]


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx512"])
def test_a_template_of_the_registry_is_chosen_where_it_quotes_least(target: str) -> None:
    made = scheduled(64, target)
    assert calls(made) == []
    (decision,) = [one for one in made.decisions if one.rule == "contraction"]
    assert decision.accepted and decision.reason == "four pieces are four times as fast"
    assert dict(decision.numbers)["pieces"] == 4
    contractions = [find_contraction(list_kernel_roots(kernel)) for kernel in made.kernels]
    if target == "sm_90":
        # the template's pieces are a contraction for matrix units like any other
        assert sum(found is not None for found in contractions) == 1
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(6, 64, generator=generator), torch.randn(64, 7, generator=generator)
    (found,) = interpret_schedule(made, [x, w])
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found, x @ w)


def test_the_blocks_that_a_template_names_go_with_the_kernel_of_its_sums() -> None:
    graph = parse_graph(GRAPH.replace("TERMS", "64"))
    registry = replace(REGISTRY, products=(*REGISTRY.products, InItsOwnBlocks))
    made = schedule(graph, TARGETS["sm_90"], registry=registry)
    verify_schedule(made)
    (product,) = [one for one in made.kernels if find_contraction(list_kernel_roots(one)) is not None]
    (proposal,) = made.proposals
    assert proposal.kernel == product.name
    assert [one.reason for one in proposal.candidates] == ["32 at a time", "16 at a time"]
    assert "by 32" in proposal.candidates[0].directives and "warps 2" in proposal.candidates[0].directives
    assert parse_schedule(format_schedule(made)) == made
    (decision,) = [one for one in made.decisions if one.rule == "blocks"]
    assert decision.reason == "32 at a time" and dict(decision.numbers) == {"candidates": 2.0}
    # on a CPU the pieces are a reduction, for which it names none
    assert schedule(graph, TARGETS["x86-64-avx512"], registry=registry).proposals == ()


def test_kernels_that_run_in_other_blocks_are_others() -> None:
    graph = parse_graph(GRAPH.replace("TERMS", "64"))
    names = set()
    for row in (InFourPieces, InItsOwnBlocks):
        registry = replace(REGISTRY, products=(*REGISTRY.products, row))
        made = schedule(graph, TARGETS["sm_90"], registry=registry)
        names |= {k.name for k in made.kernels if find_contraction(list_kernel_roots(k)) is not None}
    assert len(names) == 2


def test_templates_of_the_registry_name_the_blocks_that_products_run_in_anyway() -> None:
    made = schedule(
        parse_graph(GRAPH.replace("TERMS", "64")), TARGETS["sm_90"], ScheduleOptions(contractions="generated")
    )
    (kernel,) = [one for one in made.kernels if find_contraction(list_kernel_roots(one)) is not None]
    (proposal,) = made.proposals
    assert proposal.candidates == propose_candidates(kernel, TARGETS["sm_90"])


def test_elsewhere_others_are() -> None:
    for terms in (66, 32):
        made = scheduled(terms, "sm_90")
        assert calls(made) == ["aten.mm.default"]
    assert calls(scheduled(64, "sm_90", contractions="aten")) == ["aten.mm.default"]


def test_its_refusal_is_not_asked_for_a_price() -> None:
    """A quote of what a row does not claim is never looked at."""

    @dataclass(frozen=True, slots=True)
    class Careless(InFourPieces):
        def claims(self, product: MatrixProduct, target: Target) -> str | None:
            return "never"

        def quote(self, product: MatrixProduct, target: Target) -> Quote:
            raise AssertionError("it did not claim this")

    graph = parse_graph(GRAPH.replace("TERMS", "64"))
    registry = replace(REGISTRY, products=(*REGISTRY.products, Careless))
    for choice in ("auto", "aten", "generated"):
        options = replace(ScheduleOptions(), contractions=choice)
        made = schedule(graph, TARGETS["sm_90"], options, registry=registry)
        assert (calls(made) == []) is (choice == "generated")
