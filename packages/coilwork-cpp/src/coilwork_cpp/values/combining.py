"""Scans by a function: what it is made of, written out for what came before and this point's elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from coilwork_cpp.values.elements import value_type
from coilwork_cpp.values.values import Block
from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Combine, Op, Parameter, Scan, postorder
from coilwork_ir.syntax.cpp import ZERO, Assign, Binary, Call, Code, Literal, Name, Select


def combine_types(kind: Combine) -> tuple[str, ...]:
    """C++ types of the variables that carry what `kind` combines."""
    return tuple("u8" if value.dtype.is_bool else value_type(value.dtype) for value in kind.results)


def carried(kind: Combine, outputs: Iterable[int]) -> tuple[int, ...]:
    """Return which values must be carried from point to point for the results `outputs`."""
    needed = set(outputs)
    pending = list(needed)
    while pending:
        for node in postorder((kind.results[pending.pop()],)):
            if isinstance(node, Parameter) and node.position < kind.count and node.position not in needed:
                needed.add(node.position)
                pending.append(node.position)
    return tuple(sorted(needed))


def combine_step(
    point: Block, scan: Scan, kind: Combine, state: Sequence[Code], outputs: Iterable[int]
) -> Mapping[int, Name]:
    """Update those variables of `state` that the results `outputs` need with this point's elements; names of
    results here.
    """
    needed = carried(kind, outputs)
    elements = [point.declare(value.dtype, "element", point.value(value)) for value in scan.operands]
    # the function has no neutral element: the first point's results are its elements
    at = point.index(scan.axis)
    first: Code = ZERO
    if scan.reverse:
        assert scan.axis.extent is not None
        first = Binary("-", point.index(scan.axis.extent), Literal("1"))
    started = point.declare(DType.BOOL, "started", Binary("!=", at, first))
    # in a block of its own: another scan's parameters are other values
    inside = point.inside()
    results = {k: kind.results[k] for k in needed}
    uses = Counter(operand for node in postorder(results.values()) for operand in node.operands)
    for node in postorder(results.values()):
        if isinstance(node, Op) and uses[node] > 1:
            inside.named(node)
        elif isinstance(node, Parameter):
            late = node.position >= kind.count
            source = elements[node.position - kind.count] if late else state[node.position]
            if node.dtype.is_bool and not late:
                source = inside.declare(node.dtype, "running", Binary("!=", source, ZERO))
            inside.known[node] = source
    codes = {k: inside.value(result) for k, result in results.items()}
    # all of them before any variable changes
    found = {
        k: inside.declare(kind.results[k].dtype, "combined", Select(started, code, elements[k]))
        for k, code in codes.items()
    }
    point.add(*inside.body())
    for k, name in found.items():
        point.add(Assign(state[k], Call("u8", (name,)) if kind.results[k].dtype.is_bool else name))
    return found
