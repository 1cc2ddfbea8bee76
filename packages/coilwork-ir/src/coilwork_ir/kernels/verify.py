"""The verifier of kernel IR: kernels and schedules.

`KERNEL_RULES` and `SCHEDULE_RULES` list the invariants, `COMBINED_RULES` those of several computations in one
launch, whose body is checked as a kernel of its own. Each name is the code of the `VerifyError` that breaking
it raises. Linear in the size of the kernel or schedule. `verify_template_kernels.py` has the rules of cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, substitute
from coilwork_ir.kernels.alias_analysis import ALIASING_RULES, check_aliasing, check_pairs
from coilwork_ir.kernels.nodes import (
    ComboKernel,
    Kernel,
    KernelCall,
    Member,
    Proposal,
    RangeKind,
    Schedule,
    Store,
    TensorArg,
)
from coilwork_ir.kernels.verify_template_kernels import CORE_RULES, check_core
from coilwork_ir.kernels.workspace import WORKSPACE_RULES, check_workspace
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.verify import RULES as LOOP_RULES
from coilwork_ir.loops.verify import verify_node, verify_results
from coilwork_ir.loops.verify_compute import check_same_layout
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import (
    Contraction,
    IndexValue,
    Load,
    Parameter,
    Reduce,
    Scalar,
    Scan,
    Sort,
    find_contractions,
    find_parts,
    iterate_postorder,
)
from coilwork_ir.streams import ForkStream, JoinStream, RecordEvent, WaitEvent
from coilwork_ir.verification import (
    SCALAR_RULES,
    SCOPE_RULES,
    STREAM_RULES,
    Place,
    Rule,
    Scope,
    StreamChecker,
    check_index,
    check_load,
    check_mask,
    check_symbols_of,
    open_scope,
)

# ---- Combo kernels ----


COMBINED_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "combined-alone": Rule(
            (
                "a combined kernel has no ranges, stores or checks besides its body, which is not combined "
                "itself"
            ),
            "move them into the body",
        ),
        "combined-names": Rule(
            "arguments and sizes of a combined kernel have other names than those of its body",
            "name them after the members, m0_in0, m1_in0, ...",
        ),
        "member-arity": Rule(
            "a member names one argument for each of the body's and one size for each of its symbols",
            "pass what is missing",
        ),
        "member-arg": Rule(
            "what a member passes has the type, span, alignment and role that the body declares",
            "declare the argument of the kernel as the body does",
        ),
        "member-apart": Rule(
            "what one member writes no other member touches", "run them one after the other, in two launches"
        ),
    }
)


def check_combined(kernel: Kernel, combined: ComboKernel, place: Place) -> None:
    """Check `kernel`, which is `combined`; its body is checked elsewhere.

    Raises:
        VerifyError: the first rule that is broken.
    """
    if kernel.ranges or kernel.stores or kernel.checks or combined.body.combined is not None:
        place.fail("combined-alone", f"of {len(combined.members)} members")
    if not combined.members:
        place.fail("effect", "there is no member")
    symbols = {size.name: size for size in kernel.sizes}
    if len(symbols) != len(kernel.sizes):
        place.fail("unique-symbol", "a size symbol is listed twice")
    args = {arg.name: arg for arg in kernel.args}
    if len(args) != len(kernel.args):
        place.fail("unique-arg", "an argument is declared twice")
    formal = {a.name for a in combined.body.args} | {s.name for s in combined.body.sizes}
    for name in (*args, *symbols):
        if name in formal:
            place.fail("combined-names", f"{name} is a name of the body")
    # argument -> the first member that uses it
    users: dict[str, int] = {}
    for number, member in enumerate(combined.members):
        _check_member(member, number, combined.body, args, place)
        for size in member.sizes:
            for symbol in size.free_symbols:
                if symbols.get(symbol.name) is not symbol:
                    place.fail("symbol-declared", f"{symbol.name} in {size!r} is not declared")
        for name in dict.fromkeys(member.args):
            if users.setdefault(name, number) == number:
                continue
            if args[name].role != "in":
                place.fail("member-apart", f"{name} is written, and member {number} uses it too")
    for name in args:
        if name not in users:
            place.fail("arg-unused", f"{name} belongs to no member")
    check_pairs(kernel.aliasing, args, place)
    shared = {pair for member in combined.members for pair in find_member_aliasing(combined.body, member)}
    for output, source in kernel.aliasing:
        if (output, source) not in shared:
            place.fail("aliasing", f"no member may have {output} in the memory of {source}")
        if sum(source in member.args for member in combined.members) > 1:
            place.fail("aliasing", f"{output} of {source}, which several members read")


def find_member_aliasing(body: Kernel, member: Member) -> tuple[tuple[str, str], ...]:
    """Return the pairs of `body.aliasing`, by the arguments that `member` passes."""
    actual = {formal.name: name for formal, name in zip(body.args, member.args, strict=True)}
    return tuple((actual[output], actual[source]) for output, source in body.aliasing)


def _check_member(
    member: Member, number: int, body: Kernel, args: Mapping[str, TensorArg], place: Place
) -> None:
    if len(member.args) != len(body.args) or len(member.sizes) != len(body.sizes):
        place.fail("member-arity", f"member {number}: {len(member.args)} and {len(member.sizes)}")
    values = dict(zip(body.sizes, member.sizes, strict=True))
    for formal, name in zip(body.args, member.args, strict=True):
        arg = args.get(name)
        if arg is None:
            place.fail("member-arg", f"{name} of member {number} is not declared")
        wanted = (formal.dtype, formal.role, formal.aligned, substitute(formal.span, values))
        if (arg.dtype, arg.role, arg.aligned, arg.span) != wanted:
            place.fail("member-arg", f"{name} of member {number} is declared otherwise than {formal.name}")
    if len(set(member.args)) != len(member.args):
        place.fail("member-apart", f"member {number} passes one argument twice")


# ---- Contractions ----


CONTRACTION_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "contraction": Rule(
            "a kernel with contractions combines nothing else, all have the same rows, columns and batch, "
            "their left factors vary along rows, their right ones along "
            "columns, both along the sum, and what the kernel does besides varies along parallel ranges only",
            "write the sum as a reduction, or put the rest into a kernel of its own",
        ),
    }
)


def check_contraction(
    kernel: Kernel,
    nodes: tuple[Contraction, ...],
    level_of: Mapping[Scalar, frozenset[Expr]],
    roots: tuple[Scalar, ...],
    place: Place,
) -> None:
    """Check that `kernel` combines nothing but `nodes`, and that these share rows, columns and a sum.

    Args:
        kernel: the kernel.
        nodes: its contractions, in postorder.
        level_of: the ranges along which each value varies.
        roots: the values that it stores or checks.
        place: the kernel in messages.

    Raises:
        VerifyError: the kernel breaks the rule `contraction`.
    """
    combining = [v for v in iterate_postorder(roots) if isinstance(v, Contraction | Reduce | Scan | Sort)]
    if tuple(combining) != nodes:
        place.fail("contraction", f"it combines {len(combining)} times, {len(nodes)} of them products")
    others = frozenset(r.symbol for r in kernel.ranges if r.kind != "parallel")
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    parts = [find_parts(node.left, node.right, parallel, node.axes) for node in nodes]
    for node, found in zip(nodes, parts, strict=True):
        if frozenset(node.axes) != others or len(node.axes) != len(others):
            place.fail("contraction", "the products are not summed over all ranges that are not parallel")
        if found is None:
            place.fail("contraction", "its factors do not tell rows, columns and a batch apart")
        if found != parts[0]:
            place.fail("contraction", "its products have different rows and columns")
    touched = frozenset().union(*(level_of[r] for r in roots), *(s.index.free_symbols for s in kernel.stores))
    for symbol in sorted(touched & others, key=lambda s: s.name):
        place.fail("contraction", f"something besides the products varies along {symbol.name}")


# ---- Kernels and schedules ----


KERNEL_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **SCALAR_RULES,
        **ALIASING_RULES,
        **COMBINED_RULES,
        **CONTRACTION_RULES,
        **CORE_RULES,
        **WORKSPACE_RULES,
        "symbol-declared": SCOPE_RULES["symbol-declared"],
        "unique-symbol": SCOPE_RULES["unique-symbol"],
        "range": Rule(
            "ranges are distinct range symbols: parallel ones in tiles x, y, z, then sequential ones in tile "
            "w, then reduced ones in tile r",
            "order the ranges outermost first, reduced ones last",
        ),
        "unique-arg": Rule("argument names are distinct", "name the arguments in0, in1, ..., out0, ..."),
        "arg-role": Rule(
            "what is loaded is an `in` or `inout` argument, what is stored an `out` or `inout` one",
            "declare the argument with the role that it has",
        ),
        "arg-unused": Rule("every argument is loaded or stored", "leave the argument out"),
        "store-dtype": Rule("a store writes the element type of its argument", "cast the value"),
        "reduce-axes": Rule(
            (
                "a reduction in a kernel combines along all of the kernel's reduction ranges, or along all "
                "of its sequential ones"
            ),
            "put reductions along other ranges into a kernel of their own",
        ),
        "sequential": Rule(
            "a kernel with sequential ranges has reduced ones too, combines nothing with memory, and reduces "
            "along the sequential ones by kinds whose results combine as values do",
            "put what reduces otherwise into a kernel of its own",
        ),
        "sequential-order": Rule(
            "what uses a reduction along sequential ranges varies along none of them, and is not reduced "
            "again",
            "put it into a later kernel",
        ),
        "scan-axis": Rule(
            "a scan or sort runs along a reduction range", "make the range it runs along a reduction range"
        ),
        "store-level": Rule(
            (
                "an unmasked plain store whose value varies along a reduced or sequential range varies along "
                "it in its index too"
            ),
            "reduce the value first, or store it at an index that uses the range",
        ),
        "effect": Rule("a kernel stores or checks something", "leave the kernel out"),
    }
)

SCHEDULE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **STREAM_RULES,
        **LOOP_RULES,
        "unique-kernel": Rule("every kernel is listed once", "list equal kernels once"),
        "kernel-exists": Rule("a call names a kernel of the schedule", "add the kernel"),
        "proposal": Rule(
            "a proposal is for a kernel that is listed, once, and has candidates", "name each kernel once"
        ),
        "call-arity": Rule(
            "a call gives one buffer per tensor argument and one size per size symbol", "pass what is missing"
        ),
        "call-dtype": Rule("a call's buffers have the element types of the kernel's arguments", "cast first"),
        "call-writes": Rule(
            "a call defines the buffers that it writes, or takes over their memory with `into`",
            "write into a new buffer, or pair it with the old one in `into`",
        ),
        "buffer-declared": Rule(
            "the schedule lists every buffer that a step defines, once", "add the buffer to `buffers`"
        ),
    }
)


# Kernels

# The kinds of ranges, in the order in which a kernel lists them.
_KINDS: Final[tuple[RangeKind, ...]] = ("parallel", "sequential", "reduction")


class _KernelScope:
    """Size symbols of a kernel; the ranges are passed as local symbols."""

    def __init__(self, sizes: Iterable[Expr]) -> None:
        self.symbols = {size.name: size for size in sizes}

    def check_symbols(self, expr: Expr, local: object, place: Place) -> None:
        known = local if isinstance(local, frozenset | set) else frozenset()
        for symbol in expr.free_symbols:
            if symbol in known or self.symbols.get(symbol.name) is symbol:
                continue
            reason = "has other bounds than declared" if symbol.name in self.symbols else "is not declared"
            place.fail("symbol-declared", f"{symbol.name} in {expr!r} {reason}")


def verify_kernel(kernel: Kernel) -> None:
    """Check `kernel` against `KERNEL_RULES`.

    Raises:
        VerifyError: the first rule that is broken, with source line, reason and remedy.
    """
    place = Place(describe=lambda: f"kernel @{kernel.name}", origins=kernel.origins, rules=KERNEL_RULES)
    if kernel.combined is not None:
        if kernel.combined.body.combined is None:
            verify_kernel(kernel.combined.body)
        check_combined(kernel, kernel.combined, place)
        return
    scope = _check_ranges(kernel, place)
    args: dict[str, TensorArg] = {}
    for arg in kernel.args:
        if args.setdefault(arg.name, arg) is not arg:
            place.fail("unique-arg", f"{arg.name} is declared twice")
        scope.check_symbols(arg.span, frozenset(), place)
    if not kernel.stores and not kernel.checks:
        place.fail("effect", "there is neither a store nor a check")
    used = _check_core(kernel, args, scope, place) | _check_values(kernel, args, scope, place)
    for store in kernel.stores:
        _check_store(store, args, kernel, scope, place)
        used.add(store.buffer)
    for check in kernel.checks:
        check_mask(check.condition, "the condition of a check", place)
    if kernel.workspace:
        check_workspace(kernel, used, place)
        used.add(kernel.workspace)
    for name in args:
        if name not in used:
            place.fail("arg-unused", f"{name} is neither loaded nor stored")
    check_aliasing(kernel, args, place)
    contractions = find_contractions(_roots(kernel))
    if contractions or any(entry.kind != "parallel" for entry in kernel.ranges):
        level_of = find_levels(kernel)
        _check_levels(kernel, level_of, place)
        _check_sequential(kernel, level_of, place)
        if contractions:
            check_contraction(kernel, contractions, level_of, _roots(kernel), place)


def _check_ranges(kernel: Kernel, place: Place) -> _KernelScope:
    scope = _KernelScope(kernel.sizes)
    if len(scope.symbols) != len(kernel.sizes):
        place.fail("unique-symbol", "a size symbol is listed twice")
    names: set[str] = set()
    before = 0
    for entry in kernel.ranges:
        value = entry.symbol
        if not value.is_symbol or value.extent is None:
            place.fail("range", f"{value!r} is not a range symbol")
        if value.name in names or value.name in scope.symbols:
            place.fail("range", f"the name {value.name} is taken")
        names.add(value.name)
        order = _KINDS.index(entry.kind)
        if order < before:
            place.fail("range", f"{value.name} is {entry.kind} after a {_KINDS[before]} range")
        before = order
        scope.check_symbols(value.extent, frozenset(), place)
    return scope


def _roots(kernel: Kernel) -> tuple[Scalar, ...]:
    roots: list[Scalar] = []
    for store in kernel.stores:
        roots += [store.value, *store.indirect, *(() if store.mask is None else (store.mask,))]
    return (*roots, *(check.condition for check in kernel.checks))


def _check_core(kernel: Kernel, args: Mapping[str, TensorArg], scope: _KernelScope, place: Place) -> set[str]:
    """Check the core of `kernel`, if it has one; the names of the arguments that its bodies load."""
    if kernel.core is None:
        return set()

    def check(value: Scalar, local: frozenset[Expr]) -> None:
        if isinstance(value, Load):
            _check_load(value, args, place)
        check_symbols_of(value, local, scope, place)

    check_core(kernel, kernel.core, check, place)
    return {value.buffer for value in iterate_postorder(kernel.core.bodies) if isinstance(value, Load)}


def _check_load(node: Load, args: Mapping[str, TensorArg], place: Place) -> None:
    arg = args.get(node.buffer)
    if arg is None or arg.role == "out":
        place.fail("arg-role", f"{node.buffer} is loaded and {'not declared' if arg is None else 'out'}")
    check_load(node, arg.dtype, 1, place)


def _check_values(
    kernel: Kernel, args: Mapping[str, TensorArg], scope: _KernelScope, place: Place
) -> set[str]:
    ranges = frozenset(r.symbol for r in kernel.ranges)
    reduced = frozenset(r.symbol for r in kernel.ranges if r.kind == "reduction")
    sequential = frozenset(r.symbol for r in kernel.ranges if r.kind == "sequential")
    loaded: set[str] = set()
    for node in iterate_postorder(_roots(kernel)):
        match node:
            case Load():
                _check_load(node, args, place)
                loaded.add(node.buffer)
            case Reduce():
                along = frozenset(node.axes)
                if along not in (reduced, sequential or reduced) or len(node.axes) != len(along):
                    shown = ", ".join(a.name for a in node.axes)
                    place.fail("reduce-axes", f"{node.kind} along ({shown})")
            case Scan():
                if node.axis not in reduced:
                    place.fail("scan-axis", f"scan along {node.axis!r}")
            case Sort():
                if node.axis not in reduced:
                    place.fail("scan-axis", f"sort along {node.axis!r}")
            case Parameter() if kernel.core is not None:
                # a result of the core
                continue
            case _:
                pass
        check_symbols_of(node, ranges, scope, place)
    return loaded


def _check_store(
    store: Store, args: Mapping[str, TensorArg], kernel: Kernel, scope: _KernelScope, place: Place
) -> None:
    arg = args.get(store.buffer)
    if arg is None or arg.role == "in":
        place.fail("arg-role", f"{store.buffer} is stored and {'not declared' if arg is None else 'in'}")
    if store.value.dtype is not arg.dtype:
        place.fail("store-dtype", f"{store.buffer} is {arg.dtype.text}, the value {store.value.dtype.text}")
    check_mask(store.mask, "the mask of a store", place)
    ranges = frozenset(r.symbol for r in kernel.ranges)
    check_index((store.index,), store.indirect, ranges, scope, place)


def find_levels(kernel: Kernel) -> dict[Scalar, frozenset[Expr]]:
    """Return the ranges that the value of each scalar node of `kernel` varies along; a `Reduce` or
    `Contraction` removes its axes.
    """
    ranges = frozenset(r.symbol for r in kernel.ranges)
    found: dict[Scalar, frozenset[Expr]] = {}
    for node in iterate_postorder(_roots(kernel)):
        level: frozenset[Expr] = frozenset()
        for operand in node.operands:
            level |= found[operand]
        match node:
            case Load():
                for expr in node.index:
                    level |= expr.free_symbols & ranges
            case IndexValue():
                level |= node.expr.free_symbols & ranges
            case Reduce() | Contraction():
                level -= frozenset(node.axes)
            case Scan() | Sort():
                level |= {node.axis}
            case _:
                pass
        found[node] = level
    return found


def _check_levels(kernel: Kernel, level_of: Mapping[Scalar, frozenset[Expr]], place: Place) -> None:
    reduced = frozenset(r.symbol for r in kernel.ranges if r.kind != "parallel")
    for store in kernel.stores:
        if store.mode != "store" or store.mask is not None:
            continue
        target = store.index.free_symbols.union(*(level_of[v] for v in store.indirect))
        for missing in (level_of[store.value] & reduced) - target:
            place.fail(
                "store-level",
                f"the value stored to {store.buffer} varies along {missing.name}, its index does not",
            )


def _check_sequential(kernel: Kernel, level_of: Mapping[Scalar, frozenset[Expr]], place: Place) -> None:
    sequential = frozenset(r.symbol for r in kernel.ranges if r.kind == "sequential")
    if not sequential:
        return
    if not any(r.kind == "reduction" for r in kernel.ranges):
        place.fail("sequential", "no range is reduced")
    for store in kernel.stores:
        if store.mode != "store":
            place.fail("sequential", f"the store to {store.buffer} combines by {store.mode}")
    late: set[Scalar] = set()
    for node in iterate_postorder(_roots(kernel)):
        again = not late.isdisjoint(node.operands)
        column = isinstance(node, Reduce) and not sequential.isdisjoint(node.axes)
        if isinstance(node, Reduce) and column and node.kind not in SELF_COMBINING:
            place.fail("sequential", f"{node.kind} along sequential ranges")
        if again and (
            isinstance(node, Reduce | Contraction | Scan | Sort) or not sequential.isdisjoint(level_of[node])
        ):
            place.fail(
                "sequential-order", f"{type(node).__name__.lower()} of a reduction along sequential ranges"
            )
        if again or column:
            late.add(node)
    for store in kernel.stores:
        parts = (store.value, *store.indirect, *(() if store.mask is None else (store.mask,)))
        spans = store.index.free_symbols.union(*(level_of[part] for part in parts))
        if not late.isdisjoint(parts) and not sequential.isdisjoint(spans):
            place.fail("sequential-order", f"{store.buffer} is stored at every sequential point")


# Schedules


def check_proposals(proposals: Iterable[Proposal], kernels: Mapping[str, Kernel], place: Place) -> None:
    """Check that `proposals` are for `kernels`, as rule `proposal` says."""
    seen: set[str] = set()
    for proposal in proposals:
        if proposal.kernel not in kernels or proposal.kernel in seen or not proposal.candidates:
            place.fail("proposal", f"@{proposal.kernel} is unknown, proposed for twice, or has no candidate")
        seen.add(proposal.kernel)


def verify_schedule(schedule: Schedule) -> None:
    """Check `schedule` and its kernels against `SCHEDULE_RULES` and `KERNEL_RULES`.

    Raises:
        VerifyError: the first rule that is broken, with step, source line, reason and remedy.
    """
    place = Place(describe=lambda: f"schedule @{schedule.name}", rules=SCHEDULE_RULES)
    scope = open_scope(schedule.symbols, schedule.inputs, schedule.constants, place, None)
    kernels: dict[str, Kernel] = {}
    for kernel in schedule.kernels:
        if kernels.setdefault(kernel.name, kernel) is not kernel:
            place.fail("unique-kernel", f"@{kernel.name} is listed twice")
        verify_kernel(kernel)
    check_proposals(schedule.proposals, kernels, place)
    declared = {buffer.name: buffer for buffer in schedule.buffers}
    if len(declared) != len(schedule.buffers):
        place.fail("buffer-declared", "a name is listed twice")
    streams = StreamChecker()
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            _check_call(step, kernels, declared, scope)
            streams.check_stream(step.stream, replace(place, origins=step.origins))
            continue
        if isinstance(step, ForkStream | RecordEvent | WaitEvent | JoinStream):
            streams.follow(step, place)
            continue
        for buffer in list_defined_buffers(step):
            if declared.get(buffer.name) != buffer:
                place.fail("buffer-declared", f"%{buffer.name} is missing, or listed with another layout")
        verify_node(step, scope)
    streams.finish(place)
    verify_results(schedule.outputs, scope, place)


def _check_call(
    call: KernelCall, kernels: Mapping[str, Kernel], declared: Mapping[str, Buffer], scope: Scope
) -> None:
    place = Place(
        describe=lambda: f"call @{call.kernel} ({', '.join('%' + a for a in call.args)})",
        origins=call.origins,
        rules=SCHEDULE_RULES,
    )
    kernel = kernels.get(call.kernel)
    if kernel is None:
        place.fail("kernel-exists", f"there is no kernel @{call.kernel}")
    if len(call.args) != len(kernel.args) or len(call.sizes) != len(kernel.sizes):
        place.fail(
            "call-arity",
            (
                f"{len(call.args)} buffers and {len(call.sizes)} sizes for {len(kernel.args)} and "
                f"{len(kernel.sizes)}"
            ),
        )
    for size in call.sizes:
        scope.check_symbols(size, (), place)
    takes = dict(call.into)
    for new, old in call.into:
        check_same_layout(_find_declared(new, declared, place), scope.use(old, place), place)
    fresh: list[Buffer] = []
    for name, arg in zip(call.args, kernel.args, strict=True):
        if arg.role == "in":
            buffer = scope.use(name, place)
        elif name in takes:
            buffer = _find_declared(name, declared, place)
        elif name in takes.values():
            buffer = scope.use(name, place)
        else:
            buffer = _find_declared(name, declared, place)
            if arg.role == "inout":
                place.fail(
                    "call-writes", f"%{name} is read and written, and `into` does not say what it replaces"
                )
            if name in scope.buffers:
                place.fail("call-writes", f"%{name} is defined already")
            fresh.append(buffer)
        if buffer.dtype is not arg.dtype:
            place.fail(
                "call-dtype", f"%{name} is {buffer.dtype.text}, argument {arg.name} is {arg.dtype.text}"
            )
    scope.overwrite(takes.values(), [_find_declared(new, declared, place) for new in takes], place)
    for buffer in fresh:
        scope.define(buffer, place)


def _find_declared(name: str, declared: Mapping[str, Buffer], place: Place) -> Buffer:
    buffer = declared.get(name)
    if buffer is None:
        place.fail("buffer-declared", f"%{name} is not listed")
    return buffer
