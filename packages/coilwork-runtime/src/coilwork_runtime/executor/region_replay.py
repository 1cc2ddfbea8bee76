"""Capture regions on a device of a back end: stretches of launches that repeat are one piece of work.

In a capture region (`coilwork_ir.program.regions.find_capture_refusal`) only kernels are launched. Their
launches are put off until the region ends, or until memory that they use is to be freed. Then a stretch that
was the same in earlier calls, word for word, goes to the device as what it made of it
(`coilwork_runtime.languages.CapturingDevice`), and any other launch by launch. Nothing is taken on trust:
each call works out all words, so sizes, inputs and memory may change from call to call.

Graphs of CUDA's driver are the native executor's own (`native/replay/replay.hpp`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coilwork_runtime.launch_descriptor import Launcher, Piece

LEAST_LAUNCHES: Final = 4
"""A shorter stretch is launched as it is."""
STEADY_CALLS: Final = 3
"""A stretch is captured when it comes for the third time, as warm-up calls differ from later ones."""
MOST_STRETCHES: Final = 64
"""Kept per program; the one that was not used for the longest time goes first."""
SLACK_BYTES: Final = 1 << 20
"""Freed memory that may wait for launches that use it."""

Key = tuple[Any, ...]


@dataclass(slots=True)
class _Stretch:
    """A stretch of launches: how often it came, and what the device made of it.

    `pieces` are those of its first call without tensors: words and handles stay what they are.
    """

    pieces: tuple[Piece, ...]
    calls: int = 0
    captured: object = None


@dataclass(slots=True)
class _PutOff:
    """The launches of a region that are put off, and bytes that the call has freed behind them."""

    pieces: list[Piece] = field(default_factory=list)
    freed_bytes: int = 0


class RegionReplay:
    """The regions of one program, for all of its calls. Used from several threads.

    Attributes:
        replayed: how many stretches went to the device as one.
    """

    def __init__(self) -> None:
        self.replayed = 0
        self._stretches: OrderedDict[Key, _Stretch] = OrderedDict()
        self._lock = threading.Lock()
        # by thread, what its call in a region has put off
        self._put_off: dict[int, _PutOff] = {}

    def wrap(self, launcher: Launcher) -> Callable[..., None]:
        """Do as `launcher`, at once or, in a region, when the stretch ends."""
        prepare = launcher.prepare

        def launch(*args: Any) -> None:
            waiting = self._put_off.get(threading.get_ident())
            if waiting is None:
                launcher.call(*args)
            elif prepare is None:
                self.settle()
                launcher.call(*args)
            else:
                piece, pieces = prepare(args), waiting.pieces
                if pieces and (pieces[0].device is not piece.device or pieces[0].index != piece.index):
                    self.settle()
                pieces.append(piece)

        return launch

    def begin(self) -> None:
        """A capture region begins in this thread."""
        self._put_off[threading.get_ident()] = _PutOff()

    def end(self) -> None:
        """It ends: all launches are put on their stream. Without a region, there are none."""
        try:
            self.settle()
        finally:
            self._put_off.pop(threading.get_ident(), None)

    def free(self, size_bytes: int) -> None:
        """Memory is freed that launches may use which are put off; they hold it."""
        waiting = self._put_off.get(threading.get_ident())
        if waiting is not None:
            waiting.freed_bytes += size_bytes
            if waiting.freed_bytes > SLACK_BYTES:
                self.settle()

    def settle(self) -> None:
        """Put on their stream what this thread has put off."""
        waiting = self._put_off.get(threading.get_ident())
        if waiting is None or not waiting.pieces:
            return
        pieces = tuple(waiting.pieces)
        # memory that only they use is freed behind them
        waiting.pieces.clear()
        waiting.freed_bytes = 0
        device, stream = pieces[0].device, pieces[0].device.stream(pieces[0].index)
        captured = self._find_captured(pieces)
        if captured is not None:
            device.replay(captured, stream)
            return
        for piece in pieces:
            device.launch(piece.handle, piece.words, stream)

    def _find_captured(self, pieces: tuple[Piece, ...]) -> object:
        """Return what the device captured of these launches; None until they have come often enough."""
        if len(pieces) < LEAST_LAUNCHES:
            return None
        key = (pieces[0].index, *((id(piece.handle), *piece.words) for piece in pieces))
        with self._lock:
            found = self._stretches.get(key)
            if found is None:
                # the handles live as long as their numbers are in the key
                found = self._stretches[key] = _Stretch(tuple(piece.drop_tensors() for piece in pieces))
                if len(self._stretches) > MOST_STRETCHES:
                    self._stretches.popitem(last=False)
            self._stretches.move_to_end(key)
            found.calls += 1
            if found.calls == STEADY_CALLS:
                launches = [(piece.handle, piece.words) for piece in found.pieces]
                found.captured = pieces[0].device.capture(launches, pieces[0].index)
            self.replayed += found.captured is not None
            return found.captured


def find_regions(launchers: Mapping[str, Callable[..., Any]]) -> RegionReplay | None:
    """Return the regions of a program with these launchers; None if no device of theirs captures."""
    known: Sequence[Launcher] = [one for one in launchers.values() if isinstance(one, Launcher)]
    return RegionReplay() if any(one.prepare is not None for one in known) else None


def wrap_launchers(
    launchers: Mapping[str, Callable[..., Any]], regions: RegionReplay | None
) -> Mapping[str, Callable[..., Any]]:
    """Return `launchers`, whose launches are put off in `regions`."""
    if regions is None:
        return launchers
    return {
        name: regions.wrap(one) if isinstance(one, Launcher) and one.descriptor is None else one
        for name, one in launchers.items()
    }
