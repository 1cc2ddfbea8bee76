"""What a sweep found, as a small file that is kept: counts, what failed, and what ran. The records themselves
are large, and go.

A summary is a file of JSON in `docs/comparisons/`, numbered by kind in the order in which they were added. Of
seeds that ran before, a later summary only says what became of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from integration_tests.operators.verdicts import Tally, is_failure, others, tally

FAILED: Final = ("wrong", "raises", "crash", "timeout")
LONGEST: Final = 140

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRun:
    """Units of torch's operators.

    `samples`: by way, how many units and samples. `failures`: op, way, dtype, status and what differed.
    `others`: lines about what is not Coilwork's. `done`: the operators by way and dtype; empty of runs whose
    records are lost.
    """

    torch: str
    tally: Tally
    samples: Mapping[str, Sequence[int]]
    failures: Sequence[Mapping[str, str]]
    others: Sequence[str]
    done: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """Programs of the fuzzer.

    `ranges`: "first", "last" and "counts" by kind, of what the seeds did when they ran first. `failures`:
    seed, kind, level and what, of those that failed then. `again`: the last kind of each seed that ran again,
    by its number.
    """

    torch: str
    ranges: Sequence[Mapping[str, Any]]
    failures: Sequence[Mapping[str, Any]]
    again: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRun:
    """Samples of torch's modules: how many modules, the samples by status, and what failed."""

    torch: str
    modules: int
    counts: Mapping[str, int]
    failures: Sequence[Mapping[str, str]]


Run: TypeAlias = OperatorRun | ProgramRun | ModuleRun
KINDS: Final[Mapping[str, type[Run]]] = {
    "operators": OperatorRun,
    "programs": ProgramRun,
    "modules": ModuleRun,
}


def of_operators(records: Sequence[Record], *, torch: str) -> OperatorRun:
    """The summary of a sweep's progress file."""
    done: dict[str, dict[str, set[str]]] = {}
    for record in records:
        done.setdefault(record["way"], {}).setdefault(record["dtype"], set()).add(record["op"])
    return OperatorRun(
        torch=torch,
        tally=tally(records),
        samples=_samples(records),
        failures=[
            {
                **{name: record[name] for name in ("op", "way", "dtype", "status")},
                "what": short(record["detail"]),
            }
            for record in records
            if is_failure(record)
        ],
        others=[short(line) for line in others(records)],
        done={way: {dtype: sorted(ops) for dtype, ops in found.items()} for way, found in done.items()},
    )


def _samples(records: Sequence[Record]) -> dict[str, list[int]]:
    """How many units and samples were compared, by way of calling."""
    units: dict[str, set[str]] = {}
    samples: Counter[str] = Counter()
    for record in records:
        seen = units.setdefault(record["way"], set())
        if record["unit"] not in seen:
            seen.add(record["unit"])
            samples[record["way"]] += record["samples"]
    return {way: [len(seen), samples[way]] for way, seen in units.items()}


def of_programs(records: Sequence[Record], *, torch: str, before: Sequence[ProgramRun] = ()) -> ProgramRun:
    """The summary of findings, the latest last; seeds that are in `before` are not counted again."""
    known = [(one["first"], one["last"]) for run in before for one in run.ranges]
    first: dict[int, Record] = {}
    again: dict[str, str] = {}
    for record in records:
        seed = record["seed"]
        if seed in first or any(low <= seed <= high for low, high in known):
            again[str(seed)] = record["kind"]
        else:
            first[seed] = record
    found = []
    for low, high in ranges(first):
        counts = Counter(program_kind(first[seed]["kind"]) for seed in range(low, high + 1))
        found.append({"first": low, "last": high, "counts": dict(counts)})
    failures = [
        {"seed": seed, "kind": one["kind"], "level": one.get("level") or "", "what": said(one["detail"])}
        for seed, one in sorted(first.items())
        if one["kind"] in FAILED
    ]
    return ProgramRun(torch=torch, ranges=found, failures=failures, again=again)


def of_modules(records: Sequence[Record], *, torch: str) -> ModuleRun:
    """The summary of the results of `integration_tests.modules.sweep`."""
    return ModuleRun(
        torch=torch,
        modules=len({record["module"] for record in records}),
        counts=dict(sorted(Counter(record["status"] for record in records).items())),
        failures=[
            {"sample": short(record["sample"]), "status": record["status"], "what": said(record["detail"])}
            for record in records
            if not record["good"]
        ],
    )


def program_kind(kind: str) -> str:
    """`kind`, with all those that are Coilwork's to mend as one."""
    return "failed" if kind in FAILED else kind


def ranges(seeds: Iterable[int]) -> list[tuple[int, int]]:
    """Seeds as pairs of the first and the last of those that follow one another."""
    found: list[tuple[int, int]] = []
    for seed in sorted(seeds):
        if found and seed == found[-1][1] + 1:
            found[-1] = (found[-1][0], seed)
        else:
            found.append((seed, seed))
    return found


def said(detail: str) -> str:
    """The line that says what was raised, or what differs."""
    lines = [line.strip() for line in detail.strip().splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Fault|Failed)\b.*:", line)]
    return short((raised or lines or [""])[-1])


def short(text: str) -> str:
    """One line of a table, without the folders of whoever ran it."""
    text = re.sub(r"(/[\w.\-]+)+/", "", " ".join(text.split()))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def load(folder: Path) -> list[Run]:
    """All summaries in the folder, those of a kind in the order in which they were added."""
    return [_parsed(path) for kind in KINDS for path in sorted(folder.glob(f"{kind}-*.json"))]


def add(run: Run, folder: Path) -> Path:
    """Keep `run` beside what is there; returns its file."""
    kind = next(name for name, made in KINDS.items() if isinstance(run, made))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{1 + len(list(folder.glob(f'{kind}-*.json'))):03}.json"
    path.write_text(json.dumps(asdict(run), indent=1) + "\n")
    return path


def _parsed(path: Path) -> Run:
    fields = json.loads(path.read_text())
    if "tally" in fields:
        fields["tally"] = Tally(**fields["tally"])
    return KINDS[path.name.partition("-")[0]](**fields)
