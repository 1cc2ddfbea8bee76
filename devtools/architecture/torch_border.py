"""Check which parts of torch are used, and where."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from architecture.layers import attribute_chains
from architecture.sources import Source, Violation, find_docstrings

INDUCTOR = "torch._inductor"
COMPAT = "torch_compat"
OUTPUT_CODE = "OutputCode"


def check_no_inductor(sources: Sequence[Source], others: Sequence[Source]) -> list[Violation]:
    """No import of `torch._inductor` in any file; in released source no use by attribute or by
    string either.
    """
    found = [v for source in (*sources, *others) for v in inductor_imports(source)]
    found += [v for source in sources for v in inductor_mentions(source)]
    return sorted(set(found))


def inductor_imports(source: Source) -> Iterator[Violation]:
    for site in source.imports:
        if f"{site.dotted}.".startswith(f"{INDUCTOR}."):
            yield source.violation(site.line, f"imports {site.dotted}")


def inductor_mentions(source: Source) -> Iterator[Violation]:
    for line, name in attribute_chains(source):
        if name == INDUCTOR:
            yield source.violation(line, f"uses {INDUCTOR}")
    prose = find_docstrings(source.tree)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            if INDUCTOR in node.value:
                yield source.violation(node.lineno, f"a string names {INDUCTOR}")


def check_output_code(sources: Sequence[Source]) -> list[Violation]:
    """`OutputCode` comes from torch._functorch's re-export, in one file of the package coilwork-frontend."""
    sites = [(s, site) for s in sources for site in s.imports if site.name == OUTPUT_CODE]
    torch_sites = [(s, site) for s, site in sites if site.top == "torch"]
    found = [
        source.violation(
            site.line, f"{OUTPUT_CODE} may be taken from torch._functorch, by the package coilwork-frontend"
        )
        for source, site in torch_sites
        if source.package != "coilwork-frontend" or not site.module.startswith("torch._functorch.")
    ]
    files = sorted({source.path for source, _ in torch_sites})
    found += [
        source.violation(site.line, f"{OUTPUT_CODE} is already imported in {files[0]}")
        for source, site in torch_sites
        if source.path != files[0]
    ]
    return sorted(found)


def check_private_api(sources: Sequence[Source]) -> list[Violation]:
    """torch's underscore names are touched in a package's `torch_compat` alone, a module or a room: releases
    differ there.
    """
    return sorted({v for source in sources if not is_compat(source.path) for v in private_uses(source)})


def is_compat(path: str) -> bool:
    return path.endswith(f"/{COMPAT}.py") or f"/{COMPAT}/" in path


def private_uses(source: Source) -> Iterator[Violation]:
    for site in source.imports:
        if site.top == "torch" and not site.typing_only and is_private(site.dotted):
            yield source.violation(site.line, f"imports {site.dotted}; private torch API belongs in {COMPAT}")
    for line, name in attribute_chains(source):
        if name.startswith("torch.") and is_private(name) and is_private("torch." + name.rpartition(".")[2]):
            yield source.violation(line, f"uses {name}; private torch API belongs in {COMPAT}")


def is_private(dotted: str) -> bool:
    """An underscore name, dunders aside. Below `torch.ops` stand the names of ops, which are
    public schemas.
    """
    if dotted.startswith("torch.ops."):
        return False
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))
