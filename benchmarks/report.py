"""A run's results as Markdown: failures and losing rows first, then the winning ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from benchmarks.pages import wrap_prose
from benchmarks.results import Measurement, Run, compile_seconds, group_measurements, ratio

Group = dict[str, Measurement]


def number(value: float | None, digits: int = 3) -> str:
    """`value` with so many significant digits, or a dash."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(decimals, 6)}f}"


def megabytes(value: int | None) -> str:
    """Bytes as MB (10^6)."""
    return number(None if value is None else value / 1e6)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown lines."""
    aligned = ["---" if column == 0 else "---:" for column in range(len(header))]
    lines = [header, aligned, *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def title(key: tuple[str, str, str]) -> str:
    model, mode, dtype = key
    return f"{model}, {mode}, {dtype}"


def primary(run: Run) -> str:
    """The backend that the tables are about: Coilwork where it took part, else the last one named."""
    names = list(dict.fromkeys(measurement.backend for measurement in run.measurements))
    return "coilwork" if "coilwork" in names else names[-1]


def worst_speedup(group: Group, backend: str) -> float:
    """The smallest speed-up of `backend` over any other; 0 where it failed, so that it sorts first."""
    own = group.get(backend)
    if own is None or own.failure or not own.correct:
        return 0.0
    found = [ratio(other.ms, own.ms) for name, other in group.items() if name != backend]
    known = [value for value in found if value is not None]
    return min(known) if known else math.inf


def geomean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the known values."""
    known = [value for value in values if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def column_table(
    groups: dict[tuple[str, str, str], Group],
    backends: Sequence[str],
    backend: str,
    value: Callable[[Group, str], float | None],
    show: Callable[[float | None], str] = number,
) -> list[str]:
    """One column per backend and one per ratio other / own, closed by the ratios' geometric means."""
    others = [name for name in backends if name != backend]

    def cell(group: Group, name: str) -> float | None:
        return value(group, name) if name in group else None

    rows = []
    for key, group in groups.items():
        quotients = [ratio(cell(group, other), cell(group, backend)) for other in others]
        rows.append([title(key), *(show(cell(group, name)) for name in backends), *map(number, quotients)])
    means = [
        geomean(ratio(cell(group, other), cell(group, backend)) for group in groups.values())
        for other in others
    ]
    rows.append(["geometric mean", *("" for _ in backends), *map(number, means)])
    return table(["model", *backends, *(f"{other} / {backend}" for other in others)], rows)


def markdown(run: Run) -> str:
    """The whole report."""
    backend = primary(run)
    backends = list(dict.fromkeys(measurement.backend for measurement in run.measurements))
    groups = dict(
        sorted(group_measurements(run.measurements).items(), key=lambda item: worst_speedup(item[1], backend))
    )
    lines = [f"# Benchmarks: {run.size} models on {run.device}", "", f"`{run.command}`, {run.when}.", ""]
    lines += [f"- {name}: {text}" for name, text in run.machine.items()]
    lines += [
        f"- compile threads, the same for every compiler: {run.threads}",
        "- batch: " + ("each model's own" if run.batch is None else str(run.batch)),
        "",
        (
            "Each model and backend ran in a fresh process with empty caches; rounds of calls alternated "
            "between the"
        ),
        "backends. Rows are ordered by the worst speed-up, losing ones first. Ratios above 1 speak for "
        f"{backend}.",
        "What gave a wrong result is listed as wrong, and measured all the same.",
    ]
    failed = [m for m in run.measurements if m.failure or m.correct is False]
    if failed:
        lines += ["", "## Failed or wrong", ""]
        reasons = [
            (title(m.key), m.backend, (m.failure or "wrong result").replace("|", "\\|")) for m in failed
        ]
        lines += table(["model", "backend", "reason"], reasons)

    def of(name: str) -> Callable[[Group, str], float | None]:
        def value(group: Group, member: str) -> float | None:
            figure: float | None = getattr(group[member], name)
            return figure

        return value

    lines += ["", "## Milliseconds per call (median)", ""]
    lines += column_table(groups, backends, backend, of("ms"))
    if run.device == "cuda":
        lines += ["", "## GPU-busy milliseconds per call", ""]
        lines += column_table(groups, backends, backend, of("gpu_busy_ms"))
        lines += ["", "## Host milliseconds to issue a call", ""]
        lines += column_table(groups, backends, backend, of("host_ms"))
    lines += ["", "## Cold compile seconds (first call less eager's first call)", ""]
    lines += column_table(groups, [b for b in backends if b != "eager"], backend, compile_seconds)
    lines += ["", "## Peak memory, MB above parameters and inputs", ""]
    lines += column_table(
        groups,
        backends,
        backend,
        of("peak_bytes"),
        lambda value: megabytes(None if value is None else int(value)),
    )
    lines += ["", "## Kernels per call", ""]
    lines += column_table(
        groups, backends, backend, of("kernels"), lambda v: "–" if v is None else f"{v:.0f}"
    )
    lines += ["", "## Worst error against float64 (relative L2; eager's own in parentheses)", ""]
    errors = [
        [title(key), *(error(group.get(name)) for name in backends if name != "eager")]
        for key, group in groups.items()
    ]
    lines += table(["model", *(name for name in backends if name != "eager")], errors)
    return wrap_prose("\n".join(lines) + "\n")


def error(measurement: Measurement | None) -> str:
    """`1.2e-07 (1.1e-07)`, or a dash."""
    if measurement is None or measurement.relative_l2 is None:
        return "–"
    return f"{measurement.relative_l2:.2g} ({measurement.eager_relative_l2:.2g})"
