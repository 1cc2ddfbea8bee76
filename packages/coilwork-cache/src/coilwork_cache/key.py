"""Content keys: what an entry was made from, as 64 hexadecimal digits.

The key is a SHA-256 over a domain prefix, the key format's version, the kind, and every part with its type
and length in front. Lengths make the encoding injective: ``("ab", "c")`` and ``("a", "bc")`` get different
keys.
"""

from __future__ import annotations

import hashlib
import re

from coilwork_cache.errors import InvalidKeyError

KEY_FORMAT = 1
_DOMAIN = b"coilwork-cache/key\0"
_KIND = re.compile(r"[a-z][a-z0-9._-]{0,62}")
_KEY = re.compile(r"[0-9a-f]{64}")


def content_key(kind: str, *parts: str | bytes) -> str:
    """The key of an entry of `kind` that is fully determined by `parts`.

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


def check_kind(kind: str) -> str:
    """Return `kind`, or raise InvalidKeyError."""
    if _KIND.fullmatch(kind) is None:
        raise InvalidKeyError(
            repr(kind[:80]), "a kind matches [a-z][a-z0-9._-]* and has at most 63 characters"
        )
    return kind


def _encode_part(part: str | bytes) -> tuple[bytes, bytes]:
    if isinstance(part, bytes):
        return b"b", part
    # File names may hold lone surrogates; a key must exist for them too.
    return b"s", part.encode("utf-8", "surrogatepass")
