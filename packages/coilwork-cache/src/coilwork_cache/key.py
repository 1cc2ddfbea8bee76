"""Content keys: what an entry was made from, as 64 hexadecimal digits.

The key is a SHA-256 over a domain prefix, the key format's version, the kind, and every part with its type
and length in front. Lengths make the encoding injective: ``("ab", "c")`` and ``("a", "bc")`` get different
keys.

What tells one state of a compiler from another: part of every compiled graph's key.

Packages are published separately, so one of them may be upgraded alone, and whoever works on a compiler
changes it without changing a version. So the sources themselves are hashed; that takes a few milliseconds,
once per process.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from coilwork_cache.errors import InvalidKeyError

KEY_FORMAT = 1
_DOMAIN = b"coilwork-cache/key\0"
_KIND = re.compile(r"[a-z][a-z0-9._-]{0,62}")
_KEY = re.compile(r"[0-9a-f]{64}")


def content_key(kind: str, *parts: str | bytes) -> str:
    """Return the key of an entry of `kind` that is fully determined by `parts`.

    Include everything that may change the entry: canonical IR text, target, options, versions.
    Text and bytes never collide. Raises InvalidKeyError if `kind` is not a lower-case name of 1 to 63
    characters.
    """
    check_kind(kind)
    digest = hashlib.sha256(_DOMAIN + KEY_FORMAT.to_bytes(4, "little"))
    for tag, data in ((b"k", kind.encode()), *map(_encode_part, parts)):
        digest.update(tag + len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def is_key(text: str) -> bool:
    """Tell if `text` has the form of a key."""
    return _KEY.fullmatch(text) is not None


def check_key(key: str) -> str:
    """Return `key`, or raise InvalidKeyError. Keys become file names, so nothing else may pass."""
    if not is_key(key):
        raise InvalidKeyError(repr(key[:80]), "a key is 64 lower-case hexadecimal digits")
    return key


def is_kind(text: str) -> bool:
    """Tell if `text` has the form of the name of a kind."""
    return _KIND.fullmatch(text) is not None


def check_kind(kind: str) -> str:
    """Return `kind`, or raise InvalidKeyError."""
    if not is_kind(kind):
        raise InvalidKeyError(
            repr(kind[:80]), "a kind matches [a-z][a-z0-9._-]* and has at most 63 characters"
        )
    return kind


def _encode_part(part: str | bytes) -> tuple[bytes, bytes]:
    if isinstance(part, bytes):
        return b"b", part
    # File names may hold lone surrogates; a key must exist for them too.
    return b"s", part.encode("utf-8", "surrogatepass")


_SOURCES: Final = (".py", ".toml", ".triton", ".cpp", ".hpp", ".ll")


@cache
def compiler_identity(packages: tuple[str, ...], groups: tuple[str, ...] = ()) -> str:
    """Return a hash of the sources of `packages`, and of the versions of what other projects plug in under
    the entry point `groups`.
    """
    digest = hashlib.sha256()
    for package in packages:
        # found without importing it: code generators of other devices may never be needed
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            digest.update(f"\n{package}\n".encode())
            digest.update(digest_sources(Path(folder)))
    for group in groups:
        for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
            digest.update(f"\n{_describe(point)}".encode())
    return digest.hexdigest()


def digest_sources(folder: Path) -> bytes:
    """Return a hash of every source file below `folder`, names and contents: Python, C++, figures of
    machines, and the functions that kernels carry along.
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
