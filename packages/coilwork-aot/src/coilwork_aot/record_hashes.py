"""The digests of a package's records: SHA-256 of the bytes, or of a long record, of its pieces' digests.

Pieces are hashed side by side, so that a model's weights are verified as quickly as they can be read. C++ has
the same in cpp/library/record_hashes.cpp.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from coilwork_runtime.usable_cores import count_usable_cores

PIECE_BYTES: Final = 4 * 1024 * 1024
"""What one thread hashes at a time, and the size of the longest record without pieces."""
_MOST_THREADS: Final = 12


def hash_record(data: bytes | memoryview) -> str:
    """Return the digest of a record, in hexadecimal."""
    view = memoryview(data)
    if len(view) <= PIECE_BYTES:
        return hashlib.sha256(view).hexdigest()
    pieces = [view[start : start + PIECE_BYTES] for start in range(0, len(view), PIECE_BYTES)]
    threads = min(_MOST_THREADS, len(pieces), count_usable_cores())
    if threads == 1:
        return _join(map(_digest, pieces))
    with ThreadPoolExecutor(threads) as pool:
        return _join(pool.map(_digest, pieces))


def hash_parts(parts: Iterable[bytes | memoryview]) -> str:
    """Return the digest of a record that is these parts, one behind the other."""
    views = [memoryview(part) for part in parts]
    if sum(map(len, views)) > PIECE_BYTES:
        return _join(_hash_pieces(views))
    whole = hashlib.sha256()
    for view in views:
        whole.update(view)
    return whole.hexdigest()


def _hash_pieces(views: Iterable[memoryview]) -> Iterator[bytes]:
    piece, room = hashlib.sha256(), PIECE_BYTES
    for view in views:
        start = 0
        while start < len(view):
            taken = view[start : start + room]
            piece.update(taken)
            start += len(taken)
            room -= len(taken)
            if not room:
                yield piece.digest()
                piece, room = hashlib.sha256(), PIECE_BYTES
    if room < PIECE_BYTES:
        yield piece.digest()


def _digest(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()


def _join(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()
