"""`schedule`: a graph of loops becomes kernels and steps in order.

First passes from graph to graph, then stages into groups, then groups into a schedule. `PASSES` is the table,
with a reason for each pass. `ORDER` says what must come before what, with a reason for each place, and a test
holds the table to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.kernels import Schedule
from coilwork_ir.loops import Graph, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.target import Target, Targets
from coilwork_scheduler.assemble import (
    Assembly,
    Context,
    build_kernels,
    generalize_kernels,
    make_schedule,
    name_blocks,
    order_works,
    share_launches,
)
from coilwork_scheduler.choose_implementations import implement_attention, implement_contractions
from coilwork_scheduler.chunking.chunk_barrier import find_chunk_barrier
from coilwork_scheduler.chunking.chunk_products import chunk_products
from coilwork_scheduler.contractions.implementations import NamesBlocks
from coilwork_scheduler.contractions.registry import REGISTRY, Registry
from coilwork_scheduler.cost_model import CostModel, RooflineCost
from coilwork_scheduler.dependence import Dependence, analyse, remove_dead
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.fusion.fuse import Fuser
from coilwork_scheduler.fusion.profitability import FusionContext
from coilwork_scheduler.fusion_group import Group, Stage, group_of, make_stage
from coilwork_scheduler.inlining.inline import inline
from coilwork_scheduler.inlining.template_fusion import fuse_into_templates
from coilwork_scheduler.kernels.rounding import NO_DECISIONS, find_decisions, has_low_precision
from coilwork_scheduler.layouts.assign import assign_layouts
from coilwork_scheduler.layouts.equal_copies import share_equal_copies
from coilwork_scheduler.layouts.one_dimension import widen_convolutions
from coilwork_scheduler.legalize import break_overlaps, call_library_sorts
from coilwork_scheduler.onednn_products import call_onednn
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import ScheduleOptions, make_size_hints
from coilwork_scheduler.packed_sums import split_packed_sums
from coilwork_scheduler.reduction_rewrites import (
    gather_one_hot,
    hoist_scales,
    reverse_scans,
    unroll_reductions,
)
from coilwork_scheduler.repeated_regions import lengthen_schedule, shorten_graph
from coilwork_scheduler.settings import Settings
from coilwork_scheduler.splitting.hierarchical_reduction import split_by_rows
from coilwork_scheduler.splitting.split import split_reductions
from coilwork_scheduler.splitting.split_scans import split_scans
from coilwork_scheduler.statistic_hoisting import hoist_statistics
from coilwork_scheduler.written_attention import find_written_attention

# ---- Order ----


ORDER: Final = (
    Before(
        "externalize",
        "separate",
        "a sort that becomes a call may need its operand in memory: a node like others",
    ),
    Before(
        "separate",
        "contract",
        "a product's operand that is overwritten later is read where it was, through its views",
    ),
    Before(
        "separate",
        "attend",
        "an attention's operand that is overwritten later is read where it was",
    ),
    Before("separate", "find-attention", "what an attention reads must not be overwritten before it is done"),
    Before("find-attention", "attend", "an attention that was written out is a node like others"),
    Before("separate", "chunk", "what is overwritten inside of a region keeps it whole"),
    Before("attend", "chunk", "products that are a part of attention are none of their own"),
    Before("chunk", "contract", "a chunk's product is computed like any other"),
    Before("attend", "contract", "an attention that is written out is made of products like others"),
    Before("contract", "dead", "views of operands that loads see through are read by nobody any more"),
    Before("contract", "inline", "what widens an operand may be computed inside the sum of products"),
    Before("separate", "dead", "a temporary for a value that nobody needs goes with what reads it"),
    Before(
        "separate",
        "inline",
        "a value read before its memory is overwritten must not move into the overwriter",
    ),
    Before("dead", "inline", "a consumer that nobody needs would count against inlining into the others"),
    Before(
        "inline",
        "dead-after-inline",
        "a producer that all of its consumers inline is read by nobody any more",
    ),
    Before("contract", "absorb", "which nodes a template computes is known then"),
    Before(
        "dead-after-inline",
        "absorb",
        "of a chain that inlining makes one node all is taken at once, and who reads it counts",
    ),
    Before(
        "absorb", "scale-sums", "a sum that a template's kernel reads may have lost its scale to the node"
    ),
    Before("absorb", "layouts", "what a kernel computes itself is in no memory"),
    Before("absorb", "fuse", "what is a part of a template's kernel joins no other"),
    Before(
        "inline", "one-hot", "that all terms but one are zero shows when what makes them is in the reduction"
    ),
    Before("inline", "scale-sums", "a weight's scale shows when what widens it is in the sum"),
    Before("dead-after-inline", "scale-sums", "a sum that nobody needs is not looked at"),
    Before(
        "scale-sums", "one-hot", "a sum that lost a scale is read by one node more, whatever becomes of it"
    ),
    Before("scale-sums", "split", "the scale is for the whole sum, not for its pieces"),
    Before("dead-after-inline", "one-hot", "a sum that nobody needs is not looked at"),
    Before(
        "inline",
        "turn-scans",
        "who reads a scan from the end shows when reversals are computed where they are read",
    ),
    Before(
        "dead-after-inline", "turn-scans", "a reversal that nobody needs any more would read the scan, too"
    ),
    Before("inline", "write-out", "what is inlined into a sum tells whether its terms are computed or read"),
    Before("one-hot", "write-out", "of a sum that is one term the others are not written out"),
    Before("inline", "packed-sums", "what is inlined into a sum takes bytes apart"),
    Before("one-hot", "packed-sums", "a sum that is one term has no steps"),
    Before("packed-sums", "write-out", "fewer steps may be few enough to be written out"),
    Before("packed-sums", "linear-sums", "statistics of sums are those of their steps"),
    Before("packed-sums", "layouts", "bytes are read side by side then"),
    Before("packed-sums", "split", "pieces of a sum are whole bytes"),
    Before("write-out", "turn-scans", "a sum that is written out may be a scan's reader like any other"),
    Before("write-out", "split", "a sum that is written out is no reduction to cut"),
    Before("one-hot", "turn-scans", "what is read is what is left of sums of one term"),
    Before("turn-scans", "split-scans", "a scan is cut in pieces in the direction that it runs in"),
    Before(
        "one-hot", "split-scans", "what is scanned may be a sum of one term, and moves along with its pieces"
    ),
    Before("one-hot", "split", "a sum that is one term is no reduction to cut"),
    Before(
        "dead-after-inline",
        "split-scans",
        "what is inlined into a scan is cut in pieces with it, and a scan that nobody needs is not cut",
    ),
    Before("split-scans", "split", "the reductions of a scan's pieces are reductions like any others"),
    Before(
        "split-scans",
        "split-rows",
        "the reductions of a scan's pieces are reductions of rows like any others",
    ),
    Before("inline", "linear-sums", "what is inlined into a sum tells which statistics it waits for"),
    Before("one-hot", "linear-sums", "a sum that is one term is no sum of many"),
    Before("turn-scans", "linear-sums", "reversals that are read from the end are none"),
    Before(
        "dead-after-inline", "layouts", "what is inlined is in no memory, and tells who reads what in the end"
    ),
    Before("contract", "widen-convolutions", "which convolutions are calls is known then"),
    Before("inline", "widen-convolutions", "views around a call are no reason to store what others compute"),
    Before("linear-sums", "widen-convolutions", "they change different nodes, so either order does"),
    Before("widen-convolutions", "layouts", "a call over two dimensions has a choice of layouts"),
    Before("linear-sums", "layouts", "sums that others take the place of read other memory"),
    Before("layouts", "equal-copies", "a source may get the layout of its copy"),
    Before(
        "layouts", "onednn", "rows of a factor, and pixels of images, may come to lie one behind the other"
    ),
    Before("equal-copies", "onednn", "a copy that is left out is no operand"),
    Before("onednn", "split-scans", "they change different nodes, so either order does"),
    Before("onednn", "fuse", "a turned result is copied by a kernel like others"),
    Before("equal-copies", "split-scans", "a scan of a copy is one of its source"),
    Before("equal-copies", "split", "a reduction of a copy shares its pass with those of the source"),
    Before("layouts", "split-scans", "how a scan is cut depends on the steps with which it is read"),
    Before("layouts", "split-rows", "how sums are cut depends on how their memory lies"),
    Before("layouts", "split", "how sums are cut depends on how their memory lies"),
    Before("linear-sums", "split-scans", "a scan's pieces have statistics like any others"),
    Before(
        "linear-sums", "split-rows", "a sum that does not wait for statistics is not cut along their rows"
    ),
    Before("linear-sums", "split", "what takes the place of a sum is cut in pieces like any others"),
    Before("one-hot", "split-rows", "a sum that is one term is no reduction to cut"),
    Before("inline", "split-rows", "what is inlined into a reduction tells which statistics it needs"),
    Before("split-rows", "split", "the sum of the rows' sums is a reduction like any others"),
    Before(
        "dead-after-inline",
        "split",
        "a reduction that nobody needs would count as a sibling of others",
    ),
    Before(
        "inline",
        "split",
        "what is inlined into a reduction is cut in pieces with it, and tells how its memory lies",
    ),
    Before("split", "fuse", "reductions of pieces, and of their results, find kernels like any others"),
    Before("inline", "fuse", "fusion weighs what stages read and compute, which inlining changes"),
    Before(
        "dead-after-inline",
        "fuse",
        "a producer that is gone must take no place in a kernel, and link no others",
    ),
    Before("fuse", "build", "ranges, tiles and arguments are those of whole kernels"),
    Before("build", "order", "what a result may lie in the memory of, and so what is freed, kernels say"),
    Before("order", "share-launches", "only what the order leaves free to run together may share a launch"),
    Before("share-launches", "open-sizes", "members of a shared launch keep the sizes that share it out"),
    Before("open-sizes", "name-blocks", "blocks are named for kernels as they will be launched"),
    Before("name-blocks", "assemble", "kernels that are to run in other blocks are others"),
    Before("open-sizes", "assemble", "kernels that have been made alike are one in the schedule"),
)


# ---- The passes ----


DEFAULT: Final = ScheduleOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A schedule on its way: a graph with what is known of it, then groups of its stages too, then kernels,
    then steps.

    `blocks` are templates that say how the sums in these buffers run. `chunks` are the numbers of the chunks
    that buffers belong to.
    """

    graph: Graph
    facts: Dependence
    blocks: Mapping[str, NamesBlocks] = field(default_factory=lambda: MappingProxyType({}))
    chunks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    groups: tuple[Group, ...] | None = None
    assembly: Assembly | None = None
    schedule: Schedule | None = None


_GraphStep: TypeAlias = Callable[[Graph, Dependence, Settings], Graph]


def _change_graph(draft: Draft, graph: Graph) -> Draft:
    """`draft` of another `graph`, of which is found anew what a pass may have changed."""
    return replace(draft, graph=graph, facts=analyse(graph, (draft.graph, draft.facts)))


def _graph_pass(step: _GraphStep) -> Callable[[Draft, Settings], Draft]:
    """Return a pass that changes the graph alone; what is known of it is found anew if it did."""

    def run(draft: Draft, settings: Settings) -> Draft:
        changed = step(draft.graph, draft.facts, settings)
        return draft if changed is draft.graph else _change_graph(draft, changed)

    return run


def _implement_contractions(draft: Draft, settings: Settings) -> Draft:
    found = implement_contractions(draft.graph, draft.facts, settings)
    if found.graph is draft.graph:
        return draft
    return replace(_change_graph(draft, found.graph), blocks=found.blocks)


def _chunk_products(draft: Draft, settings: Settings) -> Draft:
    found = chunk_products(draft.graph, draft.facts, settings)
    if found.graph is draft.graph:
        return draft
    return replace(_change_graph(draft, found.graph), chunks=found.chunks)


def _gather_one_hot(draft: Draft, settings: Settings) -> Draft:
    graph = gather_one_hot(draft.graph, draft.chunks, settings)
    return draft if graph is draft.graph else _change_graph(draft, graph)


def _remove_dead(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    return remove_dead(graph, facts)


def _fuse(draft: Draft, settings: Settings) -> Draft:
    stages = _stages(draft.graph, settings.targets)
    if not settings.options.fuse:
        return replace(draft, groups=tuple(group_of(stage) for stage in stages))
    context = FusionContext(
        graph=draft.graph,
        facts=draft.facts,
        settings=settings,
        chunks=draft.chunks,
        chunk_barrier=find_chunk_barrier(draft.graph, draft.chunks),
    )
    return replace(draft, groups=Fuser(context, stages, settings.remarks).run())


def _context(draft: Draft, settings: Settings) -> Context:
    return Context(
        graph=draft.graph, facts=draft.facts, settings=settings, blocks=draft.blocks, chunks=draft.chunks
    )


def _build(draft: Draft, settings: Settings) -> Draft:
    assert draft.groups is not None, "stages are in no groups yet"
    rounded = find_decisions(draft.graph) if settings.keeps_wide else NO_DECISIONS
    return replace(draft, assembly=build_kernels(_context(draft, settings), draft.groups, rounded))


def _assembly_pass(step: Callable[[Assembly, Context], Assembly]) -> Callable[[Draft, Settings], Draft]:
    """Return a pass that changes kernels or how they are launched."""

    def run(draft: Draft, settings: Settings) -> Draft:
        assert draft.assembly is not None, "groups are no kernels yet"
        return replace(draft, assembly=step(draft.assembly, _context(draft, settings)))

    return run


def _assemble(draft: Draft, settings: Settings) -> Draft:
    assert draft.assembly is not None, "groups are no kernels yet"
    return replace(draft, schedule=make_schedule(draft.assembly, _context(draft, settings)))


PASSES: Final[PassTable[Draft, Settings]] = PassTable(
    passes=(
        Pass(
            name="externalize",
            run=_graph_pass(call_library_sorts),
            why="a sort that no kernel of the target does well is a library's",
        ),
        Pass(
            name="separate",
            run=_graph_pass(break_overlaps),
            why="what is read across places that the same loop overwrites needs memory of its own",
        ),
        Pass(
            name="find-attention",
            run=_graph_pass(find_written_attention),
            why="products around a softmax are an attention, whose scores need no memory",
        ),
        Pass(
            name="attend",
            run=_graph_pass(implement_attention),
            why="attention is the call, the loops or the template that costs least",
        ),
        Pass(
            name="chunk",
            run=_chunk_products,
            why="a large product that only loops and products read needs no memory as a whole",
        ),
        Pass(
            name="contract",
            run=_implement_contractions,
            why="a product is the call, the loops or the template that costs least",
        ),
        Pass(name="dead", run=_graph_pass(_remove_dead), why="what nobody reads is not computed"),
        Pass(
            name="inline",
            run=_graph_pass(inline),
            why="a value that costs less to compute than to load needs no memory",
        ),
        Pass(
            name="dead-after-inline",
            run=_graph_pass(_remove_dead),
            why="what every reader computes itself is not stored",
        ),
        Pass(
            name="absorb",
            run=_graph_pass(fuse_into_templates),
            why="what stands beside a template's node is a prologue or an epilogue of its kernel",
        ),
        Pass(
            name="scale-sums",
            run=_graph_pass(hoist_scales),
            why="a factor of all terms is multiplied once, with their sum",
        ),
        Pass(
            name="one-hot",
            run=_gather_one_hot,
            why="a sum of which all terms but one are zero is one load",
        ),
        Pass(
            name="packed-sums",
            run=_graph_pass(split_packed_sums),
            why="a sum over elements that share bytes loads each byte once",
        ),
        Pass(
            name="write-out",
            run=_graph_pass(unroll_reductions),
            why="a sum of a few terms is a chain of additions",
        ),
        Pass(
            name="turn-scans",
            run=_graph_pass(reverse_scans),
            why="a scan of a reversed row, read reversed, runs from the end and copies nothing",
        ),
        Pass(
            name="linear-sums",
            run=_graph_pass(hoist_statistics),
            why="sums that are linear in statistics need not wait for them, and share their pass over memory",
        ),
        Pass(
            name="widen-convolutions",
            run=_graph_pass(widen_convolutions),
            why="libraries take operands over two dimensions as they lie, and copy those over one",
        ),
        Pass(
            name="layouts",
            run=_graph_pass(assign_layouts),
            why="memory that nobody outside sees lies as the loops around it read and write it",
        ),
        Pass(
            name="equal-copies",
            run=_graph_pass(share_equal_copies),
            why="a copy that lies as its source does is read where the source lies",
        ),
        Pass(
            name="onednn",
            run=_graph_pass(call_onednn),
            why="of products in f32 on CPUs oneDNN has the faster kernels",
        ),
        Pass(
            name="split-scans",
            run=_graph_pass(split_scans),
            why="a long scan in pieces occupies the whole device",
        ),
        Pass(
            name="split-rows",
            run=_graph_pass(split_by_rows),
            why="sums over columns go along with rows that are in registers anyway",
        ),
        Pass(
            name="split",
            run=_graph_pass(split_reductions),
            why="a reduction of few results in pieces occupies the whole device",
        ),
        Pass(name="fuse", run=_fuse, why="loops that share memory's contents pass over it once"),
        Pass(name="build", run=_build, why="what a group computes is one kernel, with ranges and arguments"),
        Pass(
            name="order",
            run=_assembly_pass(order_works),
            why="what frees memory runs before what needs more of it",
        ),
        Pass(
            name="share-launches",
            run=_assembly_pass(share_launches),
            why="small kernels of one kind cost one launch together",
        ),
        Pass(
            name="open-sizes",
            run=_assembly_pass(generalize_kernels),
            why="kernels that differ in sizes alone are compiled once",
        ),
        Pass(
            name="name-blocks",
            run=_assembly_pass(name_blocks),
            why="a template knows in which blocks the kernels of its sums run best",
        ),
        Pass(
            name="assemble",
            run=_assemble,
            why="kernels that are alike are one, and launches are steps in order",
        ),
    ),
    order=ORDER,
)


def schedule(
    graph: Graph,
    target: Target | Targets,
    options: ScheduleOptions = DEFAULT,
    *,
    model: CostModel | None = None,
    observe: Callable[[str, Graph], None] | None = None,
    registry: Registry = REGISTRY,
) -> Schedule:
    """Kernels and steps that compute `graph` on `target`, or on those of its devices.

    Deterministic: equal arguments give equal results. Time grows as n log n in the number of nodes. `model`
    estimates what kernels cost; without one it is `RooflineCost` of the main target. `observe` is called with
    the name and the result of each pass from graph to graph: to print the graph, or to verify it. `registry`
    holds what may compute products, convolutions and attention (docs/how-to/add-a-template.md).

    Raises:
        ScheduleError: the graph breaks a rule of the loop IR, or needs what the target does not have.
    """
    targets = target if isinstance(target, Targets) else Targets(main=target)
    model = RooflineCost(target=targets.main) if model is None else model
    shorter = shorten_graph(graph, options) if options.repeat else None
    if shorter is not None:
        # it may have other regions
        made = schedule(shorter.graph, targets, options, model=model, observe=observe, registry=registry)
        lengthened = lengthen_schedule(made, shorter)
        if lengthened is not None:
            return lengthened
    return _schedule_whole(graph, targets, options, model, observe, registry)


def _schedule_whole(
    graph: Graph,
    targets: Targets,
    options: ScheduleOptions,
    model: CostModel,
    observe: Callable[[str, Graph], None] | None,
    registry: Registry,
) -> Schedule:
    """Do as `schedule`, every region of the graph by itself."""
    settings = Settings(
        targets=targets,
        options=options,
        model=model,
        sizes=make_size_hints(options),
        remarks=Remarks(options.max_decisions),
        keeps_wide=options.numerics == "fast" and has_low_precision(graph),
        registry=registry,
    )
    given = Draft(graph=graph, facts=analyse(graph))

    def tell(name: str, before: Draft, after: Draft) -> None:
        if observe is not None and after.groups is None:
            observe(name, after.graph)

    result = PASSES.run(given, settings, observe=tell).schedule
    assert result is not None, "the last pass makes the schedule"
    return result


def _stages(graph: Graph, targets: Targets) -> list[Stage]:
    stages: list[Stage] = []
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Scan) and not targets.capabilities_of(list_defined_buffers(node)[0].device).scans:
            raise ScheduleError(
                "no-scan",
                f"kernels for target {targets.of(list_defined_buffers(node)[0].device).name} do not scan",
                origins=node.origins,
                remedy="lower the operator as an external call",
            )
        if isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
            stages.append(make_stage(position, node))
    return stages
