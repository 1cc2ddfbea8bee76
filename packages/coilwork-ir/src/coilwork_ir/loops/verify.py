"""The verifier of loop IR.

`RULES` lists the invariants: each name is the code of the `VerifyError` that breaking it raises. Linear in the number of
nodes and of scalar operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, GraphInput, GraphOutput, Ref, SymbolOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, provably_eq
from coilwork_ir.loops.access import bodies, overwritten
from coilwork_ir.loops.nodes import (
    AssertSize,
    Check,
    Cond,
    Extern,
    Graph,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
    While,
)
from coilwork_ir.loops.printing import format_node
from coilwork_ir.ops import REDUCE_OPS
from coilwork_ir.scalar import Load, Scalar, postorder
from coilwork_ir.scalar import Reduce as ScalarReduce
from coilwork_ir.scalar import Scan as ScalarScan
from coilwork_ir.verification.rules import Place, Rule, first_line
from coilwork_ir.verification.scalars import (
    SCALAR_RULES,
    check_index,
    check_load,
    check_mask,
    check_symbols_of,
)
from coilwork_ir.verification.scope import SCOPE_RULES, Scope, buffer_of, open_scope

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **SCOPE_RULES,
        **SCALAR_RULES,
        "range-extents": Rule(
            "ranges are distinct range symbols whose extents are the shape of the output",
            "make one range per dimension, with the dimension's size as its extent",
        ),
        "axes": Rule(
            "axes of a reduction are distinct range symbols, and not ranges of the output",
            "name the reduced dimensions after the bar: [i0: n | r0: m]",
        ),
        "scan-axis": Rule("the axis of a scan or sort is one of its ranges", "name one of the ranges"),
        "body-dtype": Rule(
            "the value of a node has the element type of its output (positions are i64)",
            "cast the value at the end of the body",
        ),
        "loop-scalar": Rule(
            "bodies of loop nodes hold no reductions and no scans", "make the reduction a node of its own"
        ),
        "into-layout": Rule(
            "a buffer that takes over memory has exactly the layout of the buffer that it replaces",
            "copy the old buffer's shape, strides, element type and device",
        ),
        "output-count": Rule(
            "a reduction or scan has as many outputs as its kind has results, at least one of them wanted",
            "write `_` for results that nobody uses",
        ),
        "extern-results": Rule(
            "what an external call says of its results names results that it has",
            "number results from 0; give one out name per result",
        ),
        "region-signature": Rule(
            "operands and results of a branch or loop agree with the graphs inside",
            "give the inner graph one input per operand and one output per result, of the same type and rank",
        ),
        "region-overwrites": Rule(
            "a branch or loop body overwrites none of its inputs", "copy the input and overwrite the copy"
        ),
    }
)


def verify_graph(graph: Graph) -> None:
    """Check `graph`, and the graphs nested in it, against `RULES`.

    Raises:
        VerifyError: the first rule that is broken, with node, source line, reason and remedy.
    """
    _verify(graph, None)


def _verify(graph: Graph, outer: Scope | None) -> Scope:
    place = Place(describe=lambda: f"graph @{graph.name}", rules=RULES)
    scope = open_scope(graph.symbols, graph.inputs, graph.constants, place, outer)
    for node in graph.nodes:
        verify_node(node, scope)
    verify_results(graph.outputs, scope, place)
    return scope


def verify_results(outputs: Sequence[GraphOutput], scope: Scope, place: Place) -> None:
    """Results are defined buffers, or sizes over declared symbols."""
    for output in outputs:
        scope.check_argument(output, place)


def verify_node(node: Node, scope: Scope) -> None:
    """Check `node`, which runs in `scope`, and move `scope` past it."""
    place = Place(
        describe=lambda: first_line(format_node(node, "", origins=False)), origins=node.origins, rules=RULES
    )
    match node:
        case Pointwise():
            _check_domain((node.output,), node.ranges, (), scope, place)
            _check_bodies(node, (*node.ranges,), node.checks, scope, place)
            _check_dtype(node.body.dtype, node.output, place)
            _define_computed((node.output,), node, scope, place)
        case Reduce():
            _check_axes(node, place)
            _check_domain(node.outputs, node.ranges, node.axes, scope, place)
            _check_bodies(node, (*node.ranges, *node.axes), node.checks, scope, place)
            _check_reduce(node, place)
            _define_computed(node.outputs, node, scope, place)
        case Scan() | Sort():
            if not any(node.axis is r for r in node.ranges):
                place.fail("scan-axis", f"{node.axis!r} is not one of the ranges")
            _check_domain(node.outputs, node.ranges, (), scope, place)
            checks = node.checks if isinstance(node, Scan) else ()
            _check_bodies(node, node.ranges, checks, scope, place)
            _check_positions(node, place)
            _define_computed(node.outputs, node, scope, place)
        case Scatter():
            _check_scatter(node, scope, place)
            _define_computed((node.output,), node, scope, place)
        case View():
            scope.use(node.source, place)
            scope.check_symbols(node.offset, (), place)
            scope.define(node.output, place, shares=node.source)
        case Extern():
            _check_extern(node, scope, place)
        case Cond():
            _check_cond(node, scope, place)
        case While():
            _check_while(node, scope, place)
        case AssertSize():
            scope.check_symbols(node.lhs, (), place)
            scope.check_symbols(node.rhs, (), place)


# Computed nodes


def _check_domain(
    outputs: Sequence[Buffer | None], ranges: Sequence[Expr], axes: Sequence[Expr], scope: Scope, place: Place
) -> None:
    whole = (*ranges, *axes)
    names: set[str] = set()
    for value in whole:
        if not value.is_symbol or value.extent is None:
            place.fail("range-extents", f"{value!r} is not a range symbol")
        if value.name in names:
            place.fail("range-extents", f"range {value.name} occurs twice")
        if value.name in scope.symbols:
            place.fail("unique-symbol", f"range {value.name} has the name of a declared symbol")
        names.add(value.name)
        scope.check_symbols(value.extent, (), place)
    for output in outputs:
        if output is None:
            continue
        if len(output.shape) != len(ranges):
            place.fail(
                "range-extents",
                f"%{output.name} has {len(output.shape)} dimensions, not {len(ranges)} ranges",
            )
        for position, (value, size) in enumerate(zip(ranges, output.shape, strict=True)):
            extent = value.extent
            if extent is not None and extent is not size and not provably_eq(extent, size):
                place.fail(
                    "range-extents",
                    f"dimension {position} of %{output.name} is {size!r}, range {value.name} has extent {extent!r}",
                )


def _check_bodies(
    node: Pointwise | Reduce | Scan | Sort | Scatter,
    local: Sequence[Expr],
    checks: Sequence[Check],
    scope: Scope,
    place: Place,
) -> None:
    known = frozenset(local)
    for check in checks:
        check_mask(check.condition, "the condition of a check", place)
    for value in postorder(bodies(node)):
        _check_scalar(value, known, scope, place)


def _check_scalar(value: Scalar, local: frozenset[Expr], scope: Scope, place: Place) -> None:
    match value:
        case Load():
            buffer = scope.use(value.buffer, place)
            check_load(value, buffer.dtype, len(buffer.shape), place)
        case ScalarReduce() | ScalarScan():
            place.fail("loop-scalar", f"the body holds a {type(value).__name__.lower()} of kind {value.kind}")
        case _:
            pass
    check_symbols_of(value, local, scope, place)


def _check_dtype(dtype: DType, output: Buffer | None, place: Place) -> None:
    if output is not None and output.dtype is not dtype:
        place.fail("body-dtype", f"the value is {dtype.text}, %{output.name} is {output.dtype.text}")


def _check_axes(node: Reduce, place: Place) -> None:
    for position, axis in enumerate(node.axes):
        if not axis.is_symbol or axis.extent is None:
            place.fail("axes", f"{axis!r} is not a range symbol")
        if axis in node.axes[:position] or axis in node.ranges:
            place.fail("axes", f"{axis.name} occurs twice")


def _check_reduce(node: Reduce, place: Place) -> None:
    row = REDUCE_OPS.get(node.kind)
    wanted = 0 if row is None else row.outputs
    if len(node.outputs) != wanted or all(o is None for o in node.outputs):
        place.fail("output-count", f"{node.kind} has {wanted} results, the node {len(node.outputs)} outputs")
    source = node.body.dtype
    if node.kind in ("any", "all") and not source.is_bool:
        place.fail("body-dtype", f"{node.kind} combines bool, the value is {source.text}")
    if node.kind in ("welford", "online_softmax") and not source.is_float:
        place.fail("body-dtype", f"{node.kind} combines floats, the value is {source.text}")
    result = DType.I64 if node.kind in ("argmin", "argmax") else source
    for output in node.outputs:
        _check_dtype(result, output, place)


def _check_positions(node: Scan | Sort, place: Place) -> None:
    if isinstance(node, Sort):
        most, first = 2, node.body.dtype
    else:
        most = 2 if node.kind in ("min", "max") else 1
        first = DType.I64 if node.kind in ("argmin", "argmax") else node.body.dtype
    if not 1 <= len(node.outputs) <= most or all(o is None for o in node.outputs):
        place.fail(
            "output-count", f"there are at most {most} results, the node has {len(node.outputs)} outputs"
        )
    _check_dtype(first, node.outputs[0], place)
    for output in node.outputs[1:]:
        _check_dtype(DType.I64, output, place)


def _check_scatter(node: Scatter, scope: Scope, place: Place) -> None:
    _check_domain((), node.ranges, (), scope, place)
    _check_bodies(node, node.ranges, node.checks, scope, place)
    check_mask(node.mask, "the mask", place)
    _check_dtype(node.value.dtype, node.output, place)
    if len(node.index) != len(node.output.shape):
        place.fail(
            "index-rank",
            f"%{node.output.name} has {len(node.output.shape)} dimensions, got {len(node.index)} index expressions",
        )
    check_index(node.index, node.indirect, frozenset(node.ranges), scope, place)
    scope.use(node.into, place)


def _define_computed(outputs: Sequence[Buffer | None], node: Node, scope: Scope, place: Place) -> None:
    taken = overwritten(node)
    if not taken:
        for output in outputs:
            if output is not None:
                scope.define(output, place)
        return
    for (old, _), output in zip(taken, outputs, strict=True):
        assert output is not None
        check_same_layout(output, scope.use(old, place), place)
    scope.overwrite([old for old, _ in taken], [o for o in outputs if o is not None], place)


def check_same_layout(new: Buffer, old: Buffer, place: Place) -> None:
    """`new` has the layout of `old`, whose memory it takes over."""
    for what, mine, theirs in (
        ("element type", new.dtype.text, old.dtype.text),
        ("device", new.device, old.device),
        ("number of dimensions", len(new.shape), len(old.shape)),
    ):
        if mine != theirs:
            place.fail("into-layout", f"{what} of %{new.name} is {mine}, of %{old.name} {theirs}")
    for mine_, theirs_ in zip((*new.shape, *new.strides), (*old.shape, *old.strides), strict=True):
        if mine_ is not theirs_ and not provably_eq(mine_, theirs_):
            place.fail("into-layout", f"%{new.name} has {mine_!r} where %{old.name} has {theirs_!r}")


# Calls and regions


def _check_extern(node: Extern, scope: Scope, place: Place) -> None:
    for argument in (*node.args, *(value for _, value in node.kwargs)):
        scope.check_argument(argument, place)
    count = len(node.outputs)
    # a call made for its effect may return nothing
    if node.single and count > 1:
        place.fail("extern-results", f"one bare value is returned, {count} results are named")
    if node.out_overload and len(node.out_names) != count:
        place.fail("extern-results", f"{len(node.out_names)} out names for {count} results")
    for number in (*(k for k, _ in node.aliases), *(k for _, k, _ in node.binds)):
        if not 0 <= number < count:
            place.fail("extern-results", f"there is no result {number}")
    for symbol, number, dim in node.binds:
        result = node.outputs[number]
        if isinstance(result, Buffer) and not 0 <= dim < len(result.shape):
            place.fail("extern-results", f"{symbol!r} is dimension {dim} of result {number}, which has fewer")
        scope.declare(symbol, place)
    for output in node.outputs:
        if isinstance(output, SymbolOutput):
            scope.declare(output.symbol, place)
    shared = dict(node.aliases)
    for source in shared.values():
        scope.use(source, place)
    for mutation in node.mutates:
        check_same_layout(mutation.output, scope.use(mutation.source, place), place)
    # first, so that a result that is a view of overwritten memory shows the new contents
    scope.overwrite([m.source for m in node.mutates], [m.output for m in node.mutates], place)
    for number, output in enumerate(node.outputs):
        if isinstance(output, Buffer):
            scope.define(output, place, shares=shared.get(number))


def _check_cond(node: Cond, scope: Scope, place: Place) -> None:
    predicate = scope.use(node.predicate, place)
    _check_predicate(predicate, place)
    for operand in node.operands:
        scope.check_argument(operand, place)
    for branch in (node.then, node.otherwise):
        inner = _region(branch, node.operands, scope, place)
        _check_region_results(branch, inner, node.outputs, place)
    for output in node.outputs:
        scope.define(output, place)


def _check_while(node: While, scope: Scope, place: Place) -> None:
    operands = (*node.carried, *node.extra)
    for operand in operands:
        scope.check_argument(operand, place)
    if len(node.outputs) != len(node.carried):
        place.fail(
            "region-signature", f"{len(node.carried)} values are carried, {len(node.outputs)} are returned"
        )
    inner = _region(node.condition, operands, scope, place)
    results = [buffer_of(o) for o in node.condition.outputs]
    if len(results) != 1 or results[0] is None:
        place.fail("region-signature", f"@{node.condition.name} does not return one condition")
    _check_predicate(inner.buffers[results[0]], place)
    _check_region_results(node.body, _region(node.body, operands, scope, place), node.outputs, place)
    for output in node.outputs:
        scope.define(output, place)


def _check_predicate(buffer: Buffer, place: Place) -> None:
    if not buffer.dtype.is_bool or as_int(buffer.numel) not in (1, None):
        place.fail("region-signature", f"the condition %{buffer.name} is not one bool")


def _region(graph: Graph, operands: Sequence[Argument], scope: Scope, place: Place) -> Scope:
    if len(graph.inputs) != len(operands):
        place.fail(
            "region-signature", f"@{graph.name} has {len(graph.inputs)} inputs for {len(operands)} operands"
        )
    for position, (entry, operand) in enumerate(zip(graph.inputs, operands, strict=True)):
        if not _accepts(entry, operand, scope):
            place.fail(
                "region-signature", f"operand {position} does not fit input {position} of @{graph.name}"
            )
    names = {entry.name for entry in graph.inputs if isinstance(entry, Buffer)}
    names |= {constant.buffer.name for constant in graph.constants}
    inner = _verify(graph, scope)
    for nested in graph.nodes:
        for old, _ in overwritten(nested):
            if any(inner.shares(old, name) for name in names):
                place.fail("region-overwrites", f"@{graph.name} overwrites its input through %{old}")
    return inner


def _accepts(entry: GraphInput, operand: Argument, scope: Scope) -> bool:
    if isinstance(entry, Expr):
        return isinstance(operand, Expr) or (isinstance(operand, int) and not isinstance(operand, bool))
    if not isinstance(operand, Ref):
        return False
    given = scope.buffers[operand.name]
    return given.dtype is entry.dtype and len(given.shape) == len(entry.shape)


def _check_region_results(graph: Graph, inner: Scope, outputs: Sequence[Buffer], place: Place) -> None:
    if len(graph.outputs) != len(outputs):
        place.fail(
            "region-signature", f"@{graph.name} returns {len(graph.outputs)} values, not {len(outputs)}"
        )
    for value, output in zip(graph.outputs, outputs, strict=True):
        name = buffer_of(value)
        given = None if name is None else inner.buffers[name]
        if given is None or given.dtype is not output.dtype or len(given.shape) != len(output.shape):
            place.fail("region-signature", f"@{graph.name} returns nothing that fits %{output.name}")
