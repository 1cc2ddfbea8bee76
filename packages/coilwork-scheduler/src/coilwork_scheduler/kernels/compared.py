"""Which values of 16 bits decide something: compared with others, searched for an extreme, sorted; and what they are computed from.

With `fast` numerics a kernel keeps what it computes in `f32`. What it also stores, another kernel reads rounded, and so does an
operator of torch. Where one finds the maximum or the median of a row and the other what equals it, both have to begin with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from coilwork_ir.buffers import references
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort, View
from coilwork_ir.loops.access import bodies, defined
from coilwork_ir.scalar import Const, Op, Scalar, loads, postorder

_COMPARISONS: Final = frozenset("eq ne lt le gt ge".split())
_EXTREMES: Final = frozenset({"max", "min", "argmax", "argmin"})
# Operators of torch that return elements which their order has selected, or where those lie.
_SELECTING: Final = frozenset(
    """median nanmedian kthvalue sort topk msort argsort max min amax amin aminmax argmax argmin cummax cummin cummax_helper
    cummin_helper max_pool2d_with_indices max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d
    fractional_max_pool3d""".split()
)
# Those that return elements from where they are told.
_MOVING: Final = frozenset(
    """index unsafe_index index_select gather take masked_select index_put unsafe_index_put scatter index_copy index_fill
    masked_scatter put cat stack clone as_strided_copy as_strided_scatter constant_pad_nd""".split()
)
# Those that compare elements with each other, or with those of another argument, whoever looks at the result.
_COMPARING: Final = frozenset(
    """mode unique2 unique_dim unique_consecutive unique_dim_consecutive isin searchsorted bucketize equal allclose isclose
    histc""".split()
)


def compared(roots: tuple[Scalar, ...]) -> frozenset[Scalar]:
    """The operands of comparisons in `roots` whose other operand is no literal."""
    return frozenset(
        operand
        for node in postorder(roots)
        if isinstance(node, Op) and node.op in _COMPARISONS
        if node.operands[0].dtype.is_float
        and not any(isinstance(operand, Const) for operand in node.operands)
        for operand in node.operands
    )


def rounds(graph: Graph) -> bool:
    """Whether `graph`, as lowered, computes 16-bit floats. Inlining may leave no buffer of them."""
    return any(buffer.dtype.is_low_precision for node in graph.nodes for buffer in defined(node))


def deciding(graph: Graph) -> frozenset[str]:
    """The buffers of `graph` whose values decide something. Linear in the size of the graph."""
    return _behind(graph, _decisive, set())


def selected_and_compared(graph: Graph) -> frozenset[str]:
    """The buffers of `graph` whose elements are compared, maybe after some were selected of them. Linear in the size of the graph.

    What is selected and returned counts as compared: a backward graph compares it with what it was selected of.
    """
    selected = _selections(graph)
    returned = (name for output in graph.outputs for name in references(output))
    return _behind(graph, _compared, {name for name in returned if name in selected})


def _selections(graph: Graph) -> frozenset[str]:
    """Elements selected of something, and what is computed of those alone."""
    found: set[str] = set()
    for node in graph.nodes:
        match node:
            case View():
                selects = node.source in found
            case Extern():
                selects = _operator(node) in _SELECTING
            case Pointwise():
                names = [access.buffer for access in loads(bodies(node))]
                selects = bool(names) and all(name in found for name in names)
            case Reduce() | Scan() | Sort():
                selects = _selects(node)
            case _:
                selects = False
        if selects:
            found.update(buffer.name for buffer in defined(node))
    return frozenset(found)


def _behind(graph: Graph, of: Callable[[Node, bool], Iterator[Scalar]], found: set[str]) -> frozenset[str]:
    """Buffers that `found` ones and the values `of` nodes are read from; `of` is also told whether a result of the node is among them."""
    for node in reversed(graph.nodes):
        inside = any(buffer.name in found for buffer in defined(node))
        match node:
            case View():
                if inside:
                    found.add(node.source)
            case Extern():
                name = _operator(node)
                moved = inside and name in _MOVING
                decides = name in _SELECTING and (inside or of is _decisive)
                if name in _COMPARING or moved or decides:
                    for argument in (*node.args, *(value for _, value in node.kwargs)):
                        found.update(references(argument))
            case _:
                if inside and isinstance(node, Scatter) and node.into is not None:
                    found.add(node.into)
                for root in of(node, inside):
                    found.update(access.buffer for access in loads((root,)))
    return frozenset(found)


def _operator(node: Extern) -> str:
    """The bare name: `median` of `aten.median.dim`; that of the user's own operators is theirs."""
    namespace, _, rest = node.target.partition(".")
    return rest.partition(".")[0].strip("_") if namespace == "aten" else ""


def _decisive(node: Node, inside: bool) -> Iterator[Scalar]:
    match node:
        case Reduce() | Scan() if node.kind in _EXTREMES:
            yield from bodies(node)
        case Sort():
            yield from bodies(node)
        case Pointwise() if inside:
            yield from bodies(node)
        case _:
            yield from compared(bodies(node))


def _compared(node: Node, inside: bool) -> Iterator[Scalar]:
    if inside and _selects(node):
        yield from bodies(node)
    else:
        yield from compared(bodies(node))


def _selects(node: Node) -> bool:
    """Whether an element of the result is made of one of each operand, as a sum is not."""
    match node:
        case Reduce() | Scan():
            return node.kind in _EXTREMES
        case _:
            return isinstance(node, Pointwise | Sort | Scatter)
