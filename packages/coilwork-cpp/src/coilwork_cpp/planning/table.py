"""The mapping passes: from a piece of a kernel to its mapping, in a table with a reason for each pass.

Every pass looks at one nest and the directives so far, and adds directives. The text that is written is what
they say. `list_common_directives` are those of a whole launch. A kernel that compares values with their own
extreme computes these values in several loops, which must agree to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from typing import Final

from coilwork_cpp.options import CppOptions
from coilwork_cpp.planning.parallelism import (
    join_pieces,
    share_units,
    transpose_tiles,
    vectorize,
    weigh_units,
)
from coilwork_cpp.planning.plan import FIXED_BLOCK, FIXED_LANES, Proposal
from coilwork_cpp.planning.reduction_directives import (
    choose_lanes,
    prefetch_rows,
    save_values,
    select_first_points,
)
from coilwork_cpp.planning.regions import group_stores
from coilwork_ir.kernels import Kernel, TensorArg
from coilwork_ir.machine.model import Loops
from coilwork_ir.mapping import (
    Block,
    Contract,
    Directive,
    Functions,
    Invariant,
    Mapping,
    Nest,
    Sequential,
    Threads,
    Vector,
)
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.scalar import Op, Reduce, Scalar, iterate_postorder
from coilwork_ir.target import Target

# ---- comparisons with extremes ----


_COMPARISONS: Final = frozenset("eq ne lt le gt ge".split())
_EXTREMES: Final = frozenset({"max", "min"})


def has_compared_extremes(kernel: Kernel) -> bool:
    """Tell whether a value is compared with what the largest or smallest of a row was found from.

    Several loops may compute it, and a loop gives its last elements, for which it has no whole vector,
    another function than the rest.
    """
    roots = tuple(store.value for store in kernel.stores)
    values = tuple(iterate_postorder(roots))
    if not any(_is_extreme(value) for value in values):
        return False
    return any(
        _is_extreme_of(left, right) or _is_extreme_of(right, left)
        for value in values
        if isinstance(value, Op) and value.op in _COMPARISONS
        for left, right in (value.operands,)
        if left.dtype.is_float
    )


def _is_extreme(value: Scalar) -> bool:
    return isinstance(value, Reduce) and value.kind in _EXTREMES


def _is_extreme_of(side: Scalar, value: Scalar) -> bool:
    """Tell if an extreme that takes part in `side` was taken of something computed that takes part in
    `value`.
    """
    extremes = tuple(node for node in iterate_postorder((side,)) if _is_extreme(node))
    if not extremes:
        return False
    computed = frozenset(node for node in iterate_postorder((value,)) if isinstance(node, Op))
    return any(node in computed for node in iterate_postorder(extremes))


# ---- passes ----


def _run_decision(
    decide: Callable[[Proposal], tuple[Directive, ...]],
) -> Callable[[Proposal, None], Proposal]:
    return lambda proposal, _: proposal.add(decide(proposal))


MAPPING_PASSES: Final[PassTable[Proposal, None]] = PassTable(
    passes=(
        Pass(
            name="vectorize",
            run=_run_decision(vectorize),
            why="vectors load whole cache lines along the range that lies in memory",
        ),
        Pass(
            name="transpose-tiles",
            run=_run_decision(transpose_tiles),
            why="what lies along another range would be gathered from a cache line per element",
        ),
        Pass(
            name="share-units",
            run=_run_decision(share_units),
            why="threads need units of work, and a unit something to walk",
        ),
        Pass(
            name="weigh-units",
            run=_run_decision(weigh_units),
            why="a thread costs more to start than few instructions take",
        ),
        Pass(
            name="save-values",
            run=_run_decision(save_values),
            why="a costly value is computed once, not once per pass",
        ),
        Pass(
            name="select-first-points",
            run=_run_decision(select_first_points),
            why="the first elements of a sorted row are found faster than all of them",
        ),
        Pass(
            name="choose-lanes",
            run=_run_decision(choose_lanes),
            why="a sum in one variable waits for itself at each element, and loses precision",
        ),
        Pass(
            name="prefetch-rows",
            run=_run_decision(prefetch_rows),
            why="a pass over what lies in the cache leaves memory idle",
        ),
    ),
    order=(
        Before("vectorize", "transpose-tiles", "tiles are transposed for the vector"),
        Before("transpose-tiles", "share-units", "tiles are what threads share"),
        Before("transpose-tiles", "weigh-units", "a point of a tile is moved twice"),
        Before("share-units", "weigh-units", "one reads what is shared, then how much of it repays a thread"),
        Before("weigh-units", "save-values", "one reads of the whole nest before one reads of its passes"),
        Before("share-units", "choose-lanes", "copies of columns are as wide as a unit"),
        Before("save-values", "select-first-points", "a pass that keeps values walks all points"),
        Before("save-values", "choose-lanes", "what is read back is not copied into tiles"),
        Before("select-first-points", "choose-lanes", "a pass of few points needs no lanes"),
        Before("share-units", "prefetch-rows", "the next row is the next point of the innermost loop"),
        Before("choose-lanes", "prefetch-rows", "groups of lanes ask for their lines"),
    ),
)


def has_ranges(piece: Kernel, named: Sequence[Directive]) -> bool:
    """Tell if `piece` has every range that a directive of `named` is of."""
    known = {r.symbol.name for r in piece.ranges}
    return all(set(_ranges_of(directive)) <= known for directive in named)


def _ranges_of(directive: Directive) -> tuple[str, ...]:
    match directive:
        case Vector() | Block():
            return (directive.range,)
        case Threads() | Sequential():
            return directive.ranges
        case _:
            return ()


def propose(
    pieces: Sequence[Kernel],
    common: tuple[Directive, ...],
    args: MappingOf[str, TensorArg],
    loops: Loops,
    named: tuple[Directive, ...] = (),
) -> tuple[Mapping, ...]:
    """Return a closed mapping for each of `pieces`, which may run in any order; `common` are the directives
    of all nests, and `loops` what was measured of the machine. `named` are those of a template for nests that
    have all of their ranges.

    Raises:
        EmitError: stores of a piece can be put in no order, or a check combines.
    """
    mappings: list[Mapping] = []
    last: Proposal | None = None
    for piece in pieces:
        nests: list[Nest] = []
        groups = group_stores(piece)
        for group, region in groups:
            own = named if has_ranges(piece, named) else ()
            proposal = Proposal(
                kernel=piece,
                region=region,
                nest=replace(group, directives=(*group.directives, *own)),
                common=common,
                args=args,
                loops=loops,
                named=own,
            )
            proposal = MAPPING_PASSES.run(proposal, None)
            if len(groups) == 1 and last is not None:
                joined = join_pieces(proposal, last)
                proposal = proposal.add(joined)
                last = last if joined else proposal
            else:
                last = proposal
            nests.append(proposal.nest)
        mappings.append(Mapping(directives=common, nests=tuple(nests)))
    return tuple(mappings)


def list_common_directives(kernel: Kernel, target: Target, options: CppOptions) -> tuple[Directive, ...]:
    """Return the directives of the whole launch: how exact functions are, whether sums of products round
    once, and in what order rows combine.
    """
    compares = has_compared_extremes(kernel)
    # libmvec's functions are off by up to 4 units in the last place, libm's of f64 by less than one; and what
    # is left over at the end of a loop gets libm's, so that an element's place would decide
    exact = options.batch_invariant or compares or kernel.numerics == "strict"
    vector = options.vector_math and not exact and "asimd" not in target.features
    directives: list[Directive] = [Functions(kind="vector" if vector else "exact")]
    if kernel.numerics == "fast" and not compares:
        directives.append(Contract())
    if options.batch_invariant:
        directives.append(Invariant(lanes=FIXED_LANES, block=FIXED_BLOCK))
    return tuple(directives)
