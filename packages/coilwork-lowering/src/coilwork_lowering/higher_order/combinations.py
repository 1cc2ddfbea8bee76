"""What a function that an `associative_scan` combines with is at each point: a function of scalars, if it has
one.

The function's own graph is lowered as any graph is, to nodes over tensors that lack the scanned dimension.
Where these compute each element from the elements at the same place, they are put into one another, and what
the function was given becomes parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from coilwork_ir.buffers import Buffer, GraphInput, Ref
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import VerifyError
from coilwork_ir.index import Expr
from coilwork_ir.loops import Extern, Node, Pointwise
from coilwork_ir.scalar import (
    Combine,
    Const,
    IndexValue,
    Load,
    Op,
    Parameter,
    Scalar,
    cast,
    combine,
    const,
    load,
    loads,
    op,
    parameter,
    postorder,
    rewrite,
    substitute_ranges,
)
from coilwork_lowering.building.builder import node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """The graph of a combining function, lowered.

    Attributes:
        inputs: two tuples of as many tensors, and behind them what it is given at all points.
        nodes: what computes the results.
        results: a tuple of tensors.
    """

    inputs: Sequence[GraphInput]
    nodes: Sequence[Node]
    results: Sequence[TensorValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """A combining function of scalars.

    Attributes:
        function: what it does; behind the results' own values its tuples have further ones, which are the
            same at all points along the axis.
        invariant: these further values. They load from buffers that the traced inputs name.
    """

    function: Combine
    invariant: tuple[Scalar, ...]


def combination_of(traced: Traced, point: Sequence[Expr]) -> Combination | None:
    """Return what `traced` does at `point`, the coordinates of an element; None if it looks at other elements
    too, or calls what has no scalars.

    16-bit floats are computed with as `f32`: between the points of a scan, as within its function, nothing is
    rounded.
    """
    count = len(traced.results)
    given = traced.inputs[: 2 * count]
    if len(given) < 2 * count or any(result.shape != traced.results[0].shape for result in traced.results):
        return None
    known = {one.name: one for one in traced.inputs if isinstance(one, Buffer)}
    bodies = _bodies(traced.nodes, known)
    found = []
    for result in traced.results:
        access = load(result.buffer.name, result.at(point), result.dtype)
        body = _expand_body(access, known, bodies)
        if body is None:
            return None
        found.append(body)
    places = {one.name: k for k, one in enumerate(given) if isinstance(one, Buffer)}
    narrow = any(isinstance(one, Buffer) and one.dtype.is_low_precision for one in given)
    try:
        return _as_function(tuple(found), places, tuple(point), widen=narrow)
    except _ElsewhereError:
        return None


class _ElsewhereError(Exception):
    """The function reads another element, or bits that have no meaning in `f32`."""


def _bodies(nodes: Sequence[Node], known: Mapping[str, Buffer]) -> dict[str, Pointwise]:
    """The nodes that compute each element from elements, by output, with nothing but inputs among their
    loads.
    """
    bodies: dict[str, Pointwise] = {}
    for node in nodes:
        moved = _read_moved(node, known)
        if moved is not None:
            bodies[moved.output.name] = moved
        if not isinstance(node, Pointwise) or node.into is not None or node.checks:
            continue
        body = _expand_body(node.body, known, bodies)
        if body is not None:
            bodies[node.output.name] = Pointwise(output=node.output, ranges=node.ranges, body=body)
    return bodies


def _read_moved(node: Node, known: Mapping[str, Buffer]) -> Pointwise | None:
    """An input on another device than the function's, a number mostly, as it is: who reads it has
    it moved.
    """
    match node:
        case Extern(target="aten._to_copy.default", args=(Ref(name),), outputs=(Buffer() as output,)):
            source = known.get(name)
            if source is not None and source.dtype is output.dtype:
                ranges = node_ranges("i", output.shape)
                return Pointwise(output=output, ranges=ranges, body=load(name, ranges, output.dtype))
    return None


def _expand_body(body: Scalar, known: Mapping[str, Buffer], bodies: Mapping[str, Pointwise]) -> Scalar | None:
    """`body` with what `bodies` say in the place of loads; None if some load is neither of these nor of
    inputs.
    """
    replaced: dict[Scalar, Scalar] = {}
    for access in loads((body,)):
        if access.operands:
            return None
        if access.buffer in known:
            continue
        producer = bodies.get(access.buffer)
        if producer is None:
            return None
        mapping = dict(zip(producer.ranges, access.index, strict=True))
        (replaced[access],) = substitute_ranges((producer.body,), mapping)
    (made,) = rewrite((body,), lambda one: replaced.get(one, one))
    return made


def _as_function(
    results: tuple[Scalar, ...], places: Mapping[str, int], point: tuple[Expr, ...], *, widen: bool
) -> Combination | None:
    """The function whose results are `results`; `places` are the positions of what it combines."""
    own = len(results)
    moving = {node for node in loads(results) if node.buffer in places}
    if any(node.index != point for node in moving):
        raise _ElsewhereError
    varies: set[Scalar] = set(moving)
    outside: set[Scalar] = set()
    for node in postorder(results):
        if not varies.isdisjoint(node.operands):
            varies.add(node)
        if isinstance(node, Load | IndexValue) or not outside.isdisjoint(node.operands):
            outside.add(node)
    if any(node in varies and not isinstance(node, Load | Op) for node in postorder(results)):
        raise _ElsewhereError
    # the largest values that are the same at all points
    fixed = [
        value
        for value in dict.fromkeys(
            (*(o for n in postorder(results) if n in varies for o in n.operands), *results)
        )
        if value in outside and value not in varies
    ]
    count = own + len(fixed)
    invariant = tuple(_widen(value) if widen else value for value in fixed)
    constant = {
        value: parameter(count + own + k, wide.dtype) for k, (value, wide) in enumerate(zip(fixed, invariant))
    }
    done: dict[Scalar, Scalar] = {}
    for node in postorder(results):
        if node in constant:
            done[node] = constant[node]
        elif isinstance(node, Load) and node in moving:
            position = places[node.buffer]
            position = position if position < own else position - own + count
            done[node] = parameter(position, _wide(node.dtype) if widen else node.dtype)
        elif isinstance(node, Const) or node in varies:
            operands = [done[operand] for operand in node.operands]
            done[node] = _op(node, operands, widen=widen)
    try:
        function = combine([*(simplify(done[result]) for result in results), *constant.values()])
    except VerifyError:
        # a result of another type than what it is combined from
        return None
    return Combination(function=function, invariant=invariant)


def _wide(dtype: DType) -> DType:
    return dtype.compute


def _widen(value: Scalar) -> Scalar:
    return cast(value, _wide(value.dtype))


def _op(node: Scalar, operands: Sequence[Scalar], *, widen: bool) -> Scalar:
    """`node` of other `operands`."""
    match node:
        case Const():
            return const(node.value, _wide(node.dtype)) if widen else node
        case Op(op="cast"):
            return cast(operands[0], _wide(node.dtype) if widen else node.dtype)
        case Op(op="bitcast"):
            if widen and (node.dtype.is_low_precision or node.operands[0].dtype.is_low_precision):
                raise _ElsewhereError
            return op("bitcast", *operands, dtype=node.dtype)
        case Op():
            return op(node.op, *operands)
    assert isinstance(node, Parameter)
    return node


def find_needed(function: Combine, outputs: Collection[int]) -> tuple[int, ...]:
    """The values of a tuple that the results `outputs` of a scan by `function` depend on, in order."""
    found = set(outputs)
    pending = list(found)
    while pending:
        for node in postorder((function.results[pending.pop()],)):
            if isinstance(node, Parameter) and node.position % function.count not in found:
                found.add(node.position % function.count)
                pending.append(node.position % function.count)
    return tuple(sorted(found))


def keep_values(function: Combine, kept: Sequence[int]) -> Combine:
    """`function` of the values `kept` alone, which depend on no others."""
    place = {old: new for new, old in enumerate(kept)}

    def visit(node: Scalar) -> Scalar:
        if not isinstance(node, Parameter):
            return node
        late = node.position // function.count
        return parameter(place[node.position % function.count] + late * len(kept), node.dtype)

    return combine(rewrite([function.results[k] for k in kept], visit))
