"""Random mappings: what else a planned launch could do, drawn per nest, legal ones and others."""

from __future__ import annotations

import random
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace

from coilwork_cpp.codegen import Planned, get_capabilities, plan_kernel, write_planned
from coilwork_cpp.options import parse_options
from coilwork_cpp.planning.plan import plan_of
from coilwork_cpp.planning.reduction_passes import list_passes
from coilwork_cpp.planning.regions import Region, list_regions
from coilwork_ir.conformance import Case, make_random_kernel
from coilwork_ir.errors import CoilworkIRError, EmitError, VerifyError
from coilwork_ir.index import as_int, get_extent
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import index_values
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.mapping import (
    Accumulators,
    Block,
    Directive,
    Fold,
    Functions,
    Grain,
    Mapping,
    Nest,
    Peel,
    Prefetch,
    Save,
    Sequential,
    Threads,
    Transpose,
    Vector,
    Warps,
    format_mapping,
    verify_mapping,
)
from coilwork_ir.scalar import Const
from coilwork_ir.target import Capabilities, Target

TRIES = 60
# Cases that the kit does not have: the first elements of sorted rows, and a kernel in pieces that share
# units.
FIRST = """kernel @first fast {
  range x0: `4` parallel
  range r0: `64` reduction
  arg in0: f32 in span `256`
  arg out0: f32 out span `36`
  body {
    t0 = load %in0[r0 + 64*x0] : f32
    t1 = sort 0 (t0) along r0 descending
    t2 = index [r0]
    t3 = index [9]
    t4 = lt(t2, t3)
    store %out0[r0 + 9*x0] = t1 mask t4
  }
}
"""
MORE = (Case(name="first", text=FIRST), Case(name="parts", text=format_kernel(make_random_kernel(1144))))


@dataclass(slots=True)
class RandomlyMapped:
    """The C++ generator with mappings drawn at random; implements `coilwork_ir.backend.Codegen`.

    Attributes:
        seed: equal seeds draw equal mappings.
        drawn: texts of the mappings that were written.
        refused: codes of the errors by which others were refused.
    """

    seed: int
    drawn: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "cpp"

    def supports(self, target: Target) -> bool:
        return target.kind == "cpu"

    def capabilities(self, target: Target) -> Capabilities:
        return get_capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: MappingOf[str, object]) -> KernelSource:
        planned = plan_kernel(kernel, target, parse_options(options))
        rng = random.Random(f"{self.seed} {kernel.name}")
        for _ in range(TRIES):
            drawn = draw(rng, planned)
            try:
                for piece, mapping in drawn.pieces:
                    verify_mapping(piece, mapping)
                source = write_planned(drawn, target)
            except (VerifyError, EmitError) as error:
                if not error.code.startswith("mapping"):
                    raise
                self.refused.append(error.code)
                continue
            self.drawn[kernel.name] = "\n".join(format_mapping(mapping) for _, mapping in drawn.pieces)
            return source
        return write_planned(planned, target)


def draw(rng: random.Random, planned: Planned) -> Planned:
    """`planned` with every nest run another way, most often a legal one."""
    common: tuple[Directive, ...] = planned.common
    if rng.random() < 0.2:
        # what pieces share, or is kept of a row, fits little else
        return _regrained(planned, Grain(instructions=rng.choice([1, 1000, 65536]), at=rng.randint(1, 50)))
    if rng.random() < 0.2:
        common = (Functions(kind="exact"), *common[1:])
    phases = []
    for kernels, mappings in zip(planned.launch.phases, planned.mappings, strict=True):
        found = []
        for kernel, mapping in zip(kernels, mappings, strict=True):
            regions = list_regions(kernel, mapping.nests)
            nests = [
                _nest(rng, kernel, region, nest, common)
                for nest, region in zip(mapping.nests, regions, strict=True)
            ]
            found.append(Mapping(directives=common, nests=tuple(_grouped(rng, nests))))
        phases.append(tuple(found))
    return replace(planned, common=common, mappings=tuple(phases))


def _regrained(planned: Planned, grain: Grain) -> Planned:
    """`planned` with another number of instructions that are worth a thread."""

    def change(nest: Nest) -> Nest:
        return replace(nest, directives=tuple(grain if isinstance(d, Grain) else d for d in nest.directives))

    phases = tuple(
        tuple(replace(mapping, nests=tuple(map(change, mapping.nests))) for mapping in mappings)
        for mappings in planned.mappings
    )
    return replace(planned, mappings=phases)


def _grouped(rng: random.Random, nests: list[Nest]) -> list[Nest]:
    """Now and then nests in another order, or the stores of one in two nests."""
    found = list(nests)
    if rng.random() < 0.2:
        rng.shuffle(found)
    if rng.random() < 0.3:
        at = rng.randrange(len(found))
        nest = found[at]
        if len(nest.stores) > 1:
            cut = rng.randrange(1, len(nest.stores))
            found[at : at + 1] = [
                replace(nest, stores=nest.stores[:cut]),
                replace(nest, stores=nest.stores[cut:]),
            ]
    return found


def _nest(
    rng: random.Random, kernel: Kernel, region: Region, nest: Nest, common: tuple[Directive, ...]
) -> Nest:
    parallel = [r.name for r in region.parallel]
    serial = [r.name for r in region.serial]
    vector = rng.choice([*parallel, *parallel, None])
    directives: list[Directive] = [] if vector is None else [Vector(range=vector)]
    shared = [name for name in parallel if rng.random() < 0.6 and name != vector]
    rng.shuffle(shared)
    blocks: dict[str, int] = {}
    walked = [name for name in parallel if name not in shared and name != vector]
    if vector is not None and (rng.random() < 0.7 or region.reduction):
        shared.insert(rng.randint(0, len(shared)), vector)
        blocks[vector] = rng.choice([1, 3, 16, 64, 100, 4096])
    elif shared and not region.reduction and rng.random() < 0.3:
        inner = rng.choice(shared)
        blocks[inner] = rng.choice([1, 2, 7, 64])
        walked.append(inner)
    rng.shuffle(walked)
    inside = _merged(rng, walked, serial)
    if vector is not None and not region.reduction and rng.random() < 0.2:
        directives += _tiled(rng, parallel, vector, shared, blocks, inside)
    together = shared == [vector] and bool(inside) and not region.reduction and rng.random() < 0.7
    directives.append(Threads(ranges=tuple(shared), together=together))
    directives += [Block(range=name, by=by) for name, by in blocks.items()]
    if inside:
        directives.append(Sequential(ranges=tuple(inside)))
    directives.append(Grain(instructions=rng.choice([1, 1000, 65536]), at=rng.randint(1, 50)))
    if region.reduction:
        said = replace(nest, directives=tuple(directives))
        directives += _passes(rng, kernel, region, said, common, vector)
    if rng.random() < 0.05:
        directives.append(Warps(count=4))
    return replace(nest, directives=tuple(directives))


def _merged(rng: random.Random, free: list[str], ordered: list[str]) -> list[str]:
    """`free` in their order anywhere between `ordered`; now and then one too few."""
    found = list(ordered)
    for name in free:
        found.insert(rng.randint(0, len(found)), name)
    if found and rng.random() < 0.03:
        found.pop()
    return found


def _tiled(
    rng: random.Random,
    parallel: list[str],
    vector: str,
    shared: list[str],
    blocks: dict[str, int],
    inside: list[str],
) -> list[Directive]:
    """Tiles of the vector and another range, everything else shared point by point."""
    others = [name for name in parallel if name != vector]
    if not others:
        return []
    across = rng.choice(others)
    by = (rng.choice([8, 32, 100]), rng.choice([16, 64, 70]))
    shared[:] = [*others, vector]
    blocks.clear()
    blocks.update({across: by[0], vector: by[1]})
    inside[:] = [across]
    return [Transpose(ranges=(across, vector), by=by, moves=rng.random() < 0.3)]


def _passes(
    rng: random.Random,
    kernel: Kernel,
    region: Region,
    nest: Nest,
    common: tuple[Directive, ...],
    vector: str | None,
) -> list[Directive]:
    try:
        passes, _ = list_passes(region, kernel, plan_of(kernel, region, nest, common))
    except CoilworkIRError:
        return []
    found: list[Directive] = []
    inner = region.reduction[-1]
    names = [r.name for r in region.reduction]
    length = as_int(get_extent(inner))
    arguments = [arg.name for arg in kernel.args]
    for number, step in enumerate(passes):
        chance = rng.random
        lanes = rng.choice([2, 4, 8, 16, 64])
        laned = vector is None and bool(step.reduces) and chance() < 0.8
        folded = chance() < 0.4
        if laned:
            found.append(Accumulators(count=lanes, step=number))
        if (laned or vector is not None) and folded:
            found.append(Fold(range=rng.choice(names), by=rng.choice([1, 5, 64, 4096]), step=number))
        elif laned and length is not None and length % lanes and chance() < 0.7:
            found.append(Peel(range=inner.name, count=length % lanes, step=number))
        if laned and chance() < 0.2:
            found.append(Prefetch(args=(rng.choice(arguments),), step=number))
        if len(names) > 1 and chance() < 0.15:
            by = (rng.choice([3, 64]), rng.choice([16, 40]))
            found.append(Transpose(ranges=(rng.choice(names[:-1]), inner.name), by=by, step=number))
        if vector is None and len(passes) > 1 and chance() < 0.4:
            texts = {value: name for name, value in index_values(kernel).items()}
            reached = [v for v in step.roots if v in texts and not isinstance(v, Const)]
            if reached:
                found.append(Save(values=(texts[rng.choice(reached)],), step=number))
    return found
