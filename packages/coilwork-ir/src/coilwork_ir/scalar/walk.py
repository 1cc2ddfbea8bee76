"""Traversal and rewriting of scalar graphs. Iterative: bodies may be thousands of nodes deep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from coilwork_ir.index import Expr, substitute
from coilwork_ir.scalar.constructors import contract, index_value, load, op, reduce, scan, sort_again
from coilwork_ir.scalar.nodes import (
    Const,
    Contraction,
    IndexValue,
    Load,
    Op,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
)


def iterate_postorder(roots: Iterable[Scalar]) -> Iterator[Scalar]:
    """Yield every node reachable from `roots`, once, operands before users, in a deterministic order."""
    seen: set[Scalar] = set()
    for root in roots:
        if root in seen:
            continue
        seen.add(root)
        path = [(root, iter(root.operands))]
        while path:
            node, pending = path[-1]
            for operand in pending:
                if operand in seen:
                    continue
                seen.add(operand)
                if operand.operands:
                    path.append((operand, iter(operand.operands)))
                    break
                yield operand
            else:
                path.pop()
                yield node


def replace_operands(node: Scalar, operands: Sequence[Scalar]) -> Scalar:
    """`node` with other operands, everything else kept."""
    if tuple(operands) == node.operands:
        return node
    match node:
        case Const() | Parameter():
            return node
        case IndexValue():
            return index_value(node.expr, operands)
        case Load():
            count = len(node.indirect)
            mask = operands[count] if node.mask is not None else None
            return load(
                node.buffer, node.index, node.dtype, indirect=operands[:count], mask=mask, other=node.other
            )
        case Op():
            return op(node.op, *operands, dtype=node.dtype if node.op in ("cast", "bitcast") else None)
        case Reduce():
            return reduce(node.kind, operands, node.axes, output=node.output)
        case Contraction():
            return contract(operands[0], operands[1], node.axes, node.dtype)
        case Scan():
            return scan_again(node, operands, node.axis)
        case Sort():
            return sort_again(node, operands[0], node.axis)
    raise TypeError(f"not a scalar node: {node!r}")


def scan_again(node: Scan, operands: Sequence[Scalar], axis: Expr) -> Scan:
    """`node` of other `operands`, along another `axis`."""
    first, *others = operands
    return scan(node.kind, first, axis, others=others, output=node.output, reverse=node.reverse)


def rewrite(roots: Sequence[Scalar], visit: Callable[[Scalar], Scalar]) -> tuple[Scalar, ...]:
    """`roots` rebuilt bottom-up: each node, its operands already rewritten, is replaced by `visit(node)`."""
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder(roots):
        done[node] = visit(replace_operands(node, [done[operand] for operand in node.operands]))
    return tuple(done[root] for root in roots)


def substitute_ranges(roots: Sequence[Scalar], mapping: Mapping[Expr, Expr]) -> tuple[Scalar, ...]:
    """`roots` with index symbols replaced; axes of reductions, scans and sorts, being symbols, map to
    symbols.
    """

    def visit(node: Scalar) -> Scalar:
        match node:
            case IndexValue():
                return index_value(substitute(node.expr, mapping), node.operands)
            case Load():
                return load(
                    node.buffer,
                    [substitute(e, mapping) for e in node.index],
                    node.dtype,
                    indirect=node.indirect,
                    mask=node.mask,
                    other=node.other,
                )
            case Reduce():
                return reduce(
                    node.kind, node.operands, [mapping.get(a, a) for a in node.axes], output=node.output
                )
            case Contraction():
                axes = [mapping.get(a, a) for a in node.axes]
                return contract(node.left, node.right, axes, node.dtype)
            case Scan():
                return scan_again(node, node.operands, mapping.get(node.axis, node.axis))
            case Sort():
                return sort_again(node, node.operands[0], mapping.get(node.axis, node.axis))
            case _:
                return node

    return rewrite(roots, visit)


def list_loads(roots: Iterable[Scalar]) -> tuple[Load, ...]:
    """Return every load reachable from `roots`, in `iterate_postorder`."""
    return tuple(node for node in iterate_postorder(roots) if isinstance(node, Load))


def find_index_symbols(roots: Iterable[Scalar]) -> frozenset[Expr]:
    """Index symbols that any node below `roots` uses: range variables and size symbols, no placeholders."""
    symbols: set[Expr] = set()
    for node in iterate_postorder(roots):
        match node:
            case IndexValue():
                symbols |= node.expr.free_symbols
            case Load():
                for expr in node.index:
                    symbols |= expr.free_symbols
            case _:
                pass
    return frozenset(s for s in symbols if not s.name.startswith("@"))
