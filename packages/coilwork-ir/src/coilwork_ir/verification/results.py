"""What must hold of the places that an external call's results have in what its operator returns."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.buffers import ResultPath
from coilwork_ir.verification.rules import Place


def check_paths(paths: Sequence[ResultPath], count: int, place: Place, *, single: bool) -> None:
    """Each of `count` results has a place of its own, if `paths` says where they lie."""
    if not paths:
        return
    if single:
        place.fail("extern-results", "one bare value is returned, and there are paths into it")
    if len(paths) != count:
        place.fail("extern-results", f"{len(paths)} paths for {count} results")
    for number, path in enumerate(paths):
        if not path or any(step < 0 for step in path):
            place.fail("extern-results", f"{list(path)} is no path to a result")
        for other in paths[:number]:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                place.fail("extern-results", f"a result at {list(path)} and one at {list(other)}")
