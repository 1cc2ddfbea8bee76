"""The file format of one local entry: a fixed header, then the payload.

    offset  size  field
    0       8     magic  b"COILENT\\n"
    8       4     format version, little endian
    12      8     payload length in bytes, little endian
    20      32    SHA-256 of (key, payload)
    52      …     payload

The key is part of the digest, so a file that was renamed to another key does not pass for that entry.
"""

from __future__ import annotations

import hashlib
import struct

MAGIC = b"COILENT\n"
ENTRY_FORMAT = 1
_HEADER = struct.Struct("<8sIQ32s")
HEADER_BYTES = _HEADER.size


class DamagedEntry(ValueError):
    """Bytes are not an intact entry for this key; the message says in which way."""


def seal(key: str, payload: bytes) -> bytes:
    """The header that goes in front of `payload`."""
    return _HEADER.pack(MAGIC, ENTRY_FORMAT, len(payload), _digest(key, payload))


def unseal(key: str, header: bytes, payload: bytes) -> bytes:
    """Return `payload` if `header` vouches for it under `key`; raise DamagedEntry otherwise."""
    if len(header) < HEADER_BYTES:
        raise DamagedEntry(f"truncated: {len(header)} of {HEADER_BYTES} header bytes")
    magic, version, length, digest = _HEADER.unpack(header)
    if magic != MAGIC:
        raise DamagedEntry(f"not a cache entry: starts with {magic!r}")
    if version != ENTRY_FORMAT:
        raise DamagedEntry(f"entry format {version}, expected {ENTRY_FORMAT}")
    if length != len(payload):
        raise DamagedEntry(f"truncated or extended: {len(payload)} payload bytes, the header says {length}")
    if digest != _digest(key, payload):
        raise DamagedEntry("checksum does not match")
    return payload


def _digest(key: str, payload: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(payload)
    return digest.digest()
