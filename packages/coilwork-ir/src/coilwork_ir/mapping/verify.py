"""The verifier of mappings: every directive's own rule, and what holds of mappings and versions as a whole.

An error names the directive: its code is `mapping-KEYWORD`.
"""

from __future__ import annotations

from dataclasses import replace

from coilwork_ir.errors import VerifyError
from coilwork_ir.index import Expr, as_expr, as_int, bound_magnitude, provably_le, substitute, symbol
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.rewrite import replace_sizes
from coilwork_ir.mapping.directive import Directive, get_body
from coilwork_ir.mapping.memory import INT32_MAX, Values, list_wide_values
from coilwork_ir.mapping.nodes import Guard, Mapping, Nest, Versions, find_divisor


def verify_mapping(kernel: Kernel, mapping: Mapping) -> None:
    """Check that `mapping` may be said of `kernel`.

    Raises:
        VerifyError: the first directive whose rule is broken, by name, and why.
    """
    found = find_fault(kernel, mapping)
    if found is not None:
        directive, reason = found
        code = "mapping" if directive is None else f"mapping-{directive.keyword()}"
        raise VerifyError(
            code,
            "a mapping says of a kernel what is legal" if directive is None else _rule(directive),
            node=f"kernel @{kernel.name}" if directive is None else directive.text,
            origins=kernel.origins,
            reason=reason,
        )


def find_fault(kernel: Kernel, mapping: Mapping) -> tuple[Directive | None, str] | None:
    """Return the first directive of `mapping` that may not be said of `kernel`, and why; None instead of one:
    the nests are to blame.
    """
    for directive in mapping.directives:
        reason = directive.why_illegal(kernel, mapping.directives)
        if reason is not None:
            return directive, reason
    reason = _why_no_nests(kernel, mapping)
    if reason is not None:
        return None, reason
    for nest in mapping.nests:
        scope = (*mapping.directives, *nest.directives)
        part = restrict_to_nest(kernel, nest)
        for directive in nest.directives:
            reason = directive.why_illegal(kernel if directive.NAMES_VALUES else part, scope)
            if reason is not None:
                return directive, reason
    return None


def verify_versions(kernel: Kernel, versions: Versions) -> None:
    """Check that `versions` are those of `kernel`, each legal for the sizes that it is for.

    Raises:
        VerifyError: the first rule that is broken.
    """

    def fail(reason: str) -> VerifyError:
        sentence = "versions have guards over the kernel's sizes, but for the last, which is for all sizes"
        return VerifyError("mapping-versions", sentence, node=f"kernel @{kernel.name}", reason=reason)

    if not versions.versions or versions.versions[-1].guard is not None:
        raise fail("the last version has a guard")
    for directive in versions.versions[:-1]:
        if directive.guard is None:
            raise fail("a version that is not the last has no guard")
        unknown = directive.guard.distance.free_symbols - frozenset(kernel.sizes)
        if unknown:
            raise fail(f"{min(s.name for s in unknown)} is no size of the kernel")
    for directive in versions.versions:
        verify_mapping(
            kernel if directive.guard is None else assume(kernel, directive.guard), directive.mapping
        )
        promised = directive.mapping.find(Values)
        if directive.guard is not None and promised is not None and promised.promised:
            broken = _why_unkept(kernel, directive.guard)
            if broken is not None:
                raise VerifyError(
                    "mapping-values",
                    _rule(promised),
                    node=promised.text,
                    origins=kernel.origins,
                    reason=broken,
                )


def restrict_to_nest(kernel: Kernel, nest: Nest) -> Kernel:
    """`kernel` with those of its stores alone, or that check alone, that `nest` does."""
    if kernel.combined is not None:
        return kernel
    stores = tuple(kernel.stores[number] for number in nest.stores)
    return replace(kernel, stores=stores, checks=() if nest.check is None else (kernel.checks[nest.check],))


def _why_unkept(kernel: Kernel, guard: Guard) -> str | None:
    """Return why `guard` leaves positions that are values of `kernel` beyond 32 bits; None if it does not."""
    special, (renewed, _) = assume(kernel, guard), _renew(kernel, guard)
    most = [
        substitute(d.left, renewed)
        for d in guard.conditions
        if d.relation == "<=" and provably_le(d.right, INT32_MAX)
    ]
    for expr in list_wide_values(special):
        largest = bound_magnitude(expr)
        if largest is None or not any(provably_le(largest, end) for end in (*most, as_expr(INT32_MAX))):
            return f"the guard does not say that {expr!r} fits"
    return None


def assume(kernel: Kernel, guard: Guard) -> Kernel:
    """`kernel` where `guard` holds: with the bounds and multiples of sizes that it says."""
    if kernel.combined is not None:
        return kernel
    renewed, sizes = _renew(kernel, guard)
    return replace_sizes(kernel, renewed, sizes)


def _renew(kernel: Kernel, guard: Guard) -> tuple[dict[Expr, Expr], tuple[Expr, ...]]:
    """Return the sizes of `kernel` where `guard` holds, and the symbols that they are expressed by."""
    most: dict[str, int] = {}
    unit: dict[str, int] = {}
    for condition in guard.conditions:
        number = as_int(condition.right)
        divided = find_divisor(condition)
        if divided is not None:
            unit[divided[0].name] = divided[1]
        elif condition.relation == "<=" and condition.left.is_symbol and number is not None:
            most[condition.left.name] = min(number, most.get(condition.left.name, number))
    renewed: dict[Expr, Expr] = {}
    sizes: list[Expr] = []
    for size in kernel.sizes:
        by = unit.get(size.name, 1)
        highs = [end for end in (size.hi, most.get(size.name)) if end is not None]
        part = symbol(
            size.name if by == 1 else f"{size.name}_by_{by}",
            lo=None if size.lo is None else -(-size.lo // by),
            hi=min(highs) // by if highs else None,
        )
        renewed[size] = by * part
        sizes.append(part)
    return renewed, tuple(sizes)


def _why_no_nests(kernel: Kernel, mapping: Mapping) -> str | None:
    """Return why the nests of `mapping` do not do each store and check of `kernel` once, checks first; None
    if they do, or there are none.
    """
    if not mapping.nests:
        return None
    body = get_body(kernel)
    for nest in mapping.nests:
        if (nest.check is None) == (not nest.stores):
            return "a nest does either stores or one check"
    stores = [number for nest in mapping.nests for number in nest.stores]
    checks = [nest.check for nest in mapping.nests if nest.check is not None]
    if sorted(stores) != list(range(len(body.stores))):
        return f"nests do the stores {stores} of {len(body.stores)}"
    if checks != list(range(len(body.checks))):
        return f"nests do the checks {checks} of {len(body.checks)}"
    kinds = [nest.check is None for nest in mapping.nests]
    return "a nest stores before all checks are done" if kinds != sorted(kinds) else None


def _rule(directive: Directive) -> str:
    """Return the sentence that documents the directive's rule."""
    doc = type(directive).why_illegal.__doc__ or ""
    return " ".join(doc.split("\n\n", 1)[0].split()).rstrip(".")
