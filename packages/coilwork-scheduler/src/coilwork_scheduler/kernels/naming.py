"""Readable kernel names, and a hash of structure that is the same in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from coilwork_ir.index import Expr, format_expr
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import format_core
from coilwork_ir.loc import Origin
from coilwork_ir.operators import list_operators
from coilwork_ir.scalar import (
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
    postorder,
)
from coilwork_ir.text.scalars import format_combining

MOST_NAMES: Final = 4
_PLUMBING: Final = frozenset(name.strip("_") for name in list_operators(lambda info: info.is_plumbing))


def readable(origins: tuple[Origin, ...], default: str) -> str:
    """A prefix such as `add_gelu` from the operators behind a kernel; `default` when they are unknown."""
    names = list(dict.fromkeys(_operator(origin.op) for origin in origins if origin.op))
    telling = [name for name in names if name and name not in _PLUMBING] or [name for name in names if name]
    if not telling:
        return default
    if len(telling) > MOST_NAMES:
        telling = [*telling[: MOST_NAMES - 1], telling[-1]]
    return "_".join(telling)[:60].strip("_")


def _operator(qualified: str) -> str:
    parts = qualified.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name).strip("_").lower()


def show_constant(constant: Const) -> str:
    """The value of `constant`."""
    return repr(constant.value)


def structure(
    kernel: Kernel,
    show: Callable[[Expr], str] = format_expr,
    constant: Callable[[Const], str] = show_constant,
) -> str:
    """Text that two kernels share exactly when they differ in name and origins at most.

    `show` prints index expressions, `constant` constants: where one leaves something out, kernels share their
    text that differ in that as well.
    """
    lines = [kernel.numerics, f"workspace {kernel.workspace}"]
    lines += [f"aliasing {output} {source}" for output, source in kernel.aliasing]
    if kernel.core is not None:
        lines += format_core(kernel.core, "")
    if kernel.combined is not None:
        lines.append(f"combined {structure(kernel.combined.body, show, constant)}")
        lines += [f"member {m.args} {_joined(m.sizes, show)}" for m in kernel.combined.members]
    for entry in kernel.ranges:
        extent = entry.symbol.extent
        shown = "" if extent is None else show(extent)
        lines.append(f"range {entry.symbol.name} {shown} {entry.kind}")
    for arg in kernel.args:
        lines.append(f"arg {arg.name} {arg.dtype.text} {arg.role} {show(arg.span)} {arg.aligned}")
    for size in kernel.sizes:
        lines.append(f"size {size.name} {size.lo} {size.hi}")
    roots: list[Scalar] = []
    for store in kernel.stores:
        roots.extend((store.value, *store.indirect))
        if store.mask is not None:
            roots.append(store.mask)
    roots.extend(check.condition for check in kernel.checks)
    number: dict[Scalar, int] = {}
    for node in postorder(roots):
        operands = " ".join(str(number[operand]) for operand in node.operands)
        number[node] = len(number)
        lines.append(f"{node.dtype.text} {_head(node, show, constant)} {operands}")
    for store in kernel.stores:
        parts = [store.buffer, show(store.index), str(number[store.value]), store.mode]
        parts += [str(number[value]) for value in store.indirect]
        parts.append("" if store.mask is None else f"? {number[store.mask]}")
        lines.append("store " + " ".join(parts))
    for check in kernel.checks:
        lines.append(f"check {number[check.condition]} {check.error} {check.message!r}")
    return "\n".join(lines)


def _head(node: Scalar, show: Callable[[Expr], str], constant: Callable[[Const], str]) -> str:
    match node:
        case Const():
            return f"const {constant(node)}"
        case IndexValue():
            return f"index {show(node.expr)}"
        case Load():
            index = _joined(node.index, show)
            rest = f"{len(node.indirect)} {node.mask is None} {node.other!r}"
            return f"load {node.buffer} {index} {rest}"
        case Op():
            return node.op
        case Reduce():
            return f"reduce {node.kind} {_joined(node.axes, show)} {node.output}"
        case Contraction():
            return f"contract {_joined(node.axes, show)}"
        case Parameter():
            return f"parameter {node.position}"
        case Scan():
            return f"scan {format_combining(node.kind)} {node.axis.name} {node.output} {node.reverse}"
        case Sort():
            return f"sort {node.axis.name} {node.output} {node.descending}"
    raise TypeError(f"not a scalar node: {node!r}")


def _joined(exprs: Iterable[Expr], show: Callable[[Expr], str]) -> str:
    return ",".join(show(expr) for expr in exprs)


def digest(text: str) -> str:
    """Hexadecimal digest of `text`."""
    return sha256(text.encode()).hexdigest()
