"""Distributions of one folder in several environments: their files are linked, bytecode among them.

Torch takes seconds to unpack, and as long again to compile; some twenty environments of the test command need
it. What an environment gets is what pip would install: the distributions that are asked for, and what they
require.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def link_distributions(shared: Path, site: Path, requirements: Iterable[str]) -> list[str]:
    """Link the required distributions that the folder `shared` has, with what they require themselves, into
    the folder `site`; returns their names.

    Both folders are of one file system. Commands are not linked: they name the Python that they are for.
    """
    known = {canonicalize_name(one.name): one for one in importlib.metadata.distributions(path=[str(shared)])}
    pending = [Requirement(one) for one in requirements]
    linked: dict[str, None] = {}
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not applies or name in linked or name not in known:
            continue
        linked[name] = None
        pending += map(Requirement, known[name].requires or ())
        for part in {file.parts[0] for file in known[name].files or ()} - {"..", "bin", "share"}:
            _link(shared / part, site / part)
    return list(linked)


def _link(source: Path, target: Path) -> None:
    """Link the files at or below `source`; what is there already stays, and what is missing is left out."""
    if source.is_dir():
        target.mkdir(exist_ok=True)
        for entry in source.iterdir():
            _link(entry, target / entry.name)
    elif source.exists() and not target.exists():
        os.link(source, target)
