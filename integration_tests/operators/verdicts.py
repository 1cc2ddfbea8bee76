"""From outcomes to the table of pairs of operator and dtype: equal, wrong, failed to compile, crashed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from integration_tests.operators.units import DTYPES

# Every status as what it means for its pair.
MEANING: Final[Mapping[str, str]] = {
    "ok": "equal",
    "marginal": "equal",
    "random": "equal",
    "eager": "not traced",
    "skipped": "no samples",
    "torch": "torch's own",
    "accepted": "accepted",
    "fallback": "uncompiled",
    "uncompiled": "uncompiled",
    "wrong": "wrong",
    "dtype": "wrong",
    "shape": "wrong",
    "strides": "wrong",
    "crash": "raises",
    "timeout": "timeout",
    "unjudged": "unjudged",
    "died": "crashed",
}
# Best first: a pair is as bad as the worst that became of it.
VERDICTS: Final = (
    "no samples",
    "not traced",
    "equal",
    "torch's own",
    "accepted",
    "unjudged",
    "timeout",
    "raises",
    "uncompiled",
    "wrong",
    "crashed",
)
# Not ours to mend: Dynamo or AOTAutograd alone behave so, or there was nothing to compare.
NOT_OURS: Final = ("no samples", "not traced", "torch's own")
FAILURES: Final = ("accepted", "unjudged", "timeout", "raises", "uncompiled", "wrong", "crashed")
# Before what differs in the same way without the compiler.
THEIRS: Final = "aot_eager, in which nothing is ours, does so too: "

Record = Mapping[str, Any]


def pairs(records: Sequence[Record]) -> dict[tuple[str, str], str]:
    """The verdict on each pair of operator and dtype, over all ways. Rejected calls belong to none, and are
    left out.
    """
    found: dict[tuple[str, str], str] = defaultdict(lambda: VERDICTS[0])
    for record in records:
        if record["way"] == "errors":
            continue
        key = (record["op"], record["dtype"])
        found[key] = max(found[key], MEANING[record["status"]], key=VERDICTS.index)
    return dict(found)


def is_failure(record: Record) -> bool:
    """Whether something of ours is wrong."""
    return MEANING[record["status"]] in FAILURES


def elsewhere(records: Sequence[Record]) -> dict[tuple[str, str], tuple[str, list[str]]]:
    """Operators and ways in which something else than the compiler differs, each with what it does and the
    dtypes.
    """
    units: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for record in records:
        if record["status"] == "torch":
            why = THEIRS + _first(record["detail"])[:160]
        elif record["status"] == "eager":
            why = "Dynamo compiles nothing"
        else:
            continue
        units.setdefault((record["op"], record["way"]), (why, []))[1].append(record["dtype"])
    return units


def others(records: Sequence[Record]) -> list[str]:
    """A line for each of `elsewhere`."""
    return [
        f"{op} {way} {','.join(dict.fromkeys(dtypes))}: {why}"
        for (op, way), (why, dtypes) in elsewhere(records).items()
    ]


def _first(detail: str) -> str:
    """The first line that says what is wrong: the error that a backend raised, or fake tensors, if that is
    what there is.
    """
    first, _, rest = detail.partition("\n")
    fakes = re.search(r"got (\w+\(.*?)(\\n|\n|$)", rest)
    if first.endswith("raised:"):
        return rest.partition("\n")[0]
    return f"with fake tensors {fakes[1]}" if "fake tensor" in first and fakes else first


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Pairs of operator and dtype by verdict: of each dtype over all ways, and of each way over all dtypes.

    `rejected` counts what became of calls that eager rejects: operators that reject them ("rejected", with so
    many "calls"), that accept them ("accepted"), and that aot_eager accepts, too ("torch"). Empty if there
    were none.
    """

    dtypes: Mapping[str, Mapping[str, int]]
    ways: Mapping[str, Mapping[str, int]]
    rejected: Mapping[str, int]


def tally(records: Sequence[Record]) -> Tally:
    """The counts of `records`."""
    verdicts = pairs(records)
    order = [*DTYPES, *sorted({dtype for _, dtype in verdicts} - set(DTYPES))]
    ways = dict.fromkeys(record["way"] for record in records if record["way"] != "errors")
    return Tally(
        dtypes={
            dtype: dict(Counter(found for (_, of), found in verdicts.items() if of == dtype))
            for dtype in order
            if any(of == dtype for _, of in verdicts)
        },
        ways={
            way: dict(Counter(pairs([record for record in records if record["way"] == way]).values()))
            for way in ways
        },
        rejected=_rejected([record for record in records if record["way"] == "errors"]),
    )


def _rejected(errors: Sequence[Record]) -> dict[str, int]:
    if not errors:
        return {}
    operators = {
        status: {r["op"] for r in errors if r["status"] == status} for status in ("ok", "accepted", "torch")
    }
    return {
        "rejected": len(operators["ok"]),
        "calls": sum(record["samples"] for record in errors),
        "accepted": len(operators["accepted"]),
        "torch": len(operators["torch"] - operators["accepted"]),
    }


def table(records: Sequence[Record]) -> str:
    """The tally of `records` as text."""
    return tally_table(tally(records))


def tally_table(found: Tally) -> str:
    """Pairs of operator and dtype by verdict, a line per dtype; then each way of calling, in pairs; then
    rejected calls.
    """
    rows = {name: Counter(counts) for name, counts in found.dtypes.items()}
    total = sum(rows.values(), Counter[str]())
    shown = [verdict for verdict in VERDICTS if total[verdict] or verdict in ("equal", "wrong", "crashed")]
    lines = [_line("pairs", [*shown, "all"])]
    lines += [_line(name, [*(row[v] for v in shown), row.total()]) for name, row in rows.items()]
    lines += [_line("all dtypes", [*(total[v] for v in shown), total.total()]), ""]
    by_way = {name: Counter(counts) for name, counts in found.ways.items()}
    lines += [_line(name, [*(row[v] for v in shown), row.total()]) for name, row in by_way.items()]
    ours = sum(count for verdict, count in total.items() if verdict not in NOT_OURS)
    if ours:
        lines += [
            "",
            f"equal: {total['equal']} of {ours} pairs compared, {100 * total['equal'] / ours:.2f} %",
        ]
    if found.rejected:
        lines.append(
            "calls that eager rejects: rejected for {rejected} operators ({calls} calls), accepted for "
            "{accepted}, "
            "for {torch} by aot_eager too".format(**found.rejected)
        )
    return "\n".join(lines)


def _line(name: str, cells: Sequence[object]) -> str:
    return f"{name:18}" + "".join(f"{cell!s:>13}" for cell in cells)
