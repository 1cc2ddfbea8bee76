"""Which calls share a launch.

A call moves up to the first one of its kind from which nothing that it waits for keeps it away. What it
allocates then lives longer: as long as the peak of memory stays where it is. A kernel that takes long stays
alone: a launch is all that there is to gain, while its share of finding out what to do, and configurations
that are not tried, are a part of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import extent_of
from coilwork_ir.kernels import Kernel, KernelCall
from coilwork_scheduler.cost import CostModel, KernelWork
from coilwork_scheduler.launches.kind import kind_of
from coilwork_scheduler.order import Held, Unit, live_bytes
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.sizes import SizeHints

# Steps over which a call that allocates may move.
_WINDOW: Final = 256
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A call that may share a launch.

    Attributes:
        kind: equal for calls that can share one.
        names: the buffers that it is called with.
        time_us: what it takes besides the launch.
    """

    kind: str
    names: tuple[str, ...]
    time_us: float


def candidate_of(
    kernel: Kernel, call: KernelCall, buffers: Mapping[str, Buffer], model: CostModel, sizes: SizeHints
) -> Candidate | None:
    """The call of `kernel` as a candidate, if its kernel can share a launch."""
    kind = kind_of(kernel)
    if kind is None:
        return None
    held = [sizes.size_bytes(buffers[name]) for name in call.args]
    roles = [arg.role for arg in kernel.args]
    work = KernelWork(
        read_bytes=sum(size for size, role in zip(held, roles, strict=True) if role != "out"),
        write_bytes=sum(size for size, role in zip(held, roles, strict=True) if role != "in"),
        operations=0,
        rows=sizes.numel(tuple(extent_of(r.symbol) for r in kernel.ranges)),
        row_length=1,
        programs=1,
    )
    nothing = replace(work, read_bytes=0, write_bytes=0)
    devices = " ".join(buffers[name].device for name in call.args)
    return Candidate(
        kind=f"{devices}\n{kind.text}",
        names=call.args,
        time_us=model.kernel_us(work) - model.kernel_us(nothing),
    )


@dataclass(slots=True)
class _Launch:
    """A launch that more calls may join: its place in the sequence, and the buffers of its calls."""

    place: int
    names: set[str]


def gather(
    units: Sequence[Unit],
    sequence: Sequence[int],
    candidates: Mapping[int, Candidate],
    held: Held,
    journal: Journal,
    *,
    launch_us: float,
    loss: float,
    max_args: int,
) -> tuple[tuple[int, ...], ...]:
    """`sequence` of `units` with those of `candidates` that share a launch as one entry, at the place of the
    first.

    A launch takes `launch_us`; `loss` is the share of a kernel's time that may be lost in a shared one.
    """
    slots: list[list[int]] = [[] for _ in sequence]
    place: dict[int, int] = {}
    open_launches: dict[str, _Launch] = {}
    memory = _Memory(live_bytes(units, sequence, held))
    for position, index in enumerate(sequence):
        unit, candidate = units[index], candidates.get(index)
        at = position
        if candidate is not None and candidate.time_us * loss <= launch_us:
            launch = open_launches.get(candidate.kind)
            obstacle = "" if launch is None else _obstacle(launch, unit, candidate, place, max_args)
            grown = sum(size for _, size in unit.allocates)
            if launch is not None and not obstacle and not memory.move(grown, position, launch.place):
                obstacle = "memory would have to be there earlier"
            if launch is not None and not obstacle:
                at = launch.place
                launch.names.update(candidate.names)
            else:
                if obstacle:
                    journal.note("combine", candidate.names[-1:], False, obstacle)
                open_launches[candidate.kind] = _Launch(position, set(candidate.names))
        place[index] = at
        slots[at].append(index)
    found = tuple(tuple(slot) for slot in slots if slot)
    for run in found:
        if len(run) > 1:
            journal.note(
                "combine",
                tuple(candidates[index].names[-1] for index in run[:_SHOWN]),
                True,
                "of one kind, and none waits for another",
                members=len(run),
                saved_us=(len(run) - 1) * launch_us,
                loss_us=loss * sum(candidates[index].time_us for index in run),
            )
    return found


def _obstacle(
    launch: _Launch, unit: Unit, candidate: Candidate, place: Mapping[int, int], max_args: int
) -> str:
    """Why the call of `candidate` cannot move to `launch`; empty if it can."""
    if any(place[earlier] >= launch.place for earlier in unit.before):
        return "waits for a step behind the earlier call of its kind"
    new = sum(name not in launch.names for name in dict.fromkeys(candidate.names))
    if len(launch.names) + new > max_args:
        return "a launch takes no more arguments"
    return ""


class _Memory:
    """Bytes alive at each step, and their peak, which no move may raise."""

    def __init__(self, live: list[int]) -> None:
        self._live = live
        self._peak = max(live, default=0)

    def move(self, size_bytes: int, source: int, to: int) -> bool:
        """Have `size_bytes` that step `source` allocates there from step `to` on, unless that raises the
        peak.
        """
        if not size_bytes:
            return True
        steps = range(to, source)
        if len(steps) > _WINDOW or any(self._live[step] + size_bytes > self._peak for step in steps):
            return False
        for step in steps:
            self._live[step] += size_bytes
        return True
