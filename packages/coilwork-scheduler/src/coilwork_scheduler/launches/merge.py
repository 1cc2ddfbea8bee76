"""One kernel of several of one kind, and its call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coilwork_ir.index import Expr, as_expr, substitute, symbol
from coilwork_ir.kernels import Combined, Kernel, KernelCall, Member, TensorArg
from coilwork_ir.kernels.verify import member_aliasing
from coilwork_ir.loc import UNKNOWN, merge_origins
from coilwork_scheduler.launches.kind import general, kind_of


def merge(calls: Sequence[tuple[Kernel, KernelCall]]) -> tuple[Kernel, KernelCall]:
    """The kernel that does what `calls`, whose kernels are of one kind, do, and its call. Its name is
    provisional.

    Tensors and sizes that several of them take are passed once.
    """
    parts = [(kernel, call, kind) for kernel, call in calls if (kind := kind_of(kernel))]
    first = parts[0][0]
    extents = [kind.extent for _, _, kind in parts if kind.extent is not None]
    alike = len(set(extents)) <= 1
    shared = first if alike else general(first, least=min(extents), most=max(extents))
    body = replace(shared, name="member", origins=UNKNOWN)
    sizes: dict[Expr, Expr] = {}
    args: dict[str, TensorArg] = {}
    members: list[Member] = []
    for number, (kernel, call, kind) in enumerate(parts):
        own = tuple(_size(e, s, sizes) for e, s in zip(call.sizes, kernel.sizes, strict=True))
        values = own if alike or kind.extent is None else (*own, as_expr(kind.extent))
        spans = dict(zip(body.sizes, values, strict=True))
        for formal, name in zip(body.args, call.args, strict=True):
            if name not in args:
                span = substitute(formal.span, spans)
                args[name] = replace(formal, name=f"m{number}_{formal.name}", span=span)
        members.append(Member(args=tuple(args[name].name for name in call.args), sizes=values))
    joined = Kernel(
        name=f"{first.name}_x{len(parts)}",
        ranges=(),
        args=tuple(args.values()),
        sizes=tuple(sizes.values()),
        aliasing=_aliasing(body, members),
        stores=(),
        combined=Combined(body=body, members=tuple(members)),
        numerics=first.numerics,
        origins=merge_origins(*(kernel.origins for kernel, _, _ in parts)),
    )
    call = KernelCall(
        kernel=joined.name,
        args=tuple(args),
        sizes=tuple(sizes),
        into=tuple(pair for _, call, _ in parts for pair in call.into),
        origins=joined.origins,
    )
    return joined, call


def _size(value: Expr, formal: Expr, sizes: dict[Expr, Expr]) -> Expr:
    """Return what a member's size symbol `formal` is: a number, or the symbol of the whole kernel for
    `value`.
    """
    if value.is_const:
        return value
    known = sizes.get(value)
    if known is None:
        known = sizes[value] = symbol(f"m_n{len(sizes)}", lo=formal.lo, hi=formal.hi)
    return known


def _aliasing(body: Kernel, members: Sequence[Member]) -> tuple[tuple[str, str], ...]:
    """The members' pairs of an output and an input that no other member reads."""
    readers: dict[str, int] = {}
    for member in members:
        for name in member.args:
            readers[name] = readers.get(name, 0) + 1
    pairs = (pair for member in members for pair in member_aliasing(body, member))
    return tuple((output, source) for output, source in pairs if readers[source] == 1)
