"""Scans whose results are all read from the end: they run the other way, and lie in memory the other way
round.

The gradient of `cumsum` is `flip(cumsum(flip(x)))`. The first reversal is computed in the scan; the second
reads what the scan has written at another point, and so needs a kernel of its own. A scan that runs from the
end, over what it scanned at the mirrored point, has the same results in the same order of combining,
mirrored: what was read from the end is read at the point itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coilwork_ir.buffers import Ref
from coilwork_ir.index import Expr, as_expr, extent_of
from coilwork_ir.loops import Check, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import bodies, read
from coilwork_ir.scalar import Load, Scalar, load, loads, rewrite, substitute_ranges
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.inlining.substitute import with_bodies
from coilwork_scheduler.settings import Settings


def turn_scans(graph: Graph, facts: Dependence, settings: Settings) -> Graph:
    """`graph` with such scans turned round. Linear in the size of the graph.

    The last comes first: what a turned scan reads is then what the one before it is asked for.
    """
    scans = [position for position, node in enumerate(graph.nodes) if _value_of(node) is not None]
    if not scans:
        return graph
    nodes = list(graph.nodes)
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(nodes):
        for name in read(node):
            readers.setdefault(name, []).append(position)
    returned = {output.name for output in graph.outputs if isinstance(output, Ref)}
    changed = False
    for position in reversed(scans):
        scan = nodes[position]
        value = _value_of(scan)
        assert isinstance(scan, Scan) and value is not None
        places = readers.get(value, [])
        dim, extent = scan.ranges.index(scan.axis), extent_of(scan.axis)
        if value in returned or not _read_from_the_end([nodes[p] for p in places], value, dim, extent):
            continue
        changed = True
        nodes[position] = _turned(scan)
        for place in places:
            nodes[place] = _mirrored(nodes[place], value, dim, extent)
        settings.journal.note("turn-scan", (value,), True, "all that reads it does so from the end")
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _value_of(node: Node) -> str | None:
    """The running value, if that is all that `node` gives: positions would count from the other end."""
    if not isinstance(node, Scan) or node.kind in ("argmin", "argmax"):
        return None
    value, *others = node.outputs
    return None if value is None or any(o is not None for o in others) or node.others else value.name


def _mirror(place: Expr, extent: Expr) -> Expr:
    return extent - as_expr(1) - place


def _read_from_the_end(nodes: Sequence[Node], name: str, dim: int, extent: Expr) -> bool:
    """Tell if computations alone read `name`, none of them forwards along `dim`, and one of them
    backwards.
    """
    backwards = False
    for node in nodes:
        if not isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter):
            return False
        if isinstance(node, Scatter) and node.into == name:
            return False
        for access in loads(bodies(node)):
            if access.buffer != name:
                continue
            place = access.index[dim]
            if any(s.name.startswith("@") for s in place.free_symbols):
                return False
            if not any(s.extent is not None for s in place.free_symbols):
                continue
            if not _is_point(_mirror(place, extent)):
                return False
            backwards = True
    return backwards


def _is_point(place: Expr) -> bool:
    """Tell if `place` is one range, moved by so much."""
    ranges = [s for s in place.free_symbols if s.extent is not None]
    return len(ranges) == 1 and ranges[0] not in (place - ranges[0]).free_symbols


def _turned(scan: Scan) -> Scan:
    mapping: Mapping[Expr, Expr] = {scan.axis: _mirror(scan.axis, extent_of(scan.axis))}
    body, *conditions = substitute_ranges((scan.body, *(check.condition for check in scan.checks)), mapping)
    checks = tuple(
        Check(condition=condition, message=check.message, error=check.error)
        for condition, check in zip(conditions, scan.checks, strict=True)
    )
    return replace(scan, body=body, checks=checks, reverse=not scan.reverse)


def _mirrored(node: Node, name: str, dim: int, extent: Expr) -> Node:
    """`node`, for which `name` lies the other way round along `dim`."""
    assert isinstance(node, Pointwise | Reduce | Scan | Sort | Scatter)

    def visit(scalar: Scalar) -> Scalar:
        if not isinstance(scalar, Load) or scalar.buffer != name:
            return scalar
        index = [_mirror(e, extent) if k == dim else e for k, e in enumerate(scalar.index)]
        return load(
            scalar.buffer,
            index,
            scalar.dtype,
            indirect=scalar.indirect,
            mask=scalar.mask,
            other=scalar.other,
        )

    return with_bodies(node, rewrite(bodies(node), visit))
