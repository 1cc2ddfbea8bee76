"""Hoist row statistics out of sums that are linear in them.

    sum over c of w[c] * (x[c] - s)  =  sum of w[c] * (x[c] - p)  +  (p - s) * sum of w[c]

`s` is a statistic of the row, as the logarithm of a sum of exponentials in a cross-entropy with smoothed or
soft labels. The sum on the left can begin only when the whole row was read. Those on the right need not wait,
so rows too long to stay on chip are read once instead of twice. `p` is the row's first element, if finite:
what all elements have in common cancels in each term, exactly, and not between large sums. Rounding differs,
hence only with `fast` numerics. A sum over several rows becomes one of sums of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, find_bounds, get_extent, multiply_all, provably_positive
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce
from coilwork_ir.scalar import (
    Op,
    Scalar,
    cast,
    const,
    find_index_symbols,
    index_value,
    list_loads,
    load,
    op,
    substitute_ranges,
    where,
)
from coilwork_ir.target import Targets
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.kernels.rounding import elide_rounding
from coilwork_scheduler.settings import Settings

# Buffers looked at behind what is the same for a row.
_STEPS: Final = 32
# Sums that take the place of one, and operations that are looked into.
_MOST_SUMS: Final = 3
_DEEPEST: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """`weight * (value + invariant[0] + ...)`: the first two vary along the sum, others do not. None is 1 for
    a weight, else 0.
    """

    weight: Scalar | None = None
    value: Scalar | None = None
    invariant: tuple[Scalar, ...] = ()


def hoist_statistics(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """Hoist row statistics out of sums over rows that GPUs would read twice. Near-linear in the graph."""
    targets, options = settings.targets, settings.options
    if options.numerics != "fast" or not options.fuse or not targets.has_gpu:
        return graph
    name = facts.fresh_names().close_to
    search = _Search(graph=graph, facts=facts, targets=targets)
    nodes: list[Node] = []
    changed = False
    for position, node in enumerate(graph.nodes):
        found = search.find_linear_sum(position, node) if isinstance(node, Reduce) else None
        if found is None:
            nodes.append(node)
            continue
        assert isinstance(node, Reduce) and node.outputs[0] is not None
        changed = True
        sums = _SumBuilder(along=found, whole=node, output=node.outputs[0], name=name)
        added = sums.nodes()
        nodes += added
        settings.remarks.note(
            "linear-sums",
            (node.outputs[0].name,),
            True,
            "what is the same for a row is added behind the sum",
            sums=sum(isinstance(one, Reduce) for one in added),
        )
    return replace(graph, nodes=tuple(nodes)) if changed else graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _LinearSum:
    """A sum, as one of `terms` along `axes`, for each of `rows`, some of which may be summed afterwards."""

    rows: tuple[Expr, ...]
    axes: tuple[Expr, ...]
    terms: tuple[_Term, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    graph: Graph
    facts: Dependence
    targets: Targets

    def find_linear_sum(self, position: int, node: Reduce) -> _LinearSum | None:
        """Return what `node`, at `position`, adds up, if it waits for statistics of rows that do not stay on
        chip, and need not.
        """
        (output, *_) = node.outputs
        if node.kind != "sum" or node.checks or output is None or output.dtype is not node.body.dtype:
            return None
        if output.dtype not in (DType.F32, DType.F64) or not self.targets.of(output.device).is_gpu:
            return None
        if not all(provably_positive(get_extent(axis)) for axis in node.axes):
            return None
        outer = self._axes_of_statistics(node)
        inner = tuple(axis for axis in node.axes if axis not in outer)
        if not inner or self._stays(inner, output.device):
            return None
        axes = frozenset(inner)
        terms = tuple(_TermSplitter(axes=axes).split(node.body))
        if not any(self._is_statistic(term, axes, position) for term in terms):
            return None
        varying = [v for term in terms for v in (term.weight, term.value) if v is not None]
        waits = any(
            access.buffer in self.facts.definer and axes.isdisjoint(find_index_symbols((access,)))
            for access in list_loads(varying)
        )
        if waits or len(varying) > _MOST_SUMS:
            return None
        rows = (*node.ranges, *(axis for axis in node.axes if axis in outer))
        return _LinearSum(rows=rows, axes=inner, terms=terms)

    def _axes_of_statistics(self, node: Reduce) -> frozenset[Expr]:
        """Return the axes of `node` that rows have numbers along: results of reductions are read at them."""
        found: set[Expr] = set()
        for access in list_loads((node.body,)):
            along = find_index_symbols((access,)).intersection(node.axes)
            if (
                along
                and len(along) < len(node.axes)
                and next(self._reductions_behind((access,)), None) is not None
            ):
                found |= along
        return frozenset(found)

    def _stays(self, axes: Sequence[Expr], device: str) -> bool:
        """Tell if rows are short enough for a program to keep, so that it reads them once in any case."""
        longest = find_bounds(multiply_all(get_extent(axis) for axis in axes)).hi
        return longest is not None and self.targets.capabilities_of(device).rows.keeps(longest)

    def _is_statistic(self, term: _Term, axes: frozenset[Expr], position: int) -> bool:
        """Tell if the invariant part of `term` comes of a reduction of what its other parts read along the
        sum, which were there before.
        """
        if not term.invariant or (term.weight is None and term.value is None):
            return False
        read = {
            access.buffer
            for access in list_loads([v for v in (term.weight, term.value) if v is not None])
            if not axes.isdisjoint(find_index_symbols((access,)))
        }
        for statistic in self._reductions_behind(term.invariant):
            made = self.graph.nodes[statistic]
            assert isinstance(made, Reduce)
            common = read.intersection(access.buffer for access in list_loads((made.body,)))
            if common and all(self.facts.definer.get(name, -1) < statistic < position for name in read):
                return True
        return False

    def _reductions_behind(self, values: Sequence[Scalar]) -> Iterator[int]:
        """Places of the reductions that `values` are computed from, number by number."""
        todo = [access.buffer for access in list_loads(values)]
        seen: set[str] = set()
        while todo and len(seen) < _STEPS:
            name = todo.pop()
            definer = self.facts.definer.get(name)
            if name in seen or definer is None:
                continue
            seen.add(name)
            node = self.graph.nodes[definer]
            if isinstance(node, Reduce):
                yield definer
            elif isinstance(node, Pointwise):
                todo += [access.buffer for access in list_loads((node.body,))]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TermSplitter:
    """Splits values into sums of terms along `axes`; the first term has no weight."""

    axes: frozenset[Expr]
    known: dict[Scalar, list[_Term]] = field(default_factory=dict)

    def split(self, value: Scalar, depth: int = 0) -> list[_Term]:
        """Return the terms of `value`: itself, if it is not linear, or not simply so."""
        if value not in self.known:
            found = self._split_op(value, depth) if depth < _DEEPEST else []
            self.known[value] = found if 0 < len(found) <= _MOST_SUMS else [_Term(value=value)]
        return self.known[value]

    def _split_op(self, value: Scalar, depth: int) -> list[_Term]:
        if self.axes.isdisjoint(find_index_symbols((value,))):
            return [_Term(invariant=(value,))]
        if not isinstance(value, Op):
            return []
        operands = value.operands
        if value.op == "cast":
            # what is rounded to 16 bits on the way is not
            (narrow,) = operands
            wide = elide_rounding(narrow, value.dtype)
            return self.split(wide, depth + 1) if wide.dtype is value.dtype else []
        if value.op == "neg":
            return [_negate(term) for term in self.split(operands[0], depth + 1)]
        if value.op in ("add", "sub"):
            (first, *others), (one, *more) = (self.split(operand, depth + 1) for operand in operands)
            if value.op == "sub":
                one, more = _negate(one), [_negate(term) for term in more]
            both = _Term(value=_add(first.value, one.value), invariant=(*first.invariant, *one.invariant))
            return [both, *others, *more]
        return self._product(*operands, depth=depth + 1) if value.op == "mul" else []

    def _product(self, a: Scalar, b: Scalar, *, depth: int) -> list[_Term]:
        for factor, other in ((a, b), (b, a)):
            (first, *others) = self.split(other, depth)
            if others:
                continue
            if self.axes.isdisjoint(find_index_symbols((factor,))):
                scaled = None if first.value is None else op("mul", first.value, factor)
                return [
                    _Term(value=scaled, invariant=tuple(op("mul", part, factor) for part in first.invariant))
                ]
            if first.invariant:
                return [_Term(), replace(first, weight=factor)]
        return []


def _add(a: Scalar | None, b: Scalar | None) -> Scalar | None:
    return op("add", a, b) if a is not None and b is not None else b if a is None else a


def _negate(term: _Term) -> _Term:
    value = None if term.value is None else op("neg", term.value)
    return replace(term, value=value, invariant=tuple(op("neg", part) for part in term.invariant))


@dataclass(frozen=True, slots=True, kw_only=True)
class _SumBuilder:
    """Makes the sums `along` rows that take the place of `whole`, of which `output` is the result; `name`
    gives fresh names.
    """

    along: _LinearSum
    whole: Reduce
    output: Buffer
    name: Callable[[str], str]
    plain: list[Reduce] = field(default_factory=list)

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in order, the last of which makes `output`. A term without a value or an invariant
        part is 0.
        """
        total: Scalar | None = None
        for term in self.along.terms:
            total = _add(total, self._sum_term(term))
        body = const(0, self.output.dtype) if total is None else total
        if len(self.along.axes) == len(self.whole.axes):
            last = Pointwise(
                output=self.output, ranges=self.whole.ranges, body=body, origins=self.whole.origins
            )
            return (*self.plain, last)
        rows = self._buffer("rows")
        own = Pointwise(output=rows, ranges=self.along.rows, body=body, origins=self.whole.origins)
        outer = tuple(axis for axis in self.whole.axes if axis not in self.along.axes)
        of_rows = replace(self.whole, axes=outer, body=load(rows.name, self.along.rows, rows.dtype))
        return (*self.plain, own, of_rows)

    def _sum_term(self, term: _Term) -> Scalar | None:
        value, weight = term.value, term.weight
        if value is None or not term.invariant:
            summed = None if value is None else self._sum(_multiply(value, weight))
            return _add(summed, self._sum_invariants(term.invariant, weight))
        pivot = self._pivot(value)
        summed = self._sum(_multiply(op("sub", value, pivot), weight))
        # a large number that the pivot and a statistic have in common is gone before small ones are added
        return _add(summed, self._sum_invariants((pivot, *term.invariant), weight))

    def _sum_invariants(self, parts: Sequence[Scalar], weight: Scalar | None) -> Scalar | None:
        if not parts:
            return None
        total = parts[0]
        for part in parts[1:]:
            total = op("add", total, part)
        return op("mul", total, self._weights(weight))

    def _pivot(self, value: Scalar) -> Scalar:
        """Return the first of a row's `value`, or 0 if that is no finite number."""
        (first,) = substitute_ranges((value,), dict.fromkeys(self.along.axes, as_expr(0)))
        finite = op("lt", op("abs", first), const(math.inf, value.dtype))
        return where(finite, first, const(0, value.dtype))

    def _weights(self, weight: Scalar | None) -> Scalar:
        if weight is not None:
            return self._sum(weight)
        points = multiply_all(get_extent(axis) for axis in self.along.axes)
        return cast(index_value(points), self.output.dtype)

    def _sum(self, body: Scalar) -> Scalar:
        made = self._buffer("plain")
        self.plain.append(
            replace(self.whole, outputs=(made,), ranges=self.along.rows, axes=self.along.axes, body=body)
        )
        return load(made.name, self.along.rows, made.dtype)

    def _buffer(self, what: str) -> Buffer:
        shape = tuple(get_extent(r) for r in self.along.rows)
        return replace(
            self.output,
            name=self.name(f"{self.output.name}_{what}"),
            shape=shape,
            strides=make_contiguous_strides(shape),
        )


def _multiply(value: Scalar, weight: Scalar | None) -> Scalar:
    return value if weight is None else op("mul", weight, value)
