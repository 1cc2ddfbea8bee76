"""How a kernel's reductions are walked, and what the choice of its block sizes rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, bounds, evaluate, product
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import Op, Reduce, Scalar, Scan, Sort, postorder
from coilwork_triton.combining.scans import carried_words
from coilwork_triton.facts.sort_keys import LONGEST_ROW, key_bytes
from coilwork_triton.facts.vectors import Access, loads_apart, together_along, whole_sizes
from coilwork_triton.facts.waiting import loads_in_turn
from coilwork_triton.iteration.tiles import Letter
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.launch.parameters import UNKNOWN_EXTENT, Facts, Walk, next_power_of_two, reduces_across

# Kinds of reductions that gather two values.
_PAIRS: Final = frozenset({"welford", "online_softmax", "argmin", "argmax"})


def walk_of(kernel: Kernel, numel: Expr | None, options: TritonOptions, *, sorts: bool, looped: bool) -> Walk:
    """How rows of `numel` points are walked: in one piece where they are sorted, in a loop with `looped`, else by their length.

    Raises:
        EmitError: rows that are walked along with their columns do not stay in registers.
    """
    walk: Walk = "persistent" if sorts else "looped" if looped else _by_length(kernel, numel, options)
    if walk != "persistent" and any(r.kind == "walked" for r in kernel.ranges):
        raise EmitError(
            "walked-rows",
            f"rows of kernel {kernel.name} are walked, but do not stay in registers",
            origins=kernel.origins,
            remedy="schedule rows and columns as two kernels",
        )
    return walk


def check_sorts(kernel: Kernel, grouped: Mapping[Letter, list[Range]]) -> None:
    """Raises EmitError: the rows that `kernel` sorts do not stay in registers."""
    length = bounds(product(r.extent for r in grouped.get("r", ()))).hi
    if len(grouped.get("r", ())) != 1 or "w" in grouped or length is None or length > LONGEST_ROW:
        raise EmitError(
            "sort-row",
            f"kernel {kernel.name} sorts rows that do not stay in registers",
            origins=kernel.origins,
            remedy="run the sort as an external call",
        )


def _by_length(kernel: Kernel, numel: Expr | None, options: TritonOptions) -> Walk:
    if numel is None:
        return "pointwise"
    longest = bounds(numel).hi
    limit = options.persistent_limit
    if any(r.kind == "walked" for r in kernel.ranges):
        # there is no other way to walk rows
        limit = max(limit, TritonOptions().persistent_limit)
        return "persistent" if longest is not None and next_power_of_two(longest) <= limit else "looped"
    fits = longest is not None and next_power_of_two(longest) <= limit
    wanted = kernel.hints.reduction
    if wanted in ("looped", "split"):
        return "looped"
    if wanted == "persistent":
        return "persistent" if fits else "looped"
    return "persistent" if fits and longest is not None and longest <= 8192 else "looped"


def facts_of(
    kernel: Kernel,
    values: tuple[Scalar, ...],
    grouped: Mapping[Letter, list[Range]],
    touched: Sequence[Access],
    *,
    walk: Walk,
    points: int | None,
    ragged: bool,
    chosen: Expr | None,
    least: int,
) -> Facts:
    """`grouped` are the ranges of each tile, `touched` what the kernel reads and writes; `points`, `chosen` and `least` as in `shape.plan`."""
    known = likely_sizes(kernel)
    larger = {size: max(least, number) for size, number in known.items()}
    nodes = tuple(postorder(values))
    sorts = tuple(v for v in nodes if isinstance(v, Sort))
    return Facts(
        walk=walk,
        extents={
            letter: _estimate(
                product(r.extent for r in ranges),
                letter,
                walk,
                points,
                known if letter == "r" or (letter == "x" and "y" in grouped) else larger,
            )
            for letter, ranges in grouped.items()
        },
        coalescing={k: min(1.0, sum(r.coalescing for r in ranges)) for k, ranges in grouped.items()},
        element_bytes=max((a.dtype.itemsize for a in kernel.args), default=4),
        streams=whole_sizes(kernel.ranges, touched),
        tensors=len(kernel.args),
        operations=sum(SCALAR_OPS[v.op].cost for v in nodes if isinstance(v, Op)),
        turns=loads_in_turn(values),
        again=_again(kernel),
        ragged=ragged,
        scans=max(
            (carried_words(v.kind, v.operands[0].dtype) for v in nodes if isinstance(v, Scan)), default=0
        ),
        lanes=_lanes(nodes),
        scattered=loads_apart(kernel, values),
        row=_row(grouped) if walk == "persistent" else 0,
        columns=_columns(kernel, values),
        sort_bytes=max((key_bytes(v.operands[0].dtype) for v in sorts), default=0),
        sort_width=max((together_along(a, sorts[0].axis) for a in touched), default=1) if sorts else 1,
        first=0 if chosen is None else chosen_first(chosen),
    )


def looks_up_across(grouped: Mapping[Letter, list[Range]], touched: Sequence[Access], facts: Facts) -> bool:
    """All that is reduced is looked up, and neighbours in memory lie along x: where threads are to lie, too.

    Triton lays them along the last axis of a block, unless accesses at known places say otherwise.
    """
    reduced = {r.symbol for r in grouped.get("r", ())}
    known = any(not reduced.isdisjoint(access.index.free_symbols) for access in touched)
    return bool(reduced) and not known and reduces_across(facts)


def _row(grouped: Mapping[Letter, list[Range]]) -> int:
    return as_int(product(r.extent for r in grouped.get("r", ()))) or 0


def _lanes(nodes: Sequence[Scalar]) -> int:
    return max((2 if v.kind in _PAIRS else 1 for v in nodes if isinstance(v, Reduce)), default=0)


def _again(kernel: Kernel) -> bool:
    row = frozenset(r.symbol for r in kernel.ranges if r.kind == "reduction")
    return any(
        not row.isdisjoint(store.index.free_symbols)
        and any(isinstance(node, Reduce) for node in postorder((store.value,)))
        for store in kernel.stores
    )


def chosen_first(chosen: Expr) -> int:
    """How many first elements of sorted rows the range `chosen` stands for, rounded up to a power of two."""
    count = None if chosen.extent is None else as_int(chosen.extent)
    if count is None:
        raise EmitError("range-extent", f"range {chosen.name} has no known extent")
    return next_power_of_two(count)


def _estimate(numel: Expr, letter: Letter, walk: Walk, points: int | None, likely: Mapping[Expr, int]) -> int:
    exact = as_int(numel)
    if exact is not None:
        return exact
    if points is not None and letter == "x":
        return points
    longest = bounds(numel).hi
    if letter == "r" and walk == "persistent" and longest is not None:
        return longest
    return max(1, evaluate(numel, {s.name: likely.get(s) or _typical(s) for s in numel.free_symbols}))


def likely_sizes(kernel: Kernel) -> dict[Expr, int]:
    """The sizes of `kernel` of which something is likely, and what."""
    if kernel.likely is None:
        return {}
    return {size: number for size, number in zip(kernel.sizes, kernel.likely.sizes, strict=True) if number}


def _typical(size: Expr) -> int:
    low, high = bounds(size)
    return max(1, low or 1, min(UNKNOWN_EXTENT, UNKNOWN_EXTENT if high is None else high))


def _columns(kernel: Kernel, values: tuple[Scalar, ...]) -> int:
    walked = frozenset(r.symbol for r in kernel.ranges if r.kind == "walked")
    nodes = postorder(values)
    return len(
        {(v.kind, v.operands) for v in nodes if isinstance(v, Reduce) and not walked.isdisjoint(v.axes)}
    )
