"""A run as Markdown: what failed, then the cases where Coilwork is behind, then those where it is ahead."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import groupby

from benchmarks.memory_bound.results import MemoryRun, Row, rivals
from benchmarks.pages import wrap_prose
from benchmarks.report import geomean, megabytes, number, table

SETS = {
    "main": "Memory-bound kernels",
    "more": "More sizes and types",
    "cached": "Within the second-level cache, which is not flushed",
    "other": "Other kinds of kernels",
    "later": "Kinds that were chosen later",
    "further": "Kinds that were chosen last",
    "open": "Kernels whose sizes are left open",
    "unlike": "Open sizes, called with others than they were compiled for, and such sizes known",
}
# A case below this multiple of the fastest other backend counts as behind, one below that share of a copy as
# slow.
BEHIND, SLOW = 0.97, 0.75
# How far from the best found configurations the default may be.
NEAR = (0.03, 0.1)


def primary(run: MemoryRun) -> str:
    """The backend that the tables are about: Coilwork where it took part, else the last one named."""
    return "coilwork" if "coilwork" in run.backends else run.backends[-1]


def compute_standing(row: Row, own: str) -> float:
    """Speed-up over the fastest backend of another family; 0 where it failed, so that it sorts first."""
    if row.busy_us(own) is None:
        return 0.0
    found = [row.speedup(own, other) for other in rivals(row.figures, own)]
    known = [value for value in found if value is not None]
    return min(known) if known else math.inf


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def markdown(run: MemoryRun) -> str:
    """The whole report."""
    own = primary(run)
    lines = [f"# Memory-bound kernels on {run.machine.get('gpu', run.device)}", ""]
    lines += [f"`{run.command}`, {run.when}, {run.seconds:.0f} s.", ""]
    lines += [f"- {name}: {text}" for name, text in run.machine.items()]
    lines += [
        "",
        "A share is the time of a copy of as many bytes over the time taken, both GPU-busy microseconds "
        "by the profiler "
        "(medians), on the fewest bytes that the case can move: every input read once, every result "
        "written once, and "
        "what is read again for the reasons given below. The second-level cache is flushed before each "
        "call. Rows are "
        f"ordered by {own}'s speed-up over the fastest other backend, losing ones first.",
    ]
    lines += _failures(run)
    for name, heading in SETS.items():
        rows = sorted(
            (row for row in run.rows if row.set == name), key=lambda row: compute_standing(row, own)
        )
        if rows:
            lines += ["", f"## {heading}", "", *_summary(run, rows, own), "", *_shares(run, rows, own)]
    lines += ["", "## Kernels, host, memory, compilation", "", *_details(run, own)]
    reasons = [(row.case, megabytes(row.again_bytes), row.why) for row in run.rows if row.again_bytes]
    if reasons:
        lines += ["", "## Read again", "", *table(["case", "MB", "why"], reasons)]
    lines += _slow(run, own)
    lines += _report_searches(run, own)
    lines += _report_counters(run)
    return wrap_prose("\n".join(lines) + "\n")


def _slow(run: MemoryRun, own: str) -> list[str]:
    """Return what the time of slow cases goes to, kernel by kernel."""
    body = [
        [row.case, percent(row.share(own)), _steps(row.figures[own].steps)]
        for row in run.rows
        if (row.share(own) or 1.0) < SLOW and row.figures[own].steps
    ]
    if not body:
        return []
    heading = [
        "",
        f"## Kernels of cases below {SLOW:.0%} of a copy",
        "",
        "Medians, in the order in which they run.",
        "",
    ]
    return heading + table(["case", "share", "GPU microseconds"], body)


def _steps(steps: Sequence[tuple[str, float]]) -> str:
    """Each kernel or copy with its time; those of one name that follow each other together."""
    shown = []
    for name, group in groupby(steps, key=lambda step: _bare(step[0])):
        times = [us for _, us in group]
        shown.append(f"{name} {' + '.join(f'{us:.1f}' for us in times)}")
    return ", ".join(shown)


def _bare(name: str) -> str:
    """A kernel's name without namespaces, types and arguments."""
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].rpartition("::")[2].strip()


def _report_searches(run: MemoryRun, own: str) -> list[str]:
    """Return how far the default configurations are from those that a search found, where both took part."""
    wide = f"{own}-max"
    if wide not in run.backends:
        return []
    timed = [(row, row.speedup(own, wide)) for row in run.rows]
    known = sorted(((share, row) for row, share in timed if share is not None), key=lambda pair: pair[0])
    if not known:
        return []
    lines = ["", "## Default configurations and the best found", ""]
    for gap in NEAR:
        near = sum(share >= 1 / (1 + gap) for share, _ in known)
        lines.append(f"- {own} is within {gap:.0%} of {wide}, or faster, in {near} of {len(known)} cases")
    lines += [f"- {wide} is {number(geomean(1 / share for share, _ in known))} times as fast (geomean)", ""]
    header = ["case", f"{own} us", f"{wide} us", "default slower by"]
    return lines + table(
        header,
        [
            [row.case, number(row.busy_us(own)), number(row.busy_us(wide)), f"{1 / share - 1:+.1%}"]
            for share, row in known
        ],
    )


def _report_counters(run: MemoryRun) -> list[str]:
    """Hardware counters, launch by launch, or why there are none."""
    missing = sorted({row.uncounted for row in run.rows if row.uncounted})
    body = [
        [
            row.case,
            backend,
            one.kernel[:60],
            number(one.us),
            megabytes(round(one.read_bytes)),
            megabytes(round(one.written_bytes)),
            number(one.instructions / 1e6),
            percent(one.warps / 100),
            number_or_dash(round(one.registers)),
        ]
        for row in run.rows
        for backend, launches in row.counters.items()
        for one in launches
    ]
    if not body and not missing:
        return []
    header = [
        "case",
        "backend",
        "kernel",
        "us",
        "read MB",
        "written MB",
        "instructions, M",
        "warps",
        "registers",
    ]
    lines = ["", "## Hardware counters", "", *(f"Not available: {reason}." for reason in missing)]
    if body:
        lines += [
            "Memory traffic is what passed the memory's pins; instructions are those of all threads; "
            "warps are the mean share of "
            "what a multiprocessor holds. Times are with empty caches, and no benchmark.",
            "",
            *table(header, body),
        ]
    return lines


def _failures(run: MemoryRun) -> list[str]:
    failed = [
        (row.case, backend, figure.failure.replace("|", "\\|"))
        for row in run.rows
        for backend, figure in row.figures.items()
        if figure.failure
    ]
    changing = [
        (row.case, backend, "two calls differ in bits")
        for row in run.rows
        for backend, figure in row.figures.items()
        if figure.repeatable is False
    ]
    if not failed and not changing:
        return []
    return [
        "",
        "## Failed, wrong or not repeatable",
        "",
        *table(["case", "backend", "what"], failed + changing),
    ]


def _summary(run: MemoryRun, rows: Sequence[Row], own: str) -> list[str]:
    lines = []
    for backend in run.backends:
        lines.append(
            f"- {backend}: {percent(geomean(row.share(backend) for row in rows))} of a copy (geomean)"
        )
    for other in rivals(run.backends, own):
        lines.append(
            f"- {own} is {number(geomean(row.speedup(own, other) for row in rows))} times as fast as "
            f"{other} (geomean)"
        )
    standings = [compute_standing(row, own) for row in rows]
    shares = [row.share(own) for row in rows]
    lines.append(
        f"- {sum(s < BEHIND for s in standings)} of {len(rows)} cases below {BEHIND} of the fastest "
        "other backend, "
        f"{sum(s is not None and s < SLOW for s in shares)} below {SLOW:.0%} of a copy"
    )
    return lines


def _shares(run: MemoryRun, rows: Sequence[Row], own: str) -> list[str]:
    others = rivals(run.backends, own)
    header = ["case", "fewest MB", "copy us", *(f"{b} us (share)" for b in run.backends)]
    header += [f"{other} / {own}" for other in others]
    body = []
    for row in rows:
        cells = [row.case, megabytes(row.fewest_bytes), number(row.copy_us)]
        for backend in run.backends:
            busy = row.busy_us(backend)
            cells.append("–" if busy is None else f"{busy:.1f} ({percent(row.share(backend))})")
        body.append([*cells, *(number(row.speedup(own, other)) for other in others)])
    return table(header, body)


def _details(run: MemoryRun, own: str) -> list[str]:
    compiled = [backend for backend in run.backends if backend != "eager"]
    header = ["case", "kernels", "host us", "peak MB", "compile s"]

    def each(row: Row, backends: Sequence[str], show: Callable[[Row, str], str]) -> str:
        return " / ".join(show(row, backend) for backend in backends)

    def kernels(row: Row, backend: str) -> str:
        return number_or_dash(row.figures[backend].kernels)

    def host(row: Row, backend: str) -> str:
        return number(row.figures[backend].host_us)

    def peak(row: Row, backend: str) -> str:
        return megabytes(row.figures[backend].peak_bytes)

    def seconds(row: Row, backend: str) -> str:
        return number(row.figures[backend].compile_s, 2)

    rows = sorted(run.rows, key=lambda row: compute_standing(row, own))
    body = [
        [
            row.case,
            each(row, run.backends, kernels),
            each(row, run.backends, host),
            each(row, run.backends, peak),
            each(row, compiled, seconds),
        ]
        for row in rows
    ]
    means = [number(geomean(r.figures[b].compile_s for r in run.rows), 3) for b in compiled]
    body.append(["geometric mean", "", "", "", " / ".join(means)])
    intro = f"In the order {' / '.join(run.backends)}; compilation in the order {' / '.join(compiled)}."
    return [intro, "", *table(header, body)]


def number_or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
