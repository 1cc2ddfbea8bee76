"""A kernel's stores in groups that share a loop nest, and which ranges of each may run in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from coilwork_cpp.facts import Facts, collect_facts
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, add_all, as_int, const, find_bounds, find_stride, get_extent
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.loops.nodes import Check
from coilwork_ir.mapping import Nest
from coilwork_ir.scalar import Load, Reduce, Scalar, Scan, Sort, iterate_postorder


@dataclass(frozen=True, kw_only=True)
class Region:
    """The work of one loop nest: perform stores, or test the condition of one check.

    Attributes:
        stores: in order; empty for a check.
        check: its number and itself.
        parallel: ranges whose points may run in any order and at once, outermost first.
        serial: ranges whose points must run in order, because several may write one element.
        reduction: ranges that some value is reduced, scanned or sorted along.
        facts: about all values below `roots`.
    """

    stores: tuple[Store, ...]
    check: tuple[int, Check] | None
    parallel: tuple[Expr, ...]
    serial: tuple[Expr, ...]
    reduction: tuple[Expr, ...]
    facts: Facts

    @cached_property
    def roots(self) -> tuple[Scalar, ...]:
        """Values that the region computes."""
        if self.check is not None:
            return (self.check[1].condition,)
        return tuple(root for store in self.stores for root in list_store_roots(store))

    @cached_property
    def values(self) -> tuple[Scalar, ...]:
        """All values below the roots, operands first."""
        return tuple(iterate_postorder(self.roots))

    def varies(self, store: Store) -> frozenset[Expr]:
        """Return the ranges that `store` varies along."""
        ranges = store.index.free_symbols & frozenset((*self.parallel, *self.serial, *self.reduction))
        for root in list_store_roots(store):
            ranges |= self.facts.varies[root]
        return ranges

    def separate_columns(self, vector: Expr) -> Region:
        """Return the region with facts in which every point of `vector` has variables of its own."""
        ranges = (*self.parallel, *self.serial, *self.reduction)
        return replace(self, facts=collect_facts(self.roots, ranges, columns=frozenset((vector,))))


def group_stores(kernel: Kernel) -> tuple[tuple[Nest, Region], ...]:
    """Return the nests of `kernel`: checks first, each in a nest of its own, so that a failing one keeps
    every access it guards from happening.

    Stores at the points of the same ranges share a nest.

    Raises:
        EmitError: a check's condition reduces, scans or sorts, or groups of stores overwrite what the others
            read.
    """
    checks = tuple(Nest(check=number) for number in range(len(kernel.checks)))
    groups: dict[tuple[frozenset[Expr], frozenset[Expr]], list[int]] = {}
    survey = _survey_stores(kernel)
    for number, key in enumerate(_nest_keys(kernel, survey)):
        groups.setdefault(key, []).append(number)
    stores = [Nest(stores=tuple(numbers)) for numbers in groups.values()]
    nests = (*checks, *_readers_first(stores, kernel))
    return tuple(zip(nests, _regions(kernel, nests, survey), strict=True))


def list_regions(kernel: Kernel, nests: Sequence[Nest]) -> tuple[Region, ...]:
    """Return the work of each of `nests` of `kernel`, and which ranges may run in any order.

    Raises:
        EmitError: a check's condition reduces, scans or sorts, or a nest's stores are no group.
    """
    return _regions(kernel, nests, _survey_stores(kernel))


def _regions(kernel: Kernel, nests: Sequence[Nest], survey: _Survey) -> tuple[Region, ...]:
    keys = _nest_keys(kernel, survey)
    ranges = tuple(r.symbol for r in kernel.ranges)
    regions = []
    for nest in nests:
        if nest.check is not None:
            regions.append(_check_region(nest.check, kernel.checks[nest.check], ranges))
        elif len({keys[number] for number in nest.stores}) == 1:
            regions.append(_store_region(kernel, keys[nest.stores[0]][0], nest.stores, survey))
        else:
            raise EmitError(
                "mapping-nest", f"stores {nest.stores} of {kernel.name} happen at points of other ranges"
            )
    return tuple(regions)


def check_nests_in_order(kernel: Kernel, nests: Sequence[Nest]) -> None:
    """Refuse nests of which one writes memory that a later one still has to read.

    Raises:
        EmitError: there is such a nest.
    """
    reads, writes = _list_accesses(nests, kernel)
    for number in range(len(nests)):
        if any(not writes[number].isdisjoint(later) for later in reads[number + 1 :]):
            raise EmitError(
                "mapping-nest", f"nest {number} of {kernel.name} overwrites what a later one reads"
            )


@dataclass(frozen=True, slots=True)
class _Survey:
    """Facts about a kernel's stores, one entry for each.

    Attributes:
        domains: the ranges at whose points it happens.
        combines: whether it takes a reduction, scan or sort.
        facts: about the values of all stores.
    """

    domains: tuple[frozenset[Expr], ...]
    combines: tuple[bool, ...]
    facts: Facts


def _survey_stores(kernel: Kernel) -> _Survey:
    symbols = frozenset(r.symbol for r in kernel.ranges)
    parallel = frozenset(r.symbol for r in kernel.ranges if r.kind == "parallel")
    roots = [list_store_roots(store) for store in kernel.stores]
    every = tuple(root for of_one in roots for root in of_one)
    facts = collect_facts(every, symbols)
    taken: set[Scalar] = set()
    for value in facts.varies:
        if isinstance(value, Reduce | Scan | Sort) or not taken.isdisjoint(value.operands):
            taken.add(value)
    domains = []
    for store, of_one in zip(kernel.stores, roots, strict=True):
        domain = store.index.free_symbols & symbols
        for root in of_one:
            domain |= facts.varies[root]
        domains.append(domain | parallel if store.mode != "store" else domain)
    combines = tuple(not taken.isdisjoint(of_one) for of_one in roots)
    return _Survey(tuple(domains), combines, facts)


def _nest_keys(kernel: Kernel, survey: _Survey) -> list[tuple[frozenset[Expr], frozenset[Expr]]]:
    """Return for each store of `kernel` the parallel ranges, and the reduced ones, at whose points it
    happens.
    """
    parallel = frozenset(r.symbol for r in kernel.ranges if r.kind == "parallel")
    pairs = zip(survey.domains, survey.combines, strict=True)
    combining = {domain & parallel for domain, combines in pairs if combines}
    # Around a reduction its nest does what comes once per result after what comes at every point. Where
    # nothing is reduced there is no such place, and a point of fewer ranges is a nest of its own.
    return [
        (domain & parallel, frozenset() if domain & parallel in combining else domain - parallel)
        for domain in survey.domains
    ]


def _readers_first(nests: list[Nest], kernel: Kernel) -> list[Nest]:
    """Return the nests in an order in which none writes memory that a later one still has to read.

    Raises:
        EmitError: two nests each write what the other one reads.
    """
    reads, writes = _list_accesses(nests, kernel)
    waiting = list(range(len(nests)))
    ordered: list[Nest] = []
    while waiting:
        ready = next(
            (at for at in waiting if all(writes[at].isdisjoint(reads[by]) for by in waiting if by != at)),
            None,
        )
        if ready is None:
            raise EmitError("region-order", f"groups of stores of {kernel.name} overwrite what others read")
        waiting.remove(ready)
        ordered.append(nests[ready])
    return ordered


def _list_accesses(nests: Sequence[Nest], kernel: Kernel) -> tuple[list[set[str]], list[set[str]]]:
    """Return the arguments that each of `nests` reads, and those whose memory it writes; checks read nothing
    that matters.
    """
    shares: dict[str, set[str]] = {}
    for out, source in kernel.aliasing:
        shares.setdefault(out, set()).add(source)
    reads: list[set[str]] = []
    writes: list[set[str]] = []
    for nest in nests:
        stores = [kernel.stores[number] for number in nest.stores]
        roots = tuple(root for store in stores for root in list_store_roots(store))
        reads.append({value.buffer for value in iterate_postorder(roots) if isinstance(value, Load)})
        writes.append({name for s in stores for name in (s.buffer, *shares.get(s.buffer, ()))})
    return reads, writes


def _check_region(number: int, check: Check, ranges: tuple[Expr, ...]) -> Region:
    facts = collect_facts((check.condition,), ranges)
    if any(isinstance(value, Reduce | Scan | Sort) for value in iterate_postorder((check.condition,))):
        raise EmitError(
            "check-reduction", f"the condition of check {number} ({check.message!r}) is a reduction"
        )
    domain = facts.varies[check.condition]
    return Region(
        stores=(),
        check=(number, check),
        parallel=tuple(r for r in ranges if r in domain),
        serial=(),
        reduction=(),
        facts=facts,
    )


def _store_region(kernel: Kernel, domain: frozenset[Expr], numbers: Sequence[int], survey: _Survey) -> Region:
    stores = tuple(kernel.stores[number] for number in numbers)
    ranges = tuple(r.symbol for r in kernel.ranges)
    reduced = tuple(r.symbol for r in kernel.ranges if r.kind == "reduction")
    alone = tuple(numbers) == tuple(range(len(kernel.stores)))
    roots = tuple(root for store in stores for root in list_store_roots(store))
    facts = survey.facts if alone else collect_facts(roots, ranges)
    combines = any(survey.combines[number] for number in numbers)
    along_reduced = any(not survey.domains[number].isdisjoint(reduced) for number in numbers)
    inner = reduced if combines else ()
    outer = [r for r in ranges if r in domain]
    if not combines and along_reduced:
        outer += reduced
    if any(store.mode != "store" for store in stores):
        for number in numbers:
            missing = frozenset(outer) - survey.domains[number]
            if combines and not missing.isdisjoint(reduced):
                raise EmitError(
                    "scatter-domain",
                    f"stores to {kernel.stores[number].buffer} do not share their reduction ranges",
                )
    free = [r for r in outer if all(_is_collision_free(store, r) for store in stores)]
    return Region(
        stores=stores,
        check=None,
        parallel=tuple(free),
        serial=tuple(r for r in outer if r not in free),
        reduction=inner,
        facts=facts,
    )


def _is_collision_free(store: Store, at: Expr) -> bool:
    """Tell if points that differ in `at` provably write different elements.

    A plain store through a direct index writes each element once, by the kernel's contract, if it depends on
    `at`.
    Otherwise the index must be `M*(...) + s*at + inner` with `s*extent <= M` and `0 <= inner < s`.
    """
    if at not in store.index.free_symbols:
        return False
    if store.mode == "store" and not store.indirect:
        return True
    step = find_stride(store.index, at)
    stride = None if step is None else as_int(step)
    extent = as_int(get_extent(at))
    if stride is None or extent is None or stride < 1:
        return False
    inner: list[Expr] = []
    for coefficient, atoms in store.index.terms:
        if atoms == (at,):
            continue
        if coefficient % (stride * extent):
            term = const(coefficient)
            for atom in atoms:
                term = term * atom
            inner.append(term)
    low, high = find_bounds(add_all(inner))
    return low is not None and high is not None and low >= 0 and high < stride
