"""Digests of records: long ones by pieces, however their bytes come."""

from __future__ import annotations

import hashlib
import random
from itertools import pairwise

import pytest

from coilwork_aot.record_hashes import PIECE_BYTES, hash_parts, hash_record


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES])
def test_short_records_have_their_own_digest(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert hash_record(data) == hash_parts([data[:1], b"", data[1:]]) == sha(data).hex()


@pytest.mark.parametrize("size", [PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 17])
def test_long_records_have_that_of_their_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(size).randbytes(size)
    pieces = [data[start : start + PIECE_BYTES] for start in range(0, size, PIECE_BYTES)]
    wanted = sha(b"".join(map(sha, pieces))).hex()
    for cores in (1, 3):
        monkeypatch.setattr("coilwork_aot.record_hashes.count_usable_cores", lambda cores=cores: cores)
        assert hash_record(memoryview(data)) == wanted
    cuts = [0, 5, PIECE_BYTES - 1, PIECE_BYTES + 1, size]
    assert hash_parts([memoryview(data)[a:b] for a, b in pairwise(cuts)]) == wanted
