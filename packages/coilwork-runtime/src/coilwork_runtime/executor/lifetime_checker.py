"""Check what a program does with memory while it runs: each allocation, view and free against the live
names.

Memory is filled with ones, which floats read as nan, when it is allocated and when the last name that holds
it is freed. A kernel that reads what nobody wrote, or what is freed, spoils its results at once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

import torch

from coilwork_runtime.errors import LifetimeError

POISON: Final = 0xFF


@dataclass(slots=True)
class _Piece:
    """A part of a pool, in bytes from its start, and the names that hold it."""

    start: int
    end: int
    holders: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Memory:
    """A block that the program allocated, the names that hold it, and what was carved out of it if it is a
    pool.
    """

    place: str
    size_bytes: int
    holders: set[str] = field(default_factory=set)
    pieces: list[_Piece] = field(default_factory=list)


@dataclass(slots=True)
class _Run:
    """A program that is running: blocks by address, and the address behind each name."""

    program: str
    blocks: dict[int, _Memory] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    returned: set[int] = field(default_factory=set)


class LifetimeChecker:
    """A watcher for `load_native(watch=...)`. Threads may share it; each has its own runs.

    `peak_bytes` is the most that the blocks of one run, those of nested programs aside, took at a time.
    """

    def __init__(self) -> None:
        self._threads = threading.local()
        self.peak_bytes = 0

    def __call__(
        self, event: str, program: str, number: int, name: str, tensor: torch.Tensor | None, place: str
    ) -> None:
        """Check an event of the native executor.

        Raises:
            LifetimeError: it is none that the plan allows.
        """
        runs = self._runs()
        if event in ("call", "enter"):
            if event == "call":
                # there is something left of a call that failed
                runs.clear()
            runs.append(_Run(program=program))
            return
        run = runs[-1]
        match event:
            case "alloc":
                self._allocate(run, name, _require_alive(tensor, name), place)
            case "carve":
                _carve(run, name, _require_alive(tensor, name), place)
            case "view" | "result":
                _hold(run, name, _require_alive(tensor, name), place)
            case "taken":
                _let_go(run, name)
            case "free":
                _free(run, name, tensor, place)
            case "return":
                run.returned.add(_address(_require_alive(tensor, name)))
            case "leave":
                runs.pop()
                _check_leaks(run)
            case _:
                pass

    def _runs(self) -> list[_Run]:
        runs: list[_Run] | None = getattr(self._threads, "runs", None)
        if runs is None:
            runs = self._threads.runs = []
        return runs

    def _allocate(self, run: _Run, name: str, tensor: torch.Tensor, place: str) -> None:
        address = _address(tensor)
        if address in run.blocks:
            others = ", ".join(f"%{one}" for one in sorted(run.blocks[address].holders))
            raise LifetimeError(
                "memory-twice", f"the memory of %{name} still belongs to {others}", reason=f"in {place}"
            )
        if address:
            run.blocks[address] = _Memory(place=place, size_bytes=tensor.untyped_storage().nbytes())
            _poison(tensor, 0, run.blocks[address].size_bytes)
        _hold(run, name, tensor, place)
        self.peak_bytes = max(self.peak_bytes, sum(block.size_bytes for block in run.blocks.values()))


def _hold(run: _Run, name: str, tensor: torch.Tensor, place: str) -> None:
    if name in run.names:
        raise LifetimeError("defined-twice", f"%{name} is defined while it is alive", reason=f"in {place}")
    address = _address(tensor)
    run.names[name] = address
    block = run.blocks.get(address)
    if block is None:
        return
    block.holders.add(name)
    at = tensor.storage_offset() * tensor.element_size()
    for piece in block.pieces:
        if piece.start <= at < piece.end:
            piece.holders.add(name)


def _carve(run: _Run, name: str, tensor: torch.Tensor, place: str) -> None:
    """Record that `name` is a part of a pool that no other name may have."""
    block = run.blocks.get(_address(tensor))
    start = int(tensor.storage_offset()) * tensor.element_size()
    end = start + _span(tensor) * tensor.element_size()
    if block is not None and end > start:
        for other in block.pieces:
            if start < other.end and other.start < end:
                raise LifetimeError(
                    "memory-twice",
                    f"bytes {start} to {end} of the pool for %{name} still belong to "
                    + ", ".join(f"%{one}" for one in sorted(other.holders)),
                    reason=f"in {place}",
                )
        block.pieces.append(_Piece(start=start, end=end))
        _poison(tensor, start, end)
    _hold(run, name, tensor, place)


def _span(tensor: torch.Tensor) -> int:
    """Elements from the first to the end of the last."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _let_go(run: _Run, name: str) -> list[_Piece]:
    """Remove `name`, and return the memory that no name holds any more: a whole block, or parts of a pool."""
    address = run.names.pop(name, None)
    block = None if address is None else run.blocks.get(address)
    if address is None or block is None:
        return []
    block.holders.discard(name)
    if not block.holders:
        del run.blocks[address]
        return [_Piece(start=0, end=block.size_bytes)]
    for piece in block.pieces:
        piece.holders.discard(name)
    gone = [piece for piece in block.pieces if not piece.holders]
    block.pieces = [piece for piece in block.pieces if piece.holders]
    return gone


def _free(run: _Run, name: str, tensor: torch.Tensor | None, place: str) -> None:
    if tensor is None:
        raise LifetimeError("freed-twice", f"%{name} is freed and not alive", reason=f"in {place}")
    for piece in _let_go(run, name):
        _poison(tensor, piece.start, piece.end)


def _check_leaks(run: _Run) -> None:
    leaks = [block for address, block in run.blocks.items() if address not in run.returned]
    if leaks:
        names = ", ".join(f"%{name}" for block in leaks for name in sorted(block.holders))
        raise LifetimeError(
            "leak",
            f"{names} of program {run.program} is neither freed nor returned",
            reason="; ".join(f"allocated in {block.place}" for block in leaks),
        )


def _poison(tensor: torch.Tensor, start: int, end: int) -> None:
    """Spoil bytes `start` to `end` of the memory that `tensor` lies in."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    memory.set_(tensor.untyped_storage())[start:end].fill_(POISON)


def _require_alive(tensor: torch.Tensor | None, name: str) -> torch.Tensor:
    if tensor is None:
        raise LifetimeError("not-alive", f"%{name} is used and not alive")
    return tensor


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
