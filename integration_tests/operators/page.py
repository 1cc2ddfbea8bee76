"""What sweeps found, as a page: docs/operators-beside-eager.md.

    python -m integration_tests.operators.page "cpu.jsonl=64 cores, torch 2.11.0" "gpu.jsonl+again.jsonl"

An argument is a sweep: its results files, the later ones what was measured again, joined by `+`. Behind a
file's `=` stands where it was made, if its records do not say so. `--note UNIT=TEXT` adds to what is said of
a unit that fails.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.pages import wrap_prose
from integration_tests.operators.exceptions import reason
from integration_tests.operators.units import Unit
from integration_tests.operators.verdicts import (
    MEANING,
    NOT_OURS,
    THEIRS,
    VERDICTS,
    Record,
    elsewhere,
    is_failure,
    tally,
)

HEADER: Final = """\
# Operators beside eager

Every operator of torch's own database (`torch.testing._internal`'s `op_db`) through
`torch.compile(..., backend="coilwork")`, compared with eager: structure, dtype, shape, strides, values and
gradients. `integration_tests/operators/README.md` says how, `nox -s opinfo` does it,
`python -m integration_tests.operators.page` makes this page of the results.

A pair is an operator and a type, and as bad as the worst that became of it in any way of calling. *Equal*:
integers and booleans to the bit, others within what torch's own tests allow, or with at most ten times
eager's own error. *Torch's own*: `aot_eager`, in which nothing is Coilwork's, differs in the same way. *Not
traced*: Dynamo compiles nothing. *No samples*: eager raises on all of them, too. Shares are of the pairs that
are left.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A results file: where it was made, and its records."""

    place: str
    records: Sequence[Record]


def page(sweeps: Sequence[Sequence[Results]], notes: Mapping[str, str]) -> str:
    """The whole page: of each sweep its first results, with those of the units that were measured again."""
    return wrap_prose(
        "\n".join([HEADER, *(line for sweep in sweeps for line in _sweep(sweep, notes))]) + "\n"
    )


def _sweep(sweep: Sequence[Results], notes: Mapping[str, str]) -> list[str]:
    first, *later = sweep
    records = merged(sweep)
    found = tally(records)
    called = [record for record in records if record["way"] != "errors"]
    units = {record["unit"] for record in called}
    verdicts = sum(map(Counter, found.dtypes.values()), Counter[str]())
    again = {record["unit"] for results in later for record in results.records}
    counted = f", of {len(again)} units what was measured again (below)" if again else ""
    lines = [
        f"## {_capital(first.place)}",
        "",
        f"{len({record['op'] for record in called}):,} operators, {verdicts.total():,} pairs of "
        "operator and type, "
        f"{len(units):,} units (a pair called in one way), {_samples(called):,} samples. "
        f"Equal are **{verdicts['equal']:,} of {_compared(verdicts):,} pairs compared, "
        f"{_share(verdicts)}**{counted}.",
        "",
        *_table("type", found.dtypes, total=verdicts),
        "",
        *_table("way", found.ways),
    ]
    if found.rejected:
        lines += [
            "",
            "Calls that eager rejects: compiled code rejects those of {rejected} operators ({calls} "
            "calls), and accepts some of "
            "{accepted}; of {torch} `aot_eager` accepts some, too.".format(**found.rejected),
        ]
    for results in later:
        lines += ["", "### Measured again", "", f"On {results.place}:", "", *_again(results, sweep)]
    failures = [record for record in records if is_failure(record)]
    lines += ["", "### What differs", ""]
    lines += [_failure(record, notes) for record in failures] or ["Nothing."]
    lines += ["", "### Not Coilwork's", "", *_elsewhere(records), ""]
    return lines


def merged(sweep: Sequence[Results]) -> list[Record]:
    """The records of all units, of those measured more than once the last."""
    last = {record["unit"]: results for results in sweep for record in results.records}
    return [record for results in sweep for record in results.records if last[record["unit"]] is results]


def _samples(records: Sequence[Record]) -> int:
    """Of all parts of units; failures of one part tell of its samples each."""
    return sum({(one["unit"], one.get("first", 0)): one["samples"] for one in records}.values())


def _table(
    head: str, rows: Mapping[str, Mapping[str, int]], *, total: Mapping[str, int] | None = None
) -> list[str]:
    shown = [verdict for verdict in reversed(VERDICTS) if any(row.get(verdict) for row in rows.values())]
    shown = ["equal", *(verdict for verdict in shown if verdict != "equal")]
    lines = [
        f"| {head} | pairs | {' | '.join(shown)} | share equal |",
        f"|---|---:|{'---:|' * len(shown)}---:|",
    ]
    every = {f"`{name}`": row for name, row in rows.items()} | ({"all": total} if total else {})
    for name, row in every.items():
        cells = [f"{row.get(verdict, 0):,}" for verdict in shown]
        lines.append(f"| {name} | {sum(row.values()):,} | {' | '.join(cells)} | {_share(row)} |")
    return lines


def _compared(row: Mapping[str, int]) -> int:
    return sum(count for verdict, count in row.items() if verdict not in NOT_OURS)


def _share(row: Mapping[str, int]) -> str:
    compared = _compared(row)
    return f"{100 * row.get('equal', 0) / compared:.2f} %" if compared else ""


def _again(results: Results, sweep: Sequence[Results]) -> list[str]:
    before = merged(sweep[: sweep.index(results)])
    lines = []
    for key in dict.fromkeys(record["unit"] for record in results.records):
        then = ", ".join(dict.fromkeys(MEANING[one["status"]] for one in before if one["unit"] == key))
        own = [one for one in results.records if one["unit"] == key]
        now = ", ".join(dict.fromkeys(MEANING[one["status"]] for one in own))
        lines.append(
            f"- {_unit(key)}: {then or 'not measured'} before, now {now} ({_samples(own):,} samples)"
        )
    return lines


def _failure(record: Record, notes: Mapping[str, str]) -> str:
    known = reason(record)
    what = f"known: {known}" if known else _text(record["detail"] or record["sample"])
    note = notes.get(record["unit"])
    return f"- {_unit(record['unit'])}: {MEANING[record['status']]}; {what}" + (f" ({note})" if note else "")


def _elsewhere(records: Sequence[Record]) -> list[str]:
    """By operator and what is told of it: the ways and the types."""
    ways: dict[tuple[str, str], dict[str, list[str]]] = {}
    for (op, way), (why, dtypes) in elsewhere(records).items():
        ways.setdefault((op, _text(why.removeprefix(THEIRS))), {})[way] = list(dict.fromkeys(dtypes))
    lines = [
        "`aot_eager` does the same, or Dynamo compiles nothing. *(2, 1) instead of (1, 3) of (3, 2)*: "
        "these strides of a tensor of "
        "these sizes. With *errors* stands what eager rejects.",
        "",
        "| operator | ways | types | what |",
        "|---|---|---|---|",
    ]
    for (op, why), found in sorted(ways.items()):
        types = list(dict.fromkeys(dtype for dtypes in found.values() for dtype in dtypes if dtype))
        lines.append(f"| `{op}` | {', '.join(found)} | {', '.join(types)} | {why} |")
    return lines if ways else ["Nothing."]


def _unit(key: str) -> str:
    unit = Unit.of(key)
    return f"`{unit.op}` {unit.way} {unit.dtype}".rstrip()


def _text(text: str) -> str:
    """For a cell of a table: one line, without addresses and the folders of whoever ran it."""
    text = re.sub(r"(/[\w.\-]+)+/|'?<[^<>]* at 0x[0-9a-f]+>'?", "", " ".join(text.split()))
    return text.replace("|", "\\|").replace("<", "&lt;")[:300]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def read(argument: str) -> list[Results]:
    """The files of an argument.

    Raises:
        SystemExit: neither the argument nor the records say where a file was made.
    """
    found = []
    for part in argument.split("+"):
        path, _, place = part.partition("=")
        records: list[dict[str, Any]] = [json.loads(line) for line in Path(path).read_text().splitlines()]
        recorded = dict.fromkeys(record["place"] for record in records if "place" in record)
        if not (place or recorded):
            raise SystemExit(
                f'{path} does not say where it was made: {path}="a CPU of 64 cores, torch 2.11.0"'
            )
        found.append(Results(place=place or " and ".join(recorded), records=records))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", metavar="FILE[=PLACE][+FILE[=PLACE]]")
    parser.add_argument("--note", action="append", default=[], metavar="UNIT=TEXT")
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/operators-beside-eager.md"))
    chosen = parser.parse_args()
    notes = {key: text for key, _, text in (one.partition("=") for one in chosen.note)}
    chosen.output.write_text(page([read(one) for one in chosen.sweeps], notes))


if __name__ == "__main__":
    main()
