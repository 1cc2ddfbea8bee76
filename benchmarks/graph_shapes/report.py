"""The page of results: a table, what is worst in it, and how it was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.graph_shapes.figures import Figures, Measured, growth
from benchmarks.pages import wrap_prose

LARGE = 1000
"""Nodes from which on growth is judged: before, single kernels and the start of the C++ compiler weigh."""


def table(measured: Sequence[Measured]) -> str:
    """Markdown: a row per shape and size."""
    by_key = {one.key: one for one in measured}
    backends = sorted({one.backend for one in measured})
    heads = ["shape", "nodes", *(f"{backend} s" for backend in backends), "ratio", "growth", "stages"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for shape in dict.fromkeys(one.shape for one in measured):
        before: Measured | None = None
        for size in sorted({one.size for one in measured if one.shape == shape}):
            row = [by_key.get((backend, shape, size)) for backend in backends]
            ours = row[0]
            if ours is None:
                continue
            cells = ["" if one is None else f"{one.seconds:.2f}" if one.stages else "-" for one in row]
            theirs = row[1] if len(row) > 1 else None
            both = theirs is not None and bool(theirs.stages) and bool(ours.stages)
            ratio = f"{ours.seconds / theirs.seconds:.2f}" if both and theirs is not None else ""
            exponent = f"{growth(before, ours):.2f}" if before is not None and ours.stages else ""
            slow = sorted(ours.stages.items(), key=lambda item: -item[1])[:4]
            stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in slow if seconds >= 0.005)
            lines.append("| " + " | ".join([shape, str(ours.nodes), *cells, ratio, exponent, stages]) + " |")
            before = ours if ours.stages else None
    return "\n".join(lines) + "\n"


def ratios(measured: Sequence[Measured]) -> Iterator[tuple[float, Measured]]:
    """Coilwork's seconds over Inductor's, for each graph that both compiled."""
    by_key = {one.key: one for one in measured}
    for one in measured:
        theirs = by_key.get(("inductor", one.shape, one.size))
        if one.backend == "coilwork" and one.stages and theirs is not None and theirs.stages:
            yield one.seconds / theirs.seconds, one


def growths(measured: Sequence[Measured], backend: str) -> Iterator[tuple[float, Measured]]:
    """Exponents from the first size of `LARGE` on to the largest one, of each shape that has two."""
    by_shape: dict[str, list[Measured]] = {}
    for one in measured:
        if one.backend == backend and one.stages and one.size >= LARGE:
            by_shape.setdefault(one.shape, []).append(one)
    for sizes in by_shape.values():
        first, last = (choose(sizes, key=lambda one: one.size) for choose in (min, max))
        if last.nodes > first.nodes:
            yield growth(first, last), last


def summary(measured: Sequence[Measured]) -> str:
    """The worst ratios, the worst exponents, and graphs without a result."""
    lines = []
    found = sorted(ratios(measured), key=lambda item: -item[0])
    if found:
        slower = sum(ratio > 1 for ratio, _ in found)
        worst = ", ".join(f"{ratio:.2f} ({one.shape}, {one.nodes})" for ratio, one in found[:5])
        lines.append(
            f"- {len(found)} graphs that both compiled, {slower} slower; the highest ratios: {worst}."
        )
    for backend in sorted({one.backend for one in measured}):
        exponents = sorted(growths(measured, backend), key=lambda item: -item[0])
        worst = ", ".join(f"{exponent:.2f} ({one.shape}, to {one.nodes})" for exponent, one in exponents[:5])
        missing = [one for one in measured if one.backend == backend and not one.stages]
        late = ", ".join(f"{one.shape} {one.size}" for one in missing if not one.failure)
        failed = "; ".join(f"{one.shape} {one.size}, {one.failure}" for one in missing if one.failure)
        lines.append(
            f"- {backend}: the highest growth from {LARGE:,} nodes on: {worst or 'not measured'}; "
            f"no result within the limit: {late or 'none'}{failed and f'; failed: {failed}'}."
        )
    return "\n".join(lines)


def page(figures: Sequence[Figures], shapes: int) -> str:
    """The tables with what they say, one for each machine; `shapes`: how many shapes there are."""
    parts = "\n".join(_part(one, number, shapes) for number, one in enumerate(figures, 1))
    text = f"""# Benchmarks: compile time by shape of graph

`python -m benchmarks.graph_shapes --json RUN.json` with the options of each run, and
`--merge RUN.json ... -o docs/benchmarks/compile-time.md`; later runs on a machine replace what earlier ones
found for the same graph. Rows show how far a run came: one that was cut has fewer.

Processor seconds of one compiling process and of the C++ compilers that it starts, from an ATen graph to a
callable, without a cache. Ratios are Coilwork's seconds over Inductor's: below 1 speaks for Coilwork. Growth
is the exponent by which Coilwork's seconds grow from the row above, 1 for n log n; single kernels and the
start of the C++ compiler weigh on small graphs. `-`: no result within the limit.

{parts}"""
    return wrap_prose(text)


def _part(figures: Figures, number: int, shapes: int) -> str:
    machine = "\n".join(f"- {line}" for line in figures.machine)
    runs = "\n".join(f"- `{options.describe(shapes)}`" for options in figures.options)
    return f"""## Machine {number}

{machine}

Runs:

{runs}

{summary(figures.measured)}

{table(figures.measured)}"""
