"""Scales that move behind the sum: of weights widened from 8 bits, once per result instead of once per
weight.

`sum(x * round(w * s))`, where `s` does not vary along the sum, is `s * sum(x * w)` but for the rounding of
each weight to 16 bits, which `fast` numerics leave out. `w` is exact in 16 bits, so that matrix units take it
as it is; and to scale it there would take most of the time of a kernel that is bound by reading weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce
from coilwork_ir.scalar import Op, Scalar, cast, load, op, range_symbols
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.settings import Settings

_HALVES: Final = frozenset({DType.F16, DType.BF16})
_EXACT: Final = frozenset({DType.I8, DType.U8})


def scale_sums(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with such scales behind the sums, under `fast` numerics. Linear in its size."""
    if settings.options.numerics != "fast":
        return graph
    names = facts.fresh_names()
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        found = _scaled(node, names.close_to) if isinstance(node, Reduce) else None
        if found is None:
            nodes.append(node)
            continue
        changed = True
        nodes += found
        settings.journal.note(
            "scale-sums", (found[1].output.name,), True, "a scale is the same for a whole sum"
        )
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _scaled(node: Reduce, name: Callable[[str], str]) -> tuple[Reduce, Pointwise] | None:
    """`node` without the scale in one of its factors, and what multiplies its sums with it."""
    body, (output, *_) = node.body, node.outputs
    if node.kind != "sum" or output is None or output.dtype is not DType.F32:
        return None
    if not isinstance(body, Op) or body.op != "mul":
        return None
    for place, factor in enumerate(body.operands):
        found = _split(factor, frozenset(node.axes))
        if found is None:
            continue
        weight, scale = found
        operands = [weight if k == place else other for k, other in enumerate(body.operands)]
        plain = replace(output, name=name(f"{output.name}_plain"))
        value = op("mul", load(plain.name, node.ranges, DType.F32), scale)
        sums = replace(node, outputs=(plain,), body=op("mul", *operands))
        return sums, Pointwise(output=output, ranges=node.ranges, body=value, origins=node.origins)
    return None


def _split(factor: Scalar, axes: frozenset[Expr]) -> tuple[Scalar, Scalar] | None:
    """A weight of 8 bits in f32, and the scale that `factor` multiplies it with before it rounds the product
    to 16 bits.
    """
    rounded = _cast_from(factor, _HALVES) if factor.dtype is DType.F32 else None
    scaled = None if rounded is None else _cast_from(rounded, frozenset({DType.F32}))
    if rounded is None or not isinstance(scaled, Op) or scaled.op != "mul":
        return None
    for weight, scale in (scaled.operands, scaled.operands[::-1]):
        narrow: Scalar = weight
        while isinstance(narrow, Op) and narrow.op == "cast":
            (narrow,) = narrow.operands
        if narrow.dtype in _EXACT and axes.isdisjoint(range_symbols((scale,))):
            return cast(narrow, DType.F32), scale
    return None


def _cast_from(value: Scalar, types: frozenset[DType]) -> Scalar | None:
    """Return what `value` is a cast of, if that has one of `types`."""
    if isinstance(value, Op) and value.op == "cast" and value.operands[0].dtype in types:
        return value.operands[0]
    return None
