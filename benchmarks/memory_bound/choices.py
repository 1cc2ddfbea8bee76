"""Which mappings and configurations compilers chose: forgotten, so that they choose again, and read, to learn
from them.

Coilwork's searches leave a record per kernel in its cache, with everything that was tried.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from coilwork_cache import LocalStore, TuningCache, clear
from coilwork_runtime.triton_kernels.autotune.records import list_searches


def forget_choices(*, inductor: Path, coilwork: Path) -> int:
    """Drop the choices in these cache folders; how many there were."""
    chosen = list(inductor.rglob("*.best_config"))
    for path in chosen:
        path.unlink()
    return len(chosen) + clear(LocalStore(coilwork), kind=TuningCache(None).kind)


def searches(coilwork: Path) -> list[dict[str, Any]]:
    """Return what searches found, by the records in this cache folder: one entry per kernel and magnitude of
    its sizes.
    """
    return [
        {"kernel": record["kernel"], "device": record["device"], **entry}
        for record in list_searches(LocalStore(coilwork))
        for entry in record["searches"]
    ]


def format_searches(found: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """Searches by case, as JSON: proposed mappings and the best one, largest gains first.

    `gain` is the time of the first proposed configuration over that of the best one.
    """
    entries = [
        {
            "case": case,
            "kernel": entry["kernel"],
            "sizes": entry["sizes"],
            "gain": _gain(entry),
            "best": format_trial(entry["best"]),
            "proposed": [format_trial(trial) for trial in entry["proposed"]],
            "tried": [format_trial(trial) for trial in entry["tried"]],
            "device": entry["device"],
        }
        for case, entry in found
    ]
    entries.sort(key=lambda entry: -(entry["gain"] or 0.0))
    lines = ",\n".join(_format_trials(entry) for entry in entries)
    return f"[\n{lines}\n]\n"


def format_trial(trial: dict[str, Any]) -> dict[str, Any]:
    """A trial in microseconds."""
    milliseconds = trial["milliseconds"]
    return {
        "us": None if milliseconds is None else round(1e3 * milliseconds, 2),
        "mapping": trial["mapping"],
        "registers": trial["registers"],
        "spill_bytes": trial["spill_bytes"],
        **({"reason": trial["reason"]} if trial["reason"] else {}),
    }


def _gain(entry: dict[str, Any]) -> float | None:
    first = next((t["milliseconds"] for t in entry["proposed"] if t["milliseconds"] is not None), None)
    best = entry["best"]["milliseconds"]
    return None if first is None or not best else round(first / best, 4)


def _format_trials(entry: dict[str, Any]) -> str:
    """One trial per line."""
    fields = []
    for name, value in entry.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join("   " + json.dumps(item) for item in value) + "\n  ]"
        fields.append(f"  {json.dumps(name)}: {text}")
    return " {\n" + ",\n".join(fields) + "\n }"
