"""The verifier of loop IR.

`RULES` lists the invariants: each name is the code of the `VerifyError` that breaking it raises. Linear in
the number of nodes and of scalar operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, Constant, GraphInput, GraphOutput, Ref, list_references
from coilwork_ir.index import Expr, as_int
from coilwork_ir.loops.access import list_defined_buffers, list_overwritten_buffers
from coilwork_ir.loops.layouts import find_memory_roots
from coilwork_ir.loops.nodes import (
    AssertSize,
    Attention,
    AttentionGradient,
    Cond,
    Contraction,
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
from coilwork_ir.loops.text import format_node
from coilwork_ir.loops.verify_attention import ATTENTION_RULES, check_attention, check_gradient
from coilwork_ir.loops.verify_compute import (
    box_of,
    check_axes,
    check_bodies,
    check_contraction,
    check_convolution,
    check_count,
    check_domain,
    check_dtype,
    check_positions,
    check_reduce,
    check_same_layout,
    check_scatter,
    check_split,
    define_computed,
)
from coilwork_ir.verification import (
    FLIGHT_NAMES,
    SCALAR_RULES,
    SCOPE_RULES,
    Place,
    Rule,
    Scope,
    check_flight,
    check_paths,
    declare_numbers,
    find_buffer,
    get_first_line,
    open_scope,
)

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **SCOPE_RULES,
        **SCALAR_RULES,
        "range-extents": Rule(
            "ranges are distinct range symbols whose extents are the shape of the output",
            "make one range per dimension, with the dimension's size as its extent",
        ),
        "axes": Rule(
            "axes of a reduction or contraction are distinct range symbols, and not ranges of the output",
            "name the reduced dimensions after the bar: [i0: n | r0: m]",
        ),
        "sort-count": Rule(
            "a sort keeps no more elements of a row than there are", "keep as many as the axis has at most"
        ),
        "scan-axis": Rule("the axis of a scan or sort is one of its ranges", "name one of the ranges"),
        "scan-split": Rule(
            (
                "a scan that programs share has at least as many points along its axis as pieces, and sizes "
                "that are known"
            ),
            "leave `split` at 1",
        ),
        "body-dtype": Rule(
            "the value of a node has the element type of its output (positions are i64)",
            "cast the value at the end of the body",
        ),
        "loop-scalar": Rule(
            "bodies of loop nodes hold no reductions and no scans", "make the reduction a node of its own"
        ),
        "combine-operands": Rule(
            (
                "a scan has one value for each that its function combines, of these types; one value if it "
                "has no function"
            ),
            "give the scan the values that the function combines",
        ),
        "contraction-ranges": Rule(
            (
                "each range of a contraction is one of its left factor, its right one, or both, and each "
                "axis one of both"
            ),
            "make a sum of which one factor does not know the axis a reduction, or multiply in the epilogue",
        ),
        "contraction-groups": Rule(
            "groups of a contraction have an integer end each, and a number of their own where they lie "
            "along a "
            "range, the number of a range where they lie along an axis",
            "give one end for each group, and cut one range or axis",
        ),
        "contraction-types": Rule(
            "a contraction multiplies numbers, and adds them in a type that holds its factors",
            "accumulate in f32 what is narrower, in the own type of the factors what is not",
        ),
        **ATTENTION_RULES,
        "convolution-form": Rule(
            "a convolution has operands of two more dimensions than windows, which move by elements, and a "
            "result or gradients",
            "give one window for each dimension of space, and operands a batch and channels",
        ),
        "convolution-extents": Rule(
            "image, weight and features of a convolution have the batch, channels, features and windows that "
            "follow from each other",
            "work extents out as torch's convolutions do",
        ),
        "into-layout": Rule(
            "a buffer that takes over memory has exactly the layout of the buffer that it replaces",
            "copy the old buffer's shape, strides, element type and device",
        ),
        "fill": Rule(
            (
                "a scatter into memory of its own stores one box of it: no mask, no looked-up positions "
                "unless it covers all or is sparse"
            ),
            "let another node fill the memory, and scatter `into` it",
        ),
        "covers": Rule(
            "a scatter that covers its output stores into memory of its own",
            "leave out `into`, or let it not cover",
        ),
        "sparse": Rule(
            "a scatter beside whose elements nobody reads stores into memory of its own",
            "leave out `into`, or let it not be sparse",
        ),
        "unfilled": Rule(
            "memory that nodes fill part by part is read when all of its elements have values",
            "store boxes that lie side by side into it until they are all of it",
        ),
        "output-count": Rule(
            "a reduction or scan has as many outputs as its kind has results, at least one of them wanted",
            "write `_` for results that nobody uses",
        ),
        "extern-results": Rule(
            "what an external call says of its results names results that it has",
            "number results from 0; give one out name, and one path if there are any, per result",
        ),
        "free-results": Rule(
            "a result whose strides are free is computed by the graph, and no other result shares its memory",
            "leave it out of the names behind `free`",
        ),
        "flight-names": FLIGHT_NAMES,
        "region-signature": Rule(
            "operands and results of a branch or loop agree with the graphs inside",
            "give the inner graph one input per operand and one output per result, of the same type and rank",
        ),
        "region-overwrites": Rule(
            (
                "a branch overwrites none of its inputs, a loop body those alone that stay and that the "
                "loop names"
            ),
            "copy the input and overwrite the copy",
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
    if graph.free_results:
        _check_free_results(graph, place)
    return scope


def _check_free_results(graph: Graph, place: Place) -> None:
    roots = find_memory_roots(graph)
    given = {(e.buffer if isinstance(e, Constant) else e).name for e in (*graph.inputs, *graph.constants)}
    returned = Counter(roots[output.name] for output in graph.outputs if isinstance(output, Ref))
    names = {output.name for output in graph.outputs if isinstance(output, Ref)}
    for name in graph.free_results:
        if name not in names:
            place.fail("free-results", f"%{name} is no result")
        if roots[name] in given:
            place.fail("free-results", f"%{name} is memory that the graph is given")
        if returned[roots[name]] != 1:
            place.fail("free-results", f"%{name} shares memory with another result")


def verify_results(outputs: Sequence[GraphOutput], scope: Scope, place: Place) -> None:
    """Results are defined buffers, or sizes over declared symbols."""
    for output in outputs:
        scope.check_argument(output, place)


def verify_node(node: Node, scope: Scope) -> None:
    """Check `node`, which runs in `scope`, and move `scope` past it."""
    place = Place(
        describe=lambda: get_first_line(format_node(node, "", origins=False)),
        origins=node.origins,
        rules=RULES,
    )
    match node:
        case Pointwise():
            check_domain((node.output,), node.ranges, (), scope, place)
            check_bodies(node, (*node.ranges,), node.checks, scope, place)
            check_dtype(node.body.dtype, node.output, place)
            define_computed((node.output,), node, scope, place)
        case Reduce():
            check_axes(node, place)
            check_domain(node.outputs, node.ranges, node.axes, scope, place)
            check_bodies(node, (*node.ranges, *node.axes), node.checks, scope, place)
            check_reduce(node, place)
            define_computed(node.outputs, node, scope, place)
        case Scan() | Sort():
            if not any(node.axis is r for r in node.ranges):
                place.fail("scan-axis", f"{node.axis!r} is not one of the ranges")
            kept = check_count(node, scope, place) if isinstance(node, Sort) else {}
            check_domain(node.outputs, node.ranges, (), scope, place, kept=kept)
            check_bodies(node, node.ranges, node.checks, scope, place)
            check_positions(node, place)
            if isinstance(node, Scan):
                check_split(node, place)
            define_computed(node.outputs, node, scope, place)
        case Scatter():
            check_scatter(node, scope, place)
            define_computed((node.output,), node, scope, place)
            scope.fill(node.output, node.into, box_of(node))
        case Contraction():
            check_axes(node, place)
            check_domain((node.output,), node.ranges, node.axes, scope, place)
            check_contraction(node, scope, place)
            define_computed((node.output,), node, scope, place)
        case Attention():
            check_axes(node.weights, place)
            check_domain((node.output,), node.weights.ranges, node.weights.axes, scope, place)
            check_attention(node, scope, place)
            define_computed(list_defined_buffers(node), node, scope, place)
        case AttentionGradient():
            check_axes(node.weights, place)
            check_domain((), node.weights.ranges, node.weights.axes, scope, place)
            check_gradient(node, scope, place)
            define_computed(list_defined_buffers(node), node, scope, place)
        case Convolution():
            check_convolution(node, scope, place)
            define_computed(node.outputs, node, scope, place)
        case View():
            scope.use(node.source, place)
            scope.check_symbols(node.offset, (), place)
            scope.define(node.output, place, shares=node.source)
        case Extern():
            _check_extern(node, scope, place)
        case Cond():
            _check_cond(node, scope, place)
        case Loop():
            _check_loop(node, scope, place)
        case AssertSize():
            scope.check_symbols(node.lhs, (), place)
            scope.check_symbols(node.rhs, (), place)


def _check_extern(node: Extern, scope: Scope, place: Place) -> None:
    for argument in (*node.args, *(value for _, value in node.kwargs)):
        scope.check_argument(argument, place)
    count = len(node.outputs)
    # a call made for its effect may return nothing
    if node.single and count > 1:
        place.fail("extern-results", f"one bare value is returned, {count} results are named")
    check_paths(node.paths, count, place, single=node.single)
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
    declare_numbers(node.outputs, scope, place)
    _check_flight(node, scope, place)
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


def _check_flight(node: Extern, scope: Scope, place: Place) -> None:
    given = {
        name
        for value in (*node.args, *(value for _, value in node.kwargs))
        for name in list_references(value)
    }
    known = given | {mutation.source for mutation in node.mutates}
    known |= {output.name for output in node.outputs if isinstance(output, Buffer)}
    check_flight(node, known, scope.buffers, place)


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


def _check_loop(node: Loop, scope: Scope, place: Place) -> None:
    operands = (*node.carried, *node.extra)
    for operand in operands:
        scope.check_argument(operand, place)
    if len(node.outputs) != len(node.carried):
        place.fail(
            "region-signature", f"{len(node.carried)} values are carried, {len(node.outputs)} are returned"
        )
    if (node.condition is None) == (node.rounds is None):
        place.fail("loop-end", "a loop has either a condition or a number of rounds")
    if node.condition is not None:
        inner = _region(node.condition, operands, scope, place)
        results = [find_buffer(o) for o in node.condition.outputs]
        if len(results) != 1 or results[0] is None:
            place.fail("region-signature", f"@{node.condition.name} does not return one condition")
        _check_predicate(inner.buffers[results[0]], place)
    if node.rounds is not None:
        scope.check_symbols(node.rounds, (), place)
        operands = (*operands, 0)
    taken = [mutation.source for mutation in node.mutates]
    given = {name for operand in node.extra for name in list_references(operand)}
    for mutation in node.mutates:
        if mutation.source not in given:
            place.fail("region-overwrites", f"%{mutation.source} is no operand that stays in the loop")
        check_same_layout(mutation.output, scope.use(mutation.source, place), place)
    body = _region(node.body, operands, scope, place, taken)
    _check_region_results(node.body, body, node.outputs, place)
    scope.overwrite(taken, [mutation.output for mutation in node.mutates], place)
    for output in node.outputs:
        scope.define(output, place)


def _check_predicate(buffer: Buffer, place: Place) -> None:
    if not buffer.dtype.is_bool or as_int(buffer.numel) not in (1, None):
        place.fail("region-signature", f"the condition %{buffer.name} is not one bool")


def _region(
    graph: Graph, operands: Sequence[Argument], scope: Scope, place: Place, taken: Sequence[str] = ()
) -> Scope:
    """Return the scope at the end of a nested graph, which overwrites the operands `taken` alone."""
    if len(graph.inputs) != len(operands):
        place.fail(
            "region-signature", f"@{graph.name} has {len(graph.inputs)} inputs for {len(operands)} operands"
        )
    for position, (entry, operand) in enumerate(zip(graph.inputs, operands, strict=True)):
        if not _accepts(entry, operand, scope):
            place.fail(
                "region-signature", f"operand {position} does not fit input {position} of @{graph.name}"
            )
    names = {
        entry.name
        for entry, operand in zip(graph.inputs, operands, strict=True)
        if isinstance(entry, Buffer) and not (isinstance(operand, Ref) and operand.name in taken)
    }
    names |= {constant.buffer.name for constant in graph.constants}
    inner = _verify(graph, scope)
    for nested in graph.nodes:
        for old, _ in list_overwritten_buffers(nested):
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
        name = find_buffer(value)
        given = None if name is None else inner.buffers[name]
        if given is None or given.dtype is not output.dtype or len(given.shape) != len(output.shape):
            place.fail("region-signature", f"@{graph.name} returns nothing that fits %{output.name}")
