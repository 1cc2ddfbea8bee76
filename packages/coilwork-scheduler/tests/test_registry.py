"""Implementations that a back end brings are asked first, about its own devices only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coilwork_ir.loops import Extern, Node
from coilwork_ir.loops.matrix_products import MatrixProduct
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.target import Target, Targets, get_target
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_scheduler.contractions.implementations import (
    AtenCall,
    ImplementationContext,
    NamesBlocks,
    OddColumnSums,
    Quote,
)
from coilwork_scheduler.contractions.registry import (
    REGISTRY,
    ImplementationProvider,
    Registry,
    add_implementations,
)
from coilwork_scheduler.cost_model import RooflineCost
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.options import ContractionChoice, make_size_hints

PRODUCT = """graph @g {
  input %x: f32[64, 32]
  input %w: f32[32, 16]
  %y: f32[64, 16] = contract f32 [i0: 64, i1: 16 | r0: 32] {
    t0 = load %x[i0, r0] : f32
    t1 = load %w[r0, i1] : f32
    t2 = parameter 0 : f32
    multiply t0, t1
    yield t2
  }
  return (%y)
}"""


GPU = get_target("sm_90")
NOWHERE = ImplementationContext(
    graph=parse_graph(PRODUCT),
    facts=analyse(parse_graph(PRODUCT)),
    views={},
    name=lambda wanted: wanted,
    targets=Targets(main=GPU),
    model=RooflineCost(target=GPU),
    sizes=make_size_hints(ScheduleOptions()),
    options=ScheduleOptions(),
)


class Theirs(AtenCall):
    """A library of somebody else's, twice as fast as ATen."""

    __slots__ = ()

    def quote(self, product: MatrixProduct, target: Target) -> Quote:
        return Quote(us=AtenCall.quote(self, product, target).us / 2)

    def build(self, product: MatrixProduct, target: Target) -> tuple[Node, ...]:
        (call,) = AtenCall.build(self, product, target)
        assert isinstance(call, Extern)
        return (replace(call, target="theirs.mm.default", out_overload="theirs.mm.out", family="custom"),)


class Backend:
    def implementations(self, target: Target) -> Registry:
        return Registry(products=(Theirs,))


@pytest.mark.parametrize(("kind", "called"), [("theirs", "theirs.mm.default"), ("cuda", "aten.mm.default")])
@pytest.mark.parametrize("asked", ["auto", "aten"])
def test_they_serve_their_own_devices_alone(kind: str, called: str, asked: ContractionChoice) -> None:
    backend = Backend()
    assert isinstance(backend, ImplementationProvider)
    device = replace(get_target("sm_90"), kind=kind)
    registry = add_implementations(REGISTRY, backend.implementations(device), ("theirs",))
    made = schedule(parse_graph(PRODUCT), device, ScheduleOptions(contractions=asked), registry=registry)
    assert [step.target for step in made.steps if isinstance(step, Extern)] == [called]


def test_nothing_brought_leaves_the_registry_as_it_is() -> None:
    assert add_implementations(REGISTRY, Registry(), ("theirs",)) == REGISTRY


def test_a_brought_kernel_still_names_its_blocks() -> None:
    def make(context: ImplementationContext) -> OddColumnSums:
        return OddColumnSums(context)

    registry = add_implementations(REGISTRY, Registry(products=(make, Theirs)), ("theirs",))
    kernel, library = (row(NOWHERE) for row in registry.products[:2])
    assert isinstance(kernel, NamesBlocks) and not isinstance(library, NamesBlocks)
    assert (kernel.kind, library.kind) == ("kernel", "library")
