"""Tables of what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from benchmarks.compute_bound.programs import KINDS
from benchmarks.pages import wrap_prose

Record = Mapping[str, Mapping[str, Any]]
_OTHERS: Final = ("eager", "inductor", "autotune")
_TITLES: Final = {"eager": "eager", "inductor": "Inductor", "autotune": "its autotuning"}


def find_ratio(record: Record) -> float | None:
    """Return the best time of others over ours; None if ours or all theirs are missing."""
    others = [record[way]["us"] for way in _OTHERS if way in record and record[way]["us"]]
    ours = record.get("coilwork", {}).get("us")
    return min(others) / ours if others and ours else None


def find_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    logarithms = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


def describe_time(timing: Mapping[str, Any] | None) -> str:
    """Return microseconds, or a dash."""
    return f"{timing['us']:.1f}" if timing and timing["us"] else "–"


def describe(name: str, record: Record) -> str:
    """Return a line about a case."""
    times = " | ".join(f"{way} {describe_time(timing)}" for way, timing in record.items())
    ratio = find_ratio(record)
    said = f"{name:30} {times}"
    if ratio is not None:
        said += f" | x{ratio:.2f} | {len(record['coilwork']['kernels'])} kinds of kernels"
    offs = [f"{way} {timing['off']:.1e}" for way, timing in record.items() if way in ("eager", "coilwork")]
    said += f" | off {', '.join(offs)}"
    for way, timing in record.items():
        if timing["error"]:
            said += f"\n    {way}: {timing['error'][:300]}"
    return said


def summarise(records: Mapping[str, Record]) -> list[str]:
    """Return the means of all cases and of each kind, and the cases below 0.97."""
    lines = []
    for title, kind in (("all", None), *((kind, kind) for kind in KINDS)):
        names = [f"{case.mode}:{case.name}" for case in KINDS[kind]] if kind else list(records)
        found = [find_ratio(records[name]) for name in names if name in records]
        ratios = [ratio for ratio in found if ratio is not None]
        if ratios:
            below = sum(ratio < 0.97 for ratio in ratios)
            lines.append(
                f"{title}: {len(ratios)} cases, geomean {find_mean(ratios):.3f}, "
                f"least {min(ratios):.2f}, {below} below 0.97"
            )
    return lines


def write_page(records: Mapping[str, Record], command: str, machine: str) -> str:
    """Return a page in Markdown."""
    ways = [way for way in _OTHERS if any(way in record for record in records.values())]
    heads = " | ".join(_TITLES[way] for way in ways)
    text = [
        "# Programs that arithmetic bounds, on a GPU",
        "",
        "Products of matrices in all types, attention, and layers that are made of them, beside eager mode",
        "and another compiler. Times are microseconds in which the device is busy in a call: sums over its",
        "kernels, the least of three rounds of five calls. The last columns are the best of the others over",
        "Coilwork, and how far Coilwork's results are from float64, or from eager's where an operator has",
        "no float64.",
        "",
        f"{machine}. `{command}` wrote this page.",
        "",
    ]
    text += [f"- {line}" for line in summarise(records)]
    for kind, cases in KINDS.items():
        rows = [(case, records.get(f"{case.mode}:{case.name}")) for case in cases]
        if not any(record for _, record in rows):
            continue
        text += ["", f"## {kind.capitalize()}", "", f"| case | {heads} | Coilwork | best / Coilwork | off |"]
        text.append("|---" * (len(ways) + 4) + "|")
        for case, record in rows:
            if record is None:
                continue
            ratio = find_ratio(record)
            ours = record.get("coilwork")
            cells = [
                case.name + (", forward and backward" if case.trains else ""),
                *(describe_time(record.get(way)) for way in (*ways, "coilwork")),
                "–" if ratio is None else f"{ratio:.2f}",
                "–" if ours is None or case.is_random else f"{ours['off']:.1e}",
            ]
            text.append(f"| {' | '.join(cells)} |")
    return wrap_prose("\n".join(text) + "\n")
