"""Buffers that a loop node defines, reads and overwrites, on which ordering and fusion rest."""

from __future__ import annotations

from coilwork_ir.buffers import Argument, Buffer, SymbolOutput, list_references
from coilwork_ir.index import Expr
from coilwork_ir.loops.nodes import (
    AssertSize,
    Attention,
    AttentionGradient,
    Check,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Groups,
    Loop,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
)
from coilwork_ir.scalar import Scalar, list_loads


def list_defined_buffers(node: Node) -> tuple[Buffer, ...]:
    """Buffers that `node` defines, in order; those that take over older memory included."""
    match node:
        case Pointwise() | Scatter() | Contraction() | View():
            return (node.output,)
        case Reduce() | Scan() | Sort() | Convolution():
            return tuple(b for b in node.outputs if b is not None)
        case Attention() | AttentionGradient():
            return tuple(b for b in node.outputs if isinstance(b, Buffer))
        case Extern():
            fresh = tuple(b for b in node.outputs if isinstance(b, Buffer))
            return fresh + tuple(m.output for m in node.mutates)
        case Cond():
            return node.outputs
        case Loop():
            return node.outputs + tuple(m.output for m in node.mutates)
        case AssertSize():
            return ()


def list_bound_symbols(node: Node) -> tuple[Expr, ...]:
    """Symbols whose value `node` determines."""
    if isinstance(node, Attention):
        return tuple(o.symbol for o in node.state if isinstance(o, SymbolOutput))
    if not isinstance(node, Extern):
        return ()
    numbers = tuple(o.symbol for o in node.outputs if isinstance(o, SymbolOutput))
    return numbers + tuple(symbol for symbol, _, _ in node.binds)


def list_bodies(node: Node) -> tuple[Scalar, ...]:
    """Scalar graphs evaluated by `node`: values, masks, index values, conditions of checks."""
    match node:
        case Scan():
            return (node.body, *node.others, *_list_check_conditions(node.checks))
        case Pointwise() | Reduce() | Sort():
            return (node.body, *_list_check_conditions(node.checks))
        case Scatter():
            mask = () if node.mask is None else (node.mask,)
            return (node.value, *node.indirect, *mask, *_list_check_conditions(node.checks))
        case Contraction():
            return (node.left, node.right, node.epilogue)
        case Attention() | AttentionGradient():
            return node.bodies
        case Convolution():
            operands = (node.value, node.weight, node.gradient, node.epilogue)
            return tuple(body.value for body in operands if body is not None)
        case _:
            return ()


def list_read_buffers(node: Node) -> tuple[str, ...]:
    """Names of the buffers whose contents `node` reads, each once, in first-use order."""
    names: dict[str, None] = {}
    for access in list_loads(list_bodies(node)):
        names.setdefault(access.buffer)
    for name in _list_named(node):
        names.setdefault(name)
    return tuple(names)


def list_overwritten_buffers(node: Node) -> tuple[tuple[str, str], ...]:
    """Pairs (old buffer, new buffer) for memory that `node` takes over and changes."""
    match node:
        case Pointwise(into=str(old)):
            return ((old, node.output.name),)
        case Scatter(into=str(old)):
            return ((old, node.output.name),)
        case Extern() | Loop():
            return tuple((m.source, m.output.name) for m in node.mutates)
        case _:
            return ()


def list_memory_aliases(node: Node) -> tuple[tuple[str, str], ...]:
    """Pairs (buffer defined, buffer whose memory it is) for results without memory of their own."""
    match node:
        case View():
            return ((node.output.name, node.source),)
        case Extern():
            pairs = []
            for number, source in node.aliases:
                result = node.outputs[number]
                if isinstance(result, Buffer):
                    pairs.append((result.name, source))
            return tuple(pairs) + tuple((m.output.name, m.source) for m in node.mutates)
        case _:
            return tuple((new, old) for old, new in list_overwritten_buffers(node))


def _list_check_conditions(checks: tuple[Check, ...]) -> tuple[Scalar, ...]:
    return tuple(check.condition for check in checks)


def _list_named(node: Node) -> tuple[str, ...]:
    arguments: tuple[Argument, ...]
    match node:
        case Contraction(groups=Groups(ends=ends)):
            return (ends,)
        case Scatter(into=str(old)):
            # elements that are not hit keep their old values
            return (old,)
        case View():
            return (node.source,)
        case AttentionGradient():
            arguments = node.state
        case Extern():
            arguments = (*node.args, *(value for _, value in node.kwargs))
        case Cond():
            return (node.predicate, *(n for a in node.operands for n in list_references(a)))
        case Loop():
            arguments = (*node.carried, *node.extra)
        case _:
            return ()
    return tuple(name for argument in arguments for name in list_references(argument))
