"""Canonical kernels: equal computations become equal kernels, whatever their buffers and symbols were called.

A kernel's final name is a readable prefix from its operators, and a hash of its structure that is the same in
every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr, as_int, format_expr, get_extent, substitute, symbol
from coilwork_ir.kernels import Candidate, Kernel, KernelCall, Range, Store, TensorArg
from coilwork_ir.kernels.nodes import ArgRole, Numerics
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.kernels.text import format_core
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Check
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
    index_value,
    iterate_postorder,
    load,
    reduce,
    replace_operands,
    scan_again,
    sort_again,
)
from coilwork_ir.text.scalars import format_combining
from coilwork_scheduler.kernels.compose import Draft
from coilwork_scheduler.kernels.draft_analysis import contract_kernel, find_aliasing, list_scalars
from coilwork_scheduler.kernels.tile import Tiling

# ---- Names and structure ----


MOST_NAMES: Final = 4
_PLUMBING: Final = frozenset(name.strip("_") for name in list_operators(lambda info: info.is_plumbing))


def make_readable_name(origins: tuple[Origin, ...], default: str) -> str:
    """Return a prefix such as `add_gelu` from the operators behind a kernel; `default` when they are
    unknown.
    """
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
    """Return the value of `constant`."""
    return repr(constant.value)


def format_structure(
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
        lines.append(f"combined {format_structure(kernel.combined.body, show, constant)}")
        lines += [f"member {m.args} {_format_all(m.sizes, show)}" for m in kernel.combined.members]
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
        roots.extend(list_store_roots(store))
    roots.extend(check.condition for check in kernel.checks)
    number: dict[Scalar, int] = {}
    for node in iterate_postorder(roots):
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
            index = _format_all(node.index, show)
            rest = f"{len(node.indirect)} {node.mask is None} {node.other!r}"
            return f"load {node.buffer} {index} {rest}"
        case Op():
            return node.op
        case Reduce():
            return f"reduce {node.kind} {_format_all(node.axes, show)} {node.output}"
        case Contraction():
            return f"contract {_format_all(node.axes, show)}"
        case Parameter():
            return f"parameter {node.position}"
        case Scan():
            return f"scan {format_combining(node.kind)} {node.axis.name} {node.output} {node.reverse}"
        case Sort():
            return f"sort {node.axis.name} {node.output} {node.descending} {node.topk}"
    raise TypeError(f"not a scalar node: {node!r}")


def _format_all(exprs: Iterable[Expr], show: Callable[[Expr], str]) -> str:
    return ",".join(show(expr) for expr in exprs)


def digest(text: str) -> str:
    """Hexadecimal digest of `text`."""
    return sha256(text.encode()).hexdigest()


# ---- Canonical form ----


_VECTOR: Final = 16
# No size symbol of a graph begins so.
_START: Final = "start."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Argument:
    name: str
    role: ArgRole


def canonicalize(
    draft: Draft,
    tiling: Tiling,
    buffers: Mapping[str, Buffer],
    *,
    aligned: frozenset[str],
    numerics: Numerics,
    contracts: bool = False,
) -> tuple[Kernel, KernelCall]:
    """Return the kernel of `draft` under canonical names, and its call on the draft's buffers.

    `aligned` are the buffers known to start at a multiple of 16 bytes. A kernel that `contracts` has a
    contraction in the place of its sum of products. The kernel's name is provisional: see `KernelTable`.
    """
    draft, starts = _parametrize_starts(draft, buffers)
    arguments = _arguments(draft)
    sizes = _sizes(draft, tiling, [buffers[name].span for name in arguments])
    renamed: dict[Expr, Expr] = {}
    for position, size in enumerate(sizes):
        renamed[size] = symbol(f"n{position}", lo=size.lo, hi=size.hi)
    ranges = _ranges(tiling, renamed)
    symbols = {entry.symbol: r.symbol for entry, r in zip(tiling.ranges, ranges, strict=True)}
    whole = {
        **renamed,
        **{old: substitute(e, {**symbols, **renamed}) for old, e in tiling.mapping.items()},
    }
    axes = tuple(r.symbol for r in ranges if r.kind == "reduction")
    sequential = tuple(r.symbol for r in ranges if r.kind == "sequential")
    names = {name: a.name for name, a in arguments.items()}
    stores, checks = _rename(draft, whole, {draft.reduced: axes, draft.sequential: sequential}, names)
    args = tuple(
        TensorArg(
            name=argument.name,
            dtype=buffers[name].dtype,
            role=argument.role,
            span=substitute(buffers[name].span, renamed),
            aligned=name in aligned,
        )
        for name, argument in arguments.items()
    )
    # threads do not load, in the layout of a product's results, just the elements that they store
    pairs = () if contracts else find_aliasing(draft, buffers)
    kernel = Kernel(
        name=make_kernel_name(draft.origins, ranges),
        ranges=ranges,
        args=args,
        sizes=tuple(renamed.values()),
        aliasing=tuple((names[output], names[source]) for output, source in pairs),
        stores=stores,
        checks=checks,
        numerics=numerics,
        origins=draft.origins,
    )
    call = KernelCall(
        kernel=kernel.name,
        args=tuple(arguments),
        sizes=tuple(starts.get(size, size) for size in sizes),
        into=draft.into,
        origins=draft.origins,
    )
    return (contract_kernel(kernel) if contracts else kernel), call


def make_kernel_name(origins: tuple[Origin, ...], ranges: Sequence[Range]) -> str:
    """Return the provisional name of a kernel with these `ranges`: see `KernelTable`."""
    reduces = any(r.kind == "reduction" for r in ranges)
    return make_readable_name(origins, "reduce" if reduces else "pointwise")


def _ranges(tiling: Tiling, renamed: Mapping[Expr, Expr]) -> tuple[Range, ...]:
    """Return those of `tiling`, named by their letters and numbered by each."""
    ranges: list[Range] = []
    count: dict[str, int] = {}
    for entry in tiling.ranges:
        number = count.get(entry.letter, 0)
        count[entry.letter] = number + 1
        extent = substitute(get_extent(entry.symbol), renamed)
        renumbered = symbol(f"{entry.letter}{number}", extent=extent)
        ranges.append(Range(symbol=renumbered, kind=entry.kind))
    return tuple(ranges)


def _parametrize_starts(draft: Draft, buffers: Mapping[str, Buffer]) -> tuple[Draft, dict[Expr, Expr]]:
    """`draft` with a size symbol for where each box begins in its buffer, and what the symbols are.

    Several nodes that fill one buffer with boxes alike then share a kernel. Where a box begins at a multiple
    of 16 bytes the symbol counts these, so that the kernel knows.
    """
    starts: dict[Expr, Expr] = {}
    stores: list[Store] = []
    zeros = {r: as_expr(0) for r in (*draft.parallel, *draft.sequential, *draft.reduced)}
    for store in draft.stores:
        begin = as_int(substitute(store.index, zeros)) if store.buffer in draft.boxes else None
        if begin is not None:
            buffer = buffers[store.buffer]
            lanes = max(1, _VECTOR // buffer.dtype.itemsize)
            unit = lanes if begin % lanes == 0 else 1
            span = as_int(buffer.span)
            start = symbol(f"{_START}{len(starts)}", lo=0, hi=None if span is None else span // unit)
            starts[start] = as_expr(begin // unit)
            store = replace(store, index=store.index - begin + start * unit)
        stores.append(store)
    return (replace(draft, stores=tuple(stores)) if starts else draft), starts


class KernelTable:
    """The distinct kernels of one schedule, each named by what it does and a hash of its structure, and of
    where.
    """

    def __init__(self) -> None:
        self._known: dict[str, Kernel] = {}
        self._names: set[str] = set()

    def add(self, kernel: Kernel, target: str = "", candidates: tuple[Candidate, ...] = ()) -> Kernel:
        """Return the kernel with the structure of `kernel` that was added first, under its final name.

        `target` is the name of the target it is for, if that is not the graph's main one. `candidates` are
        how a template wants it to run: kernels that are to run otherwise are others.
        """
        text = f"{target}\n{format_structure(kernel)}" if target else format_structure(kernel)
        text = "\n".join([text, *(f"candidate {one.directives}" for one in candidates)])
        found = self._known.get(text)
        if found is not None:
            return found
        code = digest(text)
        length = 8
        while f"{kernel.name}_{code[:length]}" in self._names:
            length += 1
        named = replace(kernel, name=f"{kernel.name}_{code[:length]}")
        self._names.add(named.name)
        self._known[text] = named
        return named

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in the order of their first call."""
        return tuple(self._known.values())


def _arguments(draft: Draft) -> dict[str, _Argument]:
    """Arguments by buffer: what is only read, then what is read and written, then what is only written."""
    written = {store.buffer: store.mode for store in draft.stores}
    loaded = dict.fromkeys(
        node.buffer for node in iterate_postorder(list_scalars(draft)) if isinstance(node, Load)
    )
    result: dict[str, _Argument] = {}
    read_only = [name for name in loaded if name not in written]
    both = [n for n in written if n in loaded or n in draft.partial]
    write_only = [name for name in written if name not in both]
    roles: tuple[tuple[list[str], str, ArgRole], ...] = (
        (read_only, "in", "in"),
        (both, "io", "inout"),
        (write_only, "out", "out"),
    )
    for names, prefix, role in roles:
        for position, name in enumerate(names):
            result[name] = _Argument(name=f"{prefix}{position}", role=role)
    return result


def _sizes(draft: Draft, tiling: Tiling, spans: Iterable[Expr]) -> tuple[Expr, ...]:
    """Size symbols that the kernel uses, in order of first use."""
    found: dict[Expr, None] = {}

    def note(expr: Expr) -> None:
        for s in sorted(expr.free_symbols, key=lambda s: s.sort_key):
            if s.extent is None and not s.name.startswith("@"):
                found.setdefault(s)

    for entry in tiling.ranges:
        note(get_extent(entry.symbol))
    for store in draft.stores:
        note(store.index)
    for node in iterate_postorder(list_scalars(draft)):
        match node:
            case Load():
                for index in node.index:
                    note(index)
            case IndexValue():
                note(node.expr)
            case _:
                pass
    for span in spans:
        note(span)
    return tuple(found)


def _rename(
    draft: Draft,
    mapping: Mapping[Expr, Expr],
    axes: Mapping[tuple[Expr, ...], tuple[Expr, ...]],
    names: Mapping[str, str],
) -> tuple[tuple[Store, ...], tuple[Check, ...]]:
    done: dict[Scalar, Scalar] = {}
    for node in iterate_postorder(list_scalars(draft)):
        operands = [done[operand] for operand in node.operands]
        match node:
            case Load():
                count = len(node.indirect)
                done[node] = load(
                    names[node.buffer],
                    tuple(substitute(e, mapping) for e in node.index),
                    node.dtype,
                    indirect=operands[:count],
                    mask=operands[count] if node.mask is not None else None,
                    other=node.other,
                )
            case IndexValue():
                done[node] = index_value(substitute(node.expr, mapping), operands)
            case Reduce():
                done[node] = reduce(node.kind, operands, axes[node.axes], output=node.output)
            case Scan():
                done[node] = scan_again(node, operands, mapping[node.axis])
            case Sort():
                done[node] = sort_again(node, operands[0], mapping[node.axis])
            case _:
                done[node] = replace_operands(node, operands)
    stores = tuple(
        Store(
            buffer=names[store.buffer],
            index=substitute(store.index, mapping),
            value=done[store.value],
            indirect=tuple(done[value] for value in store.indirect),
            mode=store.mode,
            mask=None if store.mask is None else done[store.mask],
        )
        for store in draft.stores
    )
    checks = tuple(
        Check(condition=done[check.condition], message=check.message, error=check.error)
        for check in draft.checks
    )
    return stores, checks
