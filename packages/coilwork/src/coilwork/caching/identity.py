"""What tells one state of the compiler from another: part of every graph's cache key.

The packages are published separately, so one of them may be upgraded alone, and whoever works on the compiler changes
it without changing a version. So the sources themselves are hashed; that takes a few milliseconds, once per process.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from coilwork.backends.registry import list_backends

COMPONENTS: Final = (
    "coilwork",
    "coilwork_cache",
    "coilwork_cpp",
    "coilwork_cpp_wrapper",
    "coilwork_frontend",
    "coilwork_ir",
    "coilwork_lowering",
    "coilwork_runtime",
    "coilwork_scheduler",
    "coilwork_tools",
    "coilwork_triton",
    "coilwork_wrapper",
)
"""The packages that make one compiler."""
# The cache checks by itself what it reads; tools decide nothing about what is compiled.
_STAGES: Final = tuple(name for name in COMPONENTS if name not in ("coilwork_cache", "coilwork_tools"))
_SOURCES: Final = (".py", ".triton", ".cpp", ".hpp", ".ll")


@cache
def compiler_identity() -> str:
    """A hash of the sources of all stages, and the versions of back ends that are installed."""
    digest = hashlib.sha256()
    for package in _STAGES:
        # found without importing it: code generators of other devices may never be needed
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            digest.update(f"\n{package}\n".encode())
            digest.update(sources_digest(Path(folder)))
    for entry in list_backends():
        digest.update(f"\n{entry.name} = {entry.place} {entry.origin}".encode())
    return digest.hexdigest()


def sources_digest(folder: Path) -> bytes:
    """A hash of every source file below `folder`, names and contents: Python, C++, and the functions that kernels carry along."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.digest()
