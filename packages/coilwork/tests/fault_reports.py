"""The warnings and the reports of what was compiled, for tests of faults."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coilwork.errors import CoilworkFallbackWarning


@contextmanager
def catch_fallbacks() -> Iterator[list[warnings.WarningMessage]]:
    """The fallback warnings."""
    found: list[warnings.WarningMessage] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [one for one in caught if one.category is CoilworkFallbackWarning]


def read_reports(trace: Path) -> dict[str, dict[str, Any]]:
    """By role, the reports of what was compiled."""
    found = (json.loads(path.read_text()) for path in trace.glob("*/report.json"))
    return {report["role"]: report for report in found}
