"""Bringing rows of bytes of a mapped file to a GPU, beside other work.

A copy from a mapped file goes through memory of the driver's, by one thread. Here several threads lay bytes
into memory that the device reads by itself, while it copies what others have laid.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final

import torch
from torch import Tensor

from coilwork_runtime.devices import count_devices
from coilwork_runtime.usable_cores import count_usable_cores

ROOM_BYTES: Final = 2 * 1024 * 1024
"""What a thread lays at a time: memory that a device reads costs time by its size."""
_THREADS: Final = 4

Piece = Sequence[tuple[Tensor, Tensor]]
"""Parts of rows in a file, and the parts of rows on the device that are to hold them."""


class DeviceCopies:
    """A context whose copies are there when it ends."""

    def __init__(self) -> None:
        self._pools: list[ThreadPoolExecutor] = []
        self._under_way: list[Future[None]] = []

    def __enter__(self) -> DeviceCopies:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pool in self._pools:
            pool.shutdown()
        for one in self._under_way:
            if kind is None:
                one.result()

    def copy(self, rows: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        """Return rows on `device` that will hold the bytes of rows on the CPU, which are not copied there."""
        if not count_devices(device.type):
            return [row.to(device) for row in rows]
        made = [torch.empty_like(row, device=device) for row in rows]
        pieces = cut_rows(rows, made)
        threads = min(_THREADS, len(pieces), count_usable_cores())
        if threads < 2:
            for to, row in zip(made, rows, strict=True):
                to.copy_(row)
            return made
        self._pools.append(ThreadPoolExecutor(threads))
        left = _Pieces(pieces)
        # memory that torch gives out may have belonged to work that is under way there
        before = torch.cuda.current_stream(device)
        # tensors of inference mode are written to in inference mode
        mode = torch.is_inference_mode_enabled()
        self._under_way += [
            self._pools[-1].submit(_copy_pieces, left, device, before, mode) for _ in range(threads)
        ]
        return made


class _Pieces:
    """Pieces that threads take one by one."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._left = iter(pieces)
        self._lock = threading.Lock()

    def take(self) -> Piece:
        """Return the next piece, which is empty behind the last one."""
        with self._lock:
            return next(self._left, ())


def cut_rows(rows: Sequence[Tensor], made: Sequence[Tensor]) -> list[list[tuple[Tensor, Tensor]]]:
    """Return pieces of rows and of their copies that fill a thread's room, and a last piece."""
    pieces: list[list[tuple[Tensor, Tensor]]] = []
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


def _copy_pieces(pieces: _Pieces, device: torch.device, before: torch.cuda.Stream, inference: bool) -> None:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(before)
    room = torch.empty(ROOM_BYTES, dtype=torch.uint8, pin_memory=True)
    with torch.cuda.stream(stream), torch.inference_mode(inference):
        while piece := pieces.take():
            stream.synchronize()
            used = 0
            for source, to in piece:
                laid = room[used : used + source.numel()]
                used += source.numel()
                # torch's own copy would start threads for each part
                ctypes.memmove(laid.data_ptr(), source.data_ptr(), source.numel())
                to.copy_(laid, non_blocking=True)
        stream.synchronize()
