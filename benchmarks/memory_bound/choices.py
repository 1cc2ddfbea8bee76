"""Forgetting which configurations compilers chose, so that they choose again, while what they compiled stays."""

from __future__ import annotations

import json
from pathlib import Path

from coilwork_cache import LocalStore


def forget_choices(*, inductor: Path, coilwork: Path) -> int:
    """Drop the choices in these cache folders; how many there were."""
    chosen = list(inductor.rglob("*.best_config"))
    for path in chosen:
        path.unlink()
    store = LocalStore(coilwork)
    keys = [entry.key for entry in store.entries() if is_choice(store.get(entry.key))]
    for key in keys:
        store.delete(key)
    return len(chosen) + len(keys)


def is_choice(data: bytes | None) -> bool:
    """True for the record of a choice: JSON that holds a `choice`."""
    if data is None or not data.startswith(b"{"):
        return False
    try:
        record = json.loads(data)
    except ValueError:
        return False
    return isinstance(record, dict) and "choice" in record
