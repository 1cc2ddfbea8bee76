"""Build kernels of fusion groups and launch them: kernels, their order, shared launches, steps.

`pipeline.PASSES` runs these steps one by one on an `Assembly`. `make_schedule` is the last: it names equal
kernels once and lists what a program runs.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.buffers import Buffer, Constant, Ref
from coilwork_ir.index import Expr, as_expr, provably_divisible
from coilwork_ir.kernels import Candidate, Kernel, KernelCall, Proposal, Schedule, Step
from coilwork_ir.loops import (
    AssertSize,
    Attention,
    AttentionGradient,
    Cond,
    Convolution,
    Extern,
    Graph,
    Loop,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
)
from coilwork_ir.loops.access import list_defined_buffers, list_memory_aliases, list_overwritten_buffers
from coilwork_ir.scalar import list_loads
from coilwork_ir.target import Capabilities, Target
from coilwork_scheduler.contractions.implementations import NamesBlocks
from coilwork_scheduler.contractions.registry import CoreNode
from coilwork_scheduler.dependence import Dependence, index_readers
from coilwork_scheduler.errors import ScheduleError
from coilwork_scheduler.fusion_group import Group
from coilwork_scheduler.horizontal_fusion import find_launch_candidate, group_launches, make_combo_kernel
from coilwork_scheduler.kernels.canonical import KernelTable, canonicalize
from coilwork_scheduler.kernels.compose import compose
from coilwork_scheduler.kernels.draft_analysis import is_contraction, list_scalars
from coilwork_scheduler.kernels.group_forms import BuiltForms, describe_group
from coilwork_scheduler.kernels.rounding import Decisions
from coilwork_scheduler.kernels.scan_workspace import add_workspace
from coilwork_scheduler.kernels.template_kernel import make_core_kernel
from coilwork_scheduler.kernels.tile import tile
from coilwork_scheduler.order import ExternalMemory, SchedulingUnit, order_units
from coilwork_scheduler.settings import Settings
from coilwork_scheduler.shape_generalization import generalize_sizes

ALIGNED_BYTES: Final = 16


_Work: TypeAlias = Group | CoreNode | KernelCall | Extern | View | Cond | Loop | AssertSize
BuiltKernels: TypeAlias = Mapping[int, tuple[Kernel, KernelCall]]
"""Kernels and their calls, by the places of what they compute in `Assembly.works`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Facts that the steps from groups to a schedule read."""

    graph: Graph
    facts: Dependence
    settings: Settings
    blocks: Mapping[str, NamesBlocks]
    chunks: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A schedule on its way.

    Attributes:
        works: groups and other nodes, in the order of the graph.
        built: the kernels of groups.
        units: what ordering needs to know of each of `works`.
        runs: places in `works` in the order that they run in; those that share a launch are one entry.
        candidates: how templates want kernels to run, by the places of what these compute.
    """

    works: tuple[_Work, ...]
    built: BuiltKernels
    units: tuple[SchedulingUnit, ...]
    runs: tuple[tuple[int, ...], ...] = ()
    candidates: Mapping[int, tuple[Candidate, ...]] = field(default_factory=lambda: MappingProxyType({}))


def build_kernels(context: Context, groups: Sequence[Group], rounded: Decisions) -> Assembly:
    """Build a kernel for each of `groups`; values that `rounded` depends on keep the rounding of the
    graph.
    """
    works = _works(context.graph, groups)
    readers = index_readers(context.graph, context.facts)
    aligned = _find_aligned(context)
    forms = BuiltForms()
    built = {
        index: _kernel(context, work, rounded, readers, aligned, forms)
        if isinstance(work, Group)
        else _core_kernel(context, work, rounded, aligned)
        for index, work in enumerate(works)
        if isinstance(work, Group | Convolution | Attention | AttentionGradient)
    }
    units = _units(context, works, readers, built)
    return Assembly(works=tuple(works), built=built, units=tuple(units))


def order_works(assembly: Assembly, context: Context) -> Assembly:
    """Order the works of `assembly` so that they need little memory."""
    return replace(
        assembly, runs=tuple((index,) for index in order_units(assembly.units, _external_memory(context)))
    )


def share_launches(assembly: Assembly, context: Context) -> Assembly:
    """Put small kernels of one kind into shared launches."""
    if not context.settings.options.combine:
        return assembly
    candidates = {
        index: candidate
        for index, (kernel, call) in assembly.built.items()
        if not assembly.units[index].begins
        and context.settings.options.apart.isdisjoint(origin.node for origin in call.origins)
        and _capabilities(context, call.args).combines
        and (
            candidate := find_launch_candidate(
                kernel, call, context.facts.buffers, context.settings.model, context.settings.sizes
            )
        )
    }
    if not candidates:
        return assembly
    runs = group_launches(
        assembly.units,
        [index for run in assembly.runs for index in run],
        candidates,
        _external_memory(context),
        context.settings.remarks,
        launch_us=context.settings.targets.main.launch_us,
        loss=context.settings.targets.main.machine.launches.shared_loss,
        max_args=context.settings.options.max_combined_args,
    )
    return replace(assembly, runs=runs)


def generalize_kernels(assembly: Assembly, context: Context) -> Assembly:
    """Replace kernels of one pattern but many sizes by one kernel, where that loses nothing.

    Others share launches, or take so long that a configuration for their own size is worth its compilation.
    """
    built = assembly.built
    alone = {
        run[0]: built[run[0]]
        for run in assembly.runs
        if len(run) == 1 and run[0] in built and _capabilities(context, built[run[0]][1].args).opens_extents
    }
    buffers, most = context.facts.buffers, context.settings.options.most_sizes
    remarks = context.settings.remarks
    opened = dict(generalize_sizes(alone, buffers, remarks, most_sizes=most))
    for alike in _find_chunked(assembly, context, frozenset(alone)):
        opened |= generalize_sizes(alike, buffers, remarks, most_sizes=1)
    return replace(assembly, built={**built, **opened})


def _find_chunked(
    assembly: Assembly, context: Context, others: Container[int]
) -> Sequence[Mapping[int, tuple[Kernel, KernelCall]]]:
    """Kernels of chunks of one size, which differ in where their chunk begins. They lose nothing by an
    argument for that.
    """
    if not context.chunks:
        return ()
    found: dict[tuple[Expr | None, ...], dict[int, tuple[Kernel, KernelCall]]] = {}
    for run in assembly.runs:
        place = run[0]
        if len(run) > 1 or place not in assembly.built or place in others:
            continue
        kernel, call = assembly.built[place]
        if not context.chunks.keys().isdisjoint(call.args):
            extents = tuple(r.extent for r in kernel.ranges)
            found.setdefault(extents, {})[place] = (kernel, call)
    return tuple(found.values())


def name_blocks(assembly: Assembly, context: Context) -> Assembly:
    """Ask templates in which blocks the kernels of their sums run.

    What shares a launch with others runs as these do, and one that finds its pieces in a workspace by rows.
    """
    candidates: dict[int, tuple[Candidate, ...]] = {}
    for run in assembly.runs:
        work = assembly.works[run[0]]
        if len(run) > 1 or not isinstance(work, Group) or work.pieces > 1:
            continue
        made = [
            buffer.name
            for member in work.members
            for buffer in list_defined_buffers(context.graph.nodes[member.stage.position])
        ]
        template = next((context.blocks[name] for name in made if name in context.blocks), None)
        kernel, call = assembly.built[run[0]]
        if template is None or not _capabilities(context, call.args).takes_candidates:
            continue
        found = template.name_blocks(kernel, _target(context, call.args))
        if found:
            candidates[run[0]] = found
            context.settings.remarks.note(
                "blocks", tuple(made), True, found[0].reason, candidates=float(len(found))
            )
    return replace(assembly, candidates=candidates)


def make_schedule(assembly: Assembly, context: Context) -> Schedule:
    """Make the schedule: equal kernels become one, and calls and other nodes become steps."""
    graph, facts, works = context.graph, context.facts, assembly.works
    table = KernelTable()
    fresh = facts.fresh_names()
    steps: list[Step] = []
    buffers: dict[str, Buffer] = {}
    proposals: dict[str, Proposal] = {}
    for run in assembly.runs:
        work = works[run[0]]
        if run[0] in assembly.built:
            parts = [assembly.built[index] for index in run]
            kernel, call = parts[0] if len(parts) == 1 else make_combo_kernel(parts)
            target = _target(context, call.args)
            launches = [(kernel, call)]
            workspace: dict[str, Buffer] = {}
            pieces = work.pieces if isinstance(work, Group) else 1
            if pieces > 1:
                shared = add_workspace(
                    kernel,
                    call,
                    pieces=pieces,
                    device=facts.buffers[call.args[0]].device,
                    target=target,
                    sizes=context.settings.sizes,
                    fresh=fresh,
                )
                launches = [shared.fill, shared.scan]
                workspace = {buffer.name: buffer for buffer in shared.buffers}
            for made, launch in launches:
                # what is alike on two devices is text in two languages
                candidates = assembly.candidates.get(run[0], ())
                kernel = table.add(
                    made, "" if target == context.settings.targets.main else target.name, candidates
                )
                if candidates:
                    proposals.setdefault(kernel.name, Proposal(kernel=kernel.name, candidates=candidates))
                steps.append(replace(launch, kernel=kernel.name))
                for name, arg in zip(launch.args, kernel.args, strict=True):
                    if arg.role != "in":
                        buffers[name] = workspace.get(name) or facts.buffers[name]
        elif not isinstance(work, Group | KernelCall | Convolution | Attention | AttentionGradient):
            steps.append(work)
            buffers.update({b.name: b for b in list_defined_buffers(work)})
    return Schedule(
        name=graph.name,
        symbols=graph.symbols,
        inputs=graph.inputs,
        constants=graph.constants,
        kernels=table.kernels,
        proposals=tuple(proposals.values()),
        buffers=tuple(buffers.values()),
        steps=tuple(steps),
        outputs=graph.outputs,
        decisions=context.settings.remarks.decisions,
    )


def _external_memory(context: Context) -> ExternalMemory:
    """Return the memory of the graph's results, and of inputs that the caller gives away."""
    graph, root = context.graph, context.facts.root
    kept = frozenset(root[o.name] for o in graph.outputs if isinstance(o, Ref))
    given = frozenset(context.settings.options.donated_inputs)
    return ExternalMemory(
        kept=kept,
        given={
            buffer.name: context.settings.sizes.size_bytes(buffer)
            for buffer in graph.inputs
            if isinstance(buffer, Buffer) and buffer.name in given
        },
    )


def _works(graph: Graph, groups: Sequence[Group]) -> list[_Work]:
    """Groups and other nodes, in the order of the graph."""
    first = {group.position: group for group in groups}
    works: list[_Work] = []
    for position, node in enumerate(graph.nodes):
        if position in first:
            works.append(first[position])
        elif isinstance(
            node, View | Extern | Cond | Loop | AssertSize | Convolution | Attention | AttentionGradient
        ):
            works.append(node)
        elif not isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
            raise ScheduleError(
                "unexpected-node", f"{type(node).__name__} in a graph to assemble", origins=node.origins
            )
    return works


def _positions(work: _Work, places: dict[int, int]) -> tuple[int, ...]:
    if isinstance(work, Group):
        return tuple(member.stage.position for member in work.members)
    return (places[id(work)],)


def _units(
    context: Context,
    works: Sequence[_Work],
    readers: Mapping[str, list[int]],
    built: BuiltKernels,
) -> list[SchedulingUnit]:
    graph, facts, sizes = context.graph, context.facts, context.settings.sizes
    places = {id(node): position for position, node in enumerate(graph.nodes)}
    unit_of: dict[int, int] = {}
    for index, work in enumerate(works):
        for position in _positions(work, places):
            unit_of[position] = index
    units: list[SchedulingUnit] = []
    for index, work in enumerate(works):
        positions = _positions(work, places)
        before = dict.fromkeys(unit_of[b] for p in positions for b in facts.before[p])
        touches: dict[str, None] = {}
        allocates: dict[str, int] = {}
        for position in positions:
            node = graph.nodes[position]
            made = [b.name for b in list_defined_buffers(node)]
            for name in (*facts.reads[position], *made, *(old for old, _ in list_overwritten_buffers(node))):
                touches.setdefault(facts.root[name])
            for root in facts.released.get(position, ()):
                touches.setdefault(root)
            for name in made:
                # what only the kernel itself reads never comes to memory
                inside = isinstance(work, Group) and set(readers.get(name, ())) <= set(positions)
                if facts.root[name] == name and not inside:
                    allocates[name] = sizes.size_bytes(facts.buffers[name])
        before.pop(index, None)
        units.append(
            SchedulingUnit(
                position=positions[0],
                before=tuple(sorted(before)),
                allocates=tuple(allocates.items()),
                touches=tuple(touches),
                begins=any(_begins(graph.nodes[position]) for position in positions),
                is_view=isinstance(work, View),
                waits=isinstance(work, Extern) and bool(work.waits),
                in_place=_reusable_pairs(*built[index], facts) if index in built else (),
            )
        )
    return units


def _reusable_pairs(kernel: Kernel, call: KernelCall, facts: Dependence) -> tuple[tuple[str, str], ...]:
    """Return the memory that results of `call` may take over, where no view is of it."""
    names = dict(zip((arg.name for arg in kernel.args), call.args, strict=True))
    found = ((names[out], names[source]) for out, source in kernel.aliasing)
    return tuple((out, source) for out, source in found if facts.root[source] == source)


def _begins(node: Node) -> bool:
    """Tell if `node` is the first of several that fill the memory of its output."""
    return isinstance(node, Scatter) and node.into is None


def _kernel(
    context: Context,
    group: Group,
    rounded: Decisions,
    readers: dict[str, list[int]],
    aligned: frozenset[str],
    forms: BuiltForms,
) -> tuple[Kernel, KernelCall]:
    """Return the kernel of `group` and its call; groups of one form share what is built."""
    inside = {member.stage.position for member in group.members}
    wanted = {
        store.buffer
        for member in group.members
        for store in member.stage.stores
        if any(reader not in inside for reader in readers.get(store.buffer, ()))
    }
    buffers = context.facts.buffers
    form = describe_group(group, wanted, buffers, aligned, rounded)
    found = forms.find(group, form)
    if found is not None:
        return found
    draft = compose(group, wanted, buffers, context.settings.options.numerics, rounded)
    touched = (
        *(store.buffer for store in draft.stores),
        *(access.buffer for access in list_loads(list_scalars(draft))),
    )
    target = _target(context, touched)
    tiling = tile(draft, buffers, context.settings.sizes, target)
    kernel, call = canonicalize(
        draft,
        tiling,
        buffers,
        aligned=aligned,
        numerics=context.settings.options.numerics,
        contracts=_capabilities(context, touched).contracts and is_contraction(draft),
    )
    forms.add(form, kernel, call)
    return kernel, call


def _core_kernel(
    context: Context, node: CoreNode, rounded: Decisions, aligned: frozenset[str]
) -> tuple[Kernel, KernelCall]:
    """Return the kernel of a node that a template computes."""
    return make_core_kernel(
        node,
        context.facts.buffers,
        aligned=aligned,
        numerics=context.settings.options.numerics,
        decisions=rounded,
    )


def _target(context: Context, names: Sequence[str]) -> Target:
    """Return the target of a kernel that touches the buffers called `names`, which are on one device; the
    CPU's for one of sizes alone.
    """
    buffers = context.facts.buffers
    return context.settings.targets.of(buffers[names[0]].device if names else "cpu")


def _capabilities(context: Context, names: Sequence[str]) -> Capabilities:
    """Return what the generator of a kernel that touches the buffers called `names` can do."""
    buffers = context.facts.buffers
    return context.settings.targets.capabilities_of(buffers[names[0]].device if names else "cpu")


def _find_aligned(context: Context) -> frozenset[str]:
    """Find buffers that start at a multiple of `ALIGNED_BYTES`: own memory, promised inputs, views of them.

    Results of operators that share no memory are made so (`ExternCall.aligned`).
    """
    graph = context.graph
    promised = frozenset(context.settings.options.aligned_inputs)
    found: set[str] = set()
    for entry in (*graph.inputs, *graph.constants):
        buffer = entry.buffer if isinstance(entry, Constant) else entry
        if isinstance(buffer, Buffer) and buffer.name in promised:
            found.add(buffer.name)
    for node in graph.nodes:
        taken_over = {new: old for old, new in list_overwritten_buffers(node)}
        shared = {new for new, _ in list_memory_aliases(node)}
        for buffer in list_defined_buffers(node):
            if taken_over.get(buffer.name) in found or buffer.name not in shared:
                found.add(buffer.name)
        if isinstance(node, View) and node.source in found:
            skipped = node.offset * node.output.dtype.itemsize
            if provably_divisible(skipped, as_expr(ALIGNED_BYTES)):
                found.add(node.output.name)
    return frozenset(found)
