"""Bringing a package's weights to a GPU, as cpp/library/upload.cpp does it.

A copy from a mapped file goes through memory of the driver's, by one thread. Here several threads lay bytes
into memory that the device reads by itself, while it copies what others have laid.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import torch
from torch import Tensor

from coilwork_runtime.usable_cores import count_usable_cores

ROOM_BYTES: Final = 2 * 1024 * 1024
"""What a thread lays at a time: memory that a device reads costs time by its size."""
_THREADS: Final = 4

Upload = tuple[Tensor, Tensor]
"""A row of bytes in the file, and the row on the device that is to hold it."""


def make_rows(rows: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return copies on `device` of rows of bytes on the CPU."""
    made = [torch.empty_like(row, device=device) for row in rows]
    pieces = cut_rows(rows, made)
    threads = min(_THREADS, len(pieces), count_usable_cores())
    if device.type != "cuda" or threads < 2:
        for to, row in zip(made, rows, strict=True):
            to.copy_(row)
        return made
    _upload(pieces, device, threads)
    return made


def cut_rows(rows: Sequence[Tensor], made: Sequence[Tensor]) -> list[list[Upload]]:
    """Return pieces of rows and of their copies that fill a thread's room, and a last piece."""
    pieces: list[list[Upload]] = []
    room = 0
    for source, to in zip(rows, made, strict=True):
        begin, size = 0, source.numel()
        while begin < size:
            if not room:
                pieces.append([])
                room = ROOM_BYTES
            end = min(size, begin + room)
            pieces[-1].append((source[begin:end], to[begin:end]))
            room -= end - begin
            begin = end
    return pieces


def _upload(pieces: Sequence[Sequence[Upload]], device: torch.device, threads: int) -> None:
    # memory that torch gives out may have belonged to work that is under way there
    before = torch.cuda.current_stream(device)
    left, taking = iter(pieces), threading.Lock()

    def take() -> Sequence[Upload] | None:
        with taking:
            return next(left, None)

    def work(_number: int) -> None:
        stream = torch.cuda.Stream(device)
        stream.wait_stream(before)
        room = torch.empty(ROOM_BYTES, dtype=torch.uint8, pin_memory=True)
        with torch.cuda.stream(stream):
            while (piece := take()) is not None:
                stream.synchronize()
                used = 0
                for source, to in piece:
                    laid = room[used : used + source.numel()]
                    used += source.numel()
                    to.copy_(laid.copy_(source), non_blocking=True)
            stream.synchronize()

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(threads)):
            pass
