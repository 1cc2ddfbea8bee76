"""Import cycles between the modules of one package, and between what lies side by side in its folders,
counting imports inside functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from architecture.sources import ImportSite, Source, Violation

Edges = Mapping[str, Mapping[str, int]]
"""Module -> the modules of the same package that it imports -> the line of the import."""


def check_no_import_cycles(sources: Sequence[Source]) -> list[Violation]:
    """A module may not reach itself through imports that run. One violation per cycle, at its first
    module."""
    found = []
    for by_module in packages_of(sources):
        edges = edges_between(by_module)
        for cycle in cycles_in(edges):
            first = by_module[cycle[0]]
            line = edges[cycle[0]][cycle[1]]
            found.append(first.violation(line, "import cycle: " + " -> ".join(cycle)))
    return sorted(found)


def check_no_folder_cycles(sources: Sequence[Source]) -> list[Violation]:
    """Return what lies side by side, folders and modules, may not reach each other in a circle.

    A folder stands for all that lies in it, so a module beside folders is either what they stand on or what
    ties them together, and one can read a package from the bottom up. Circles of modules alone are
    `check_no_import_cycles`'s. One violation per circle, at an import that closes it.
    """
    found = []
    for by_module in packages_of(sources):
        edges = edges_between(by_module)
        folders = {module.rpartition(".")[0] for module in edges} - {""}
        for parent in sorted(folders):
            between: dict[str, dict[str, int]] = {}
            importing: dict[tuple[str, str], tuple[str, int]] = {}
            for module in sorted(edges):
                here = child_in(parent, module)
                for target, line in sorted(edges[module].items()):
                    there = child_in(parent, target)
                    if here and there and here != there:
                        between.setdefault(here, {}).setdefault(there, line)
                        between.setdefault(there, {})
                        importing.setdefault((here, there), (module, line))
            for cycle in cycles_in(between):
                if folders.isdisjoint(cycle):
                    continue
                module, line = importing[cycle[0], cycle[1]]
                found.append(by_module[module].violation(line, "circle of folders: " + " -> ".join(cycle)))
    return sorted(found)


def child_in(parent: str, module: str) -> str:
    """The folder or module directly in `parent` that `module` lies in, or is; empty if there is none."""
    if not module.startswith(f"{parent}."):
        return ""
    return f"{parent}.{module[len(parent) + 1 :].partition('.')[0]}"


def packages_of(sources: Sequence[Source]) -> Iterator[Mapping[str, Source]]:
    """The modules of each package by name."""
    for _, members in groupby(sources, key=lambda source: source.package):
        yield {source.module: source for source in members if source.module}


def edges_between(by_module: Mapping[str, Source]) -> Edges:
    """The imports of all modules of a package."""
    return {
        module: list_imported_modules(source, frozenset(by_module)) for module, source in by_module.items()
    }


def list_imported_modules(source: Source, known: frozenset[str]) -> dict[str, int]:
    """The package's modules that the source names in imports.

    A name's own module counts, not the parents' __init__, unless `from package import module` asks that for
    it.
    """
    targets: dict[str, int] = {}
    for site in source.imports:
        if not site.typing_only:
            for target in modules_of(site, known):
                if target != source.module:
                    targets.setdefault(target, site.line)
    return targets


def modules_of(site: ImportSite, known: frozenset[str]) -> tuple[str, ...]:
    """The module that is imported, or that a name is taken from."""
    wanted = (site.dotted, site.module) if site.dotted != site.module else (site.dotted,)
    return tuple(module for module in wanted if module in known)


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
