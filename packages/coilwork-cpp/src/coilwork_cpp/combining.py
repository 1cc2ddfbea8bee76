"""Scans by a function: what it is made of, written out for what came before and this point's elements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coilwork_cpp.elements import value_type
from coilwork_cpp.tree import ZERO, Assign, Binary, Call, Code, Literal, Name, Select
from coilwork_cpp.values import Block
from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Combine, Op, Parameter, Scan, postorder


def combine_types(kind: Combine) -> tuple[str, ...]:
    """C++ types of the variables that carry what `kind` combines."""
    return tuple("u8" if value.dtype.is_bool else value_type(value.dtype) for value in kind.results)


def combine_step(point: Block, scan: Scan, kind: Combine, state: Sequence[Code]) -> tuple[Name, ...]:
    """Update the variables `state` with this point's elements; names of all results here."""
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
    uses = Counter(operand for node in postorder(kind.results) for operand in node.operands)
    for node in postorder(kind.results):
        if isinstance(node, Op) and uses[node] > 1:
            inside.named(node)
        elif isinstance(node, Parameter):
            late = node.position >= kind.count
            source = elements[node.position - kind.count] if late else state[node.position]
            if node.dtype.is_bool and not late:
                source = inside.declare(node.dtype, "running", Binary("!=", source, ZERO))
            inside.known[node] = source
    codes = [inside.value(result) for result in kind.results]
    # all of them before any variable changes
    found = tuple(
        inside.declare(result.dtype, "combined", Select(started, code, element))
        for result, code, element in zip(kind.results, codes, elements, strict=True)
    )
    point.add(*inside.body())
    for name, variable, result in zip(found, state, kind.results, strict=True):
        point.add(Assign(variable, Call("u8", (name,)) if result.dtype.is_bool else name))
    return found
