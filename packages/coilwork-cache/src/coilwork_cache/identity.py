"""What tells one state of a compiler from another: part of every compiled graph's key.

Packages are published separately, so one of them may be upgraded alone, and whoever works on a compiler
changes it without changing a version. So the sources themselves are hashed; that takes a few milliseconds,
once per process.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_SOURCES: Final = (".py", ".toml", ".triton", ".cpp", ".hpp", ".ll")


@cache
def compiler_identity(packages: tuple[str, ...], groups: tuple[str, ...] = ()) -> str:
    """A hash of the sources of `packages`, and of the versions of what other projects plug in under the entry
    point `groups`."""
    digest = hashlib.sha256()
    for package in packages:
        # found without importing it: code generators of other devices may never be needed
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            digest.update(f"\n{package}\n".encode())
            digest.update(sources_digest(Path(folder)))
    for group in groups:
        for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
            digest.update(f"\n{_describe(point)}".encode())
    return digest.hexdigest()


def sources_digest(folder: Path) -> bytes:
    """A hash of every source file below `folder`, names and contents: Python, C++, figures of machines, and
    the functions that kernels carry along.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.digest()


def _describe(point: EntryPoint) -> str:
    project = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return f"{point.name} = {point.value} {project}"
