"""What sweeps over torch's operators and random programs found, as a page: docs/comparisons.md.

    python -m integration_tests.comparisons --operators opinfo.jsonl --programs fuzz.jsonl,again.jsonl

It reads the progress file of `integration_tests.operators.sweep` and the findings of `integration_tests.fuzz`; of a seed
that is in several files the last record says what it does now.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from integration_tests.operators.exceptions import KNOWN, reason
from integration_tests.operators.verdicts import is_failure, others, table

FAILED: Final = ("wrong", "raises", "crash", "timeout")
KINDS: Final = ("ok", "rounded", "torch", "skipped", "failed")
LONGEST: Final = 140

HEADER: Final = """\
# Compared with eager

What was compared so far, on a CPU with torch {version}, and what differed. Made by `python -m integration_tests.comparisons` from the files that
`nox -s opinfo` and `nox -s fuzz` leave. Each unit and each seed ran once, while Coilwork 0.1.0 was developed: old records are of older states.
What failed then ran again after it was mended. Most units ran with three or four samples, `float16` and half of `int8` with all.

"""
OPERATORS: Final = """\
## Torch's operators

Every operator of torch's own database (`integration_tests/operators/README.md` says what is done), by pairs of operator and type. *Not traced*: Dynamo compiles nothing. *Torch's own*: `aot_eager`, in which nothing is Coilwork's, differs in the same way.

"""
PROGRAMS: Final = """\
## Random programs

Programs of the [fuzzer](how-to/fuzz.md), each at every level of the compiler. *Rounded*: 16-bit values that `numerics="fast"` keeps in
f32. *Torch*: `aot_eager` fails, too. *Skipped*: eager refuses the program, or decides differently in float64.

"""


def page(operators: Sequence[Mapping[str, Any]], programs: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    header = HEADER.format(version=torch.__version__.partition("+")[0])
    return header + OPERATORS + _operators(operators) + "\n" + PROGRAMS + _programs(programs)


def _operators(records: Sequence[Mapping[str, Any]]) -> str:
    lines = ["```", table(records), "```", "", *_samples(records), ""]
    lines += ["Known to differ:", ""]
    lines += [f"- {known.ops} ({known.ways}, {known.dtypes}): {known.reason}" for known in KNOWN]
    failures = [record for record in records if is_failure(record)]
    known = [record for record in failures if reason(record["op"], record["way"], record["dtype"])]
    lines += ["", f"Failures: {len(failures)}, {len(known)} of them known.", ""]
    lines += [
        f"- `{record['op']}` {record['way']} {record['dtype']}: {record['status']}, {_short(record['detail'])}"
        for record in failures
    ]
    lines += ["", "Not Coilwork's:", ""]
    lines += [f"- {_short(line)}" for line in others(records)]
    return "\n".join(lines) + "\n"


def _samples(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many samples were compared, by way of calling."""
    units: dict[str, set[str]] = {}
    samples: Counter[str] = Counter()
    for record in records:
        seen = units.setdefault(record["way"], set())
        if record["unit"] not in seen:
            seen.add(record["unit"])
            samples[record["way"]] += record["samples"]
    lines = ["| way | operators and types | samples |", "|---|---:|---:|"]
    return lines + [f"| {way} | {len(seen):,} | {samples[way]:,} |" for way, seen in units.items()]


def _programs(records: Sequence[Mapping[str, Any]]) -> str:
    first: dict[int, Mapping[str, Any]] = {}
    last: dict[int, Mapping[str, Any]] = {}
    for record in records:
        first.setdefault(record["seed"], record)
        last[record["seed"]] = record
    lines = ["| seeds | programs | " + " | ".join(KINDS) + " |", "|---|" + "---:|" * (len(KINDS) + 1)]
    for begin, end in ranges(first):
        counts = Counter(_kind(first[seed]) for seed in range(begin, end + 1))
        lines.append(
            f"| {begin} to {end} | {counts.total()} | " + " | ".join(str(counts[k]) for k in KINDS) + " |"
        )
    counts = Counter(map(_kind, first.values()))
    lines.append(f"| all | {counts.total()} | " + " | ".join(str(counts[k]) for k in KINDS) + " |")
    failed = sorted(seed for seed, record in first.items() if record["kind"] in FAILED)
    now = [seed for seed in failed if last[seed]["kind"] in FAILED]
    lines += [
        "",
        f"Failed when they ran first: {len(failed)}; of these {len(failed) - len(now)} pass now.",
        "",
    ]
    lines += ["| seed | then | first level that is wrong | what | now |", "|---|---|---|---|---|"]
    lines += [
        f"| {seed} | {first[seed]['kind']} | {first[seed].get('level') or ''} | {_said(first[seed]['detail'])} | "
        f"{last[seed]['kind']} |"
        for seed in failed
    ]
    return "\n".join(lines) + "\n"


def ranges(seeds: Iterable[int]) -> list[tuple[int, int]]:
    """Seeds as pairs of the first and the last of those that follow one another."""
    found: list[tuple[int, int]] = []
    for seed in sorted(seeds):
        if found and seed == found[-1][1] + 1:
            found[-1] = (found[-1][0], seed)
        else:
            found.append((seed, seed))
    return found


def _kind(record: Mapping[str, Any]) -> str:
    return "failed" if record["kind"] in FAILED else str(record["kind"])


def _said(detail: str) -> str:
    """The line that says what was raised, or what differs."""
    lines = [line.strip() for line in detail.strip().splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Fault|Failed)\b.*:", line)]
    return _short((raised or lines or [""])[-1])


def _short(text: str) -> str:
    """One line of a table, without the folders of whoever ran it."""
    text = re.sub(r"(/[\w.\-]+)+/", "", " ".join(text.split())).replace("|", "\\|")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."


def _records(paths: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in paths.split(",") if path for line in Path(path).read_text().splitlines()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operators", default="", help="progress files of the sweep, by commas")
    parser.add_argument("--programs", default="", help="findings of the fuzzer, by commas, the latest last")
    parser.add_argument("--output", type=Path, default=Path("docs/comparisons.md"))
    chosen = parser.parse_args()
    chosen.output.write_text(page(_records(chosen.operators), _records(chosen.programs)))


if __name__ == "__main__":
    main()
