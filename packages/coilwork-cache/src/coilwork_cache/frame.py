"""The few bytes that a typed cache puts in front of an entry: which kind it is and which codec wrote it.

    b"COILVAL\\n", version (1 byte), then kind and codec name, each as one length byte and ASCII text.

Listings read the kind from here; a typed cache refuses entries of another kind or codec.
"""

from __future__ import annotations

from coilwork_cache.errors import CodecError

MAGIC = b"COILVAL\n"
FRAME_FORMAT = 1
MAX_FRAME_BYTES = len(MAGIC) + 1 + 2 * 256
RAW_KIND = "raw"


def frame_head(kind: str, codec: str) -> bytes:
    """The head for entries of `kind` written by `codec`; both are ASCII of at most 255 characters."""
    head = MAGIC + bytes([FRAME_FORMAT])
    for name in (kind, codec):
        text = name.encode("ascii")
        head += bytes([len(text)]) + text
    return head


def strip_head(data: bytes, kind: str, codec: str) -> bytes:
    """Return what follows the head; CodecError if the head is not exactly that of `kind` and `codec`."""
    head = frame_head(kind, codec)
    if not data.startswith(head):
        raise CodecError(f"{kind} entry", f"its head is not that of kind {kind!r} written by codec {codec!r}")
    return data[len(head) :]


def peek_kind(start: bytes) -> str:
    """The kind named in an entry's first bytes, or "raw" if no typed cache wrote it."""
    at = len(MAGIC) + 1
    if not start.startswith(MAGIC) or len(start) <= at:
        return RAW_KIND
    text = start[at + 1 : at + 1 + start[at]]
    return text.decode("ascii") if text and text.isascii() else RAW_KIND
