"""Rows of bytes in pieces, and their copies."""

from __future__ import annotations

import torch

from coilwork_runtime.device_copies import ROOM_BYTES, DeviceCopies, cut_rows


def test_rows_are_cut_into_pieces_that_fill_their_room() -> None:
    sizes = (5, 3 * ROOM_BYTES, 0, ROOM_BYTES - 7, 11)
    rows = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    made = [torch.zeros_like(row) for row in rows]
    pieces = cut_rows(rows, made)
    filled = [sum(source.numel() for source, _ in piece) for piece in pieces]
    assert filled == [ROOM_BYTES] * 4 + [9]
    for piece in pieces:
        for source, to in piece:
            to.copy_(source)
    assert all(map(torch.equal, made, rows))
    with DeviceCopies() as copies:
        copied = copies.copy(rows, torch.device("cpu"))
    assert [one.data_ptr() for one in copied] == [one.data_ptr() for one in rows]
