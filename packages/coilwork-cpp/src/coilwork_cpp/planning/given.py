"""Mappings that a user gives: one for each piece of a launch, with what the whole launch has to promise.

What they say of loops is for the rules of the IR (`coilwork_ir.mapping`) and of the generator (`refusals.py`)
to judge. What is common to a launch may be stricter than proposed, never freer: that functions are exact, and
in what order rows combine, follows from what is computed and promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from coilwork_cpp.planning.regions import group_stores
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Contract,
    Directive,
    Functions,
    Invariant,
    Mapping,
    Versions,
    check_closed,
    check_given,
    find,
)

_COMMON = (Functions, Contract, Invariant)


def settle_given(
    kernel: Kernel,
    given: Sequence[Versions],
    phases: Sequence[Sequence[Kernel]],
    proposed: tuple[Directive, ...],
) -> tuple[tuple[Mapping, ...], ...]:
    """The mappings `given` to `kernel`, for the pieces of each of its `phases`; `proposed` are the directives
    of the whole launch.

    Raises:
        EmitError: there are not as many as pieces, or one of them is not legal, by the name of the directive.
    """
    pieces = list(chain.from_iterable(phases))
    if len(given) != len(pieces):
        raise _refuse(
            kernel,
            "mapping",
            f"it is {len(given)} mappings, and the kernel is written as {len(pieces)} pieces",
            "give each piece a mapping, in the order in which a trace shows them (kernels/NAME.mapping.txt)",
        )
    found: list[Mapping] = []
    for piece, versions in zip(pieces, given, strict=True):
        if len(versions.versions) != 1 or versions.versions[0].guard is not None:
            raise _refuse(kernel, "mapping-versions", "C++ has one version, `otherwise`, for all sizes", "")
        mapping = _in_nests(kernel, piece, versions.general)
        check_closed(kernel, mapping)
        check_given(kernel, piece, mapping)
        found.append(mapping)
    for mapping in found:
        if mapping.directives != found[0].directives:
            raise _refuse(
                kernel, "mapping", "what is said outside of nests is common to all pieces of a launch", ""
            )
    _check_common(kernel, found[0].directives, proposed)
    rest = iter(found)
    return tuple(tuple(next(rest) for _ in pieces) for pieces in phases)


def _in_nests(kernel: Kernel, piece: Kernel, mapping: Mapping) -> Mapping:
    """`mapping` with loops in a nest, where it has none and `piece` is one."""
    if mapping.nests:
        return mapping
    groups = group_stores(piece)
    if len(groups) > 1:
        raise _refuse(
            kernel,
            "mapping",
            f"a piece has {len(groups)} loop nests, and the mapping none",
            "say `nest store 0:` before the directives of each",
        )
    common = tuple(one for one in mapping.directives if isinstance(one, _COMMON))
    own = tuple(one for one in mapping.directives if not isinstance(one, _COMMON))
    return Mapping(directives=common, nests=tuple(replace(nest, directives=own) for nest, _ in groups))


def _check_common(kernel: Kernel, given: tuple[Directive, ...], proposed: tuple[Directive, ...]) -> None:
    """Refuse what makes results freer than `proposed`."""
    functions, exact = find(given, Functions), find(proposed, Functions)
    if functions is not None and exact is not None and (functions.kind, exact.kind) == ("vector", "exact"):
        raise _refuse(kernel, "mapping-functions", "its functions have to be exact", "functions exact")
    if find(given, Contract) is not None and find(proposed, Contract) is None:
        raise _refuse(kernel, "mapping-contract", "its products and sums are rounded one by one", "")
    invariant = find(proposed, Invariant)
    if invariant is not None and find(given, Invariant) is None:
        raise _refuse(kernel, "mapping-invariant", "the order of combination is promised", invariant.text)


def _refuse(kernel: Kernel, code: str, reason: str, remedy: str) -> EmitError:
    return EmitError(
        code,
        f"the mapping given for kernel {kernel.name} is not one for it",
        origins=kernel.origins,
        reason=reason,
        remedy=remedy,
    )
