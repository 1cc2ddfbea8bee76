"""What was measured, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from benchmarks import host_cost
from benchmarks.host_cost.floors import Floors
from benchmarks.host_cost.programs import PROGRAMS
from benchmarks.pages import wrap_prose


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call of a program costs the host.

    Attributes:
        us: microseconds until it returns.
        launches: kernels that the GPU ran.
        kinds: of a program of the native executor: how many instructions of each kind, and their
            microseconds.
    """

    us: float
    launches: int = 0
    kinds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


Found = Mapping[tuple[str, str], Cost]
"""By program and backend."""
PIECES: Final = "coilwork-pieces"


def page(found: Found, floors: Floors, *, command: str, machine: Mapping[str, str]) -> str:
    """The results as Markdown; programs that were not measured are left out."""
    lines = [
        "# Benchmarks: what a call costs the host of a GPU",
        "",
        f"`{command}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC.",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
        "",
        " ".join((host_cost.__doc__ or "").rpartition("\n\n")[2].split()),
        "",
        (
            "Microseconds of the host: floors are the least of many rounds, or the median of single calls "
            "where it says idle; calls, each begun"
        ),
        "while the GPU is idle, are the least median of three rounds.",
        "",
        "## Beside the floor",
        "",
        "| what | coilwork us | floor us | what the floor is | coilwork / floor |",
        "| --- | ---: | ---: | --- | ---: |",
        *_list_floors(found, floors),
        "",
        (
            "Calls that are alike go to the driver as graphs; `replay=False` gives it each piece of work by "
            "itself."
        ),
        (
            "A kernel's share of allocations is what instructions of that kind take in the program of 1,000 "
            "kernels, by the executor's own"
        ),
        "stopwatch, and so is what its launch takes; reading the clock counts as part of both.",
        "",
        "## Whole calls",
        "",
        (
            "| program | launches: inductor | coilwork | inductor us | coilwork us | piece by piece us | "
            "coilwork / inductor |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *_whole_calls(found),
        "",
    ]
    return wrap_prose("\n".join(lines))


def _list_floors(found: Found, floors: Floors) -> list[str]:
    rows: list[tuple[str, float, float, str]] = []
    launch = "`cuLaunchKernel`"
    long, short = found.get(("kernels-1000", "coilwork")), found.get(("kernels-100", "coilwork"))
    if long is not None and short is not None:
        rows.append(("one kernel more in a graph", _cost_per_launch(long, short), floors.launch, launch))
    long, short = found.get(("kernels-1000", PIECES)), found.get(("kernels-100", PIECES))
    if long is not None and short is not None:
        rows.append(
            (
                "one kernel more by itself, and all that goes with it",
                _cost_per_launch(long, short),
                floors.launch,
                launch,
            )
        )
        rows.append(("of it, the launch", _cost_of_kind(long, "kernels"), floors.launch, launch))
        made = (
            f"a tensor made and dropped; {long.kinds.get('allocations', (0, 0))[0]:.0f} allocations for "
            f"{long.launches}"
        )
        taken = sum(long.kinds.get(kind, (0.0, 0.0))[1] for kind in ("allocations", "frees")) / long.launches
        rows.append(("of it, allocations and frees", taken, floors.allocation, made))
    products = (
        ("coilwork-aten", "by ATen"),
        (PIECES, "by a cached cuBLASLt plan"),
        ("coilwork", "by a cached cuBLASLt plan, in a graph"),
    )
    for backend, what in products:
        many, few = found.get(("products-100", backend)), found.get(("products-10", backend))
        if many is not None and few is not None:
            name = f"one product more, {what}"
            rows.append((name, _cost_per_launch(many, few), floors.product, "`aoti_torch_cuda_mm_out`"))
    one, nothing = found.get(("kernels-1", "coilwork")), found.get(("kernels-1", "dynamo"))
    if one is not None and nothing is not None:
        rows.append(
            ("a call of one kernel", one.us, nothing.us, "the same under a backend that does nothing")
        )
        idle = floors.launch_when_idle + floors.allocation_when_idle
        rows.append(
            ("of it, beyond Dynamo", one.us - nothing.us, idle, "one launch and one tensor on an idle GPU")
        )
    return [
        f"| {what} | {ours:.2f} | {floor:.2f} | {about} | {ours / floor:.2f} |"
        for what, ours, floor, about in rows
    ]


def _cost_per_launch(long: Cost, short: Cost) -> float:
    """Microseconds of one launch more."""
    return (long.us - short.us) / (long.launches - short.launches)


def _cost_of_kind(cost: Cost, kind: str) -> float:
    """Microseconds of one instruction of a kind; NaN if there are none."""
    count, taken = cost.kinds.get(kind, (0.0, 0.0))
    return taken / count if count else float("nan")


def _whole_calls(found: Found) -> list[str]:
    rows = []
    for name, program in PROGRAMS.items():
        theirs, ours, pieces = (found.get((name, backend)) for backend in ("inductor", "coilwork", PIECES))
        if theirs is not None and ours is not None and pieces is not None:
            rows.append(
                f"| {program.title} | {theirs.launches} | {ours.launches} | {theirs.us:.1f} | {ours.us:.1f} "
                f"| {pieces.us:.1f} | {ours.us / theirs.us:.2f} |"
            )
    return rows
