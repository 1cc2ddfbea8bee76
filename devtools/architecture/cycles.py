"""Import cycles between the modules of one package, counting imports inside functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from architecture.sources import ImportSite, Source, Violation

Edges = Mapping[str, Mapping[str, int]]
"""Module -> the modules of the same package that it imports -> the line of the import."""


def check_no_import_cycles(sources: Sequence[Source]) -> list[Violation]:
    """A module may not reach itself through imports that run. One violation per cycle, at its first module."""
    found = []
    for _, members in groupby(sources, key=lambda source: source.package):
        package = list(members)
        by_module = {source.module: source for source in package if source.module}
        edges = {
            module: imported_modules(source, frozenset(by_module)) for module, source in by_module.items()
        }
        for cycle in cycles_in(edges):
            first = by_module[cycle[0]]
            line = edges[cycle[0]][cycle[1]]
            found.append(first.violation(line, "import cycle: " + " -> ".join(cycle)))
    return sorted(found)


def imported_modules(source: Source, known: frozenset[str]) -> dict[str, int]:
    """The package's modules that the source names in imports. A name's own module counts, not the parents' __init__."""
    targets: dict[str, int] = {}
    for site in source.imports:
        if not site.typing_only:
            target = module_of(site, known)
            if target is not None and target != source.module:
                targets.setdefault(target, site.line)
    return targets


def module_of(site: ImportSite, known: frozenset[str]) -> str | None:
    if site.dotted in known:
        return site.dotted
    return site.module if site.module in known else None


def cycles_in(edges: Edges) -> list[tuple[str, ...]]:
    """One shortest cycle through the first module of each strongly connected group, closed: (a, b, a)."""
    found = []
    seen: set[str] = set()
    for start in sorted(edges):
        if start not in seen:
            cycle = shortest_cycle(start, edges)
            if cycle:
                found.append(cycle)
                seen.update(cycle)
    return found


def shortest_cycle(start: str, edges: Edges) -> tuple[str, ...] | None:
    """Breadth-first search from `start` back to it."""
    paths: list[tuple[str, ...]] = [(start,)]
    reached: set[str] = set()
    while paths:
        longer = []
        for path in paths:
            for target in sorted(edges[path[-1]]):
                if target == start:
                    return (*path, start)
                if target not in reached:
                    reached.add(target)
                    longer.append((*path, target))
        paths = longer
    return None
