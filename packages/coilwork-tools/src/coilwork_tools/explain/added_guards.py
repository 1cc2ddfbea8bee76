"""Demands on sizes that compiling added: the report has them all, the log as much as can be read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

log = logging.getLogger("coilwork")
# Sizes of windows within windows have conditions of thousands of characters, dozens of them.
SHOWN: Final = 5
CONDITION: Final = 240


class AddedGuard(Protocol):
    """A demand on sizes; its text has the condition, and which operator it is for."""

    @property
    def condition(self) -> str: ...


def announce(graph_id: str, guards: Sequence[AddedGuard]) -> tuple[str, ...]:
    """The guards as the report has them. The log warns of the first `SHOWN`, in at most `CONDITION`
    characters of each.
    """
    for guard in guards[:SHOWN]:
        log.warning("graph %s: compiling added a guard: %s", graph_id, _shorten(guard))
    if len(guards) > SHOWN:
        log.warning(
            "graph %s: compiling added %d more guards: report.json of the option `trace` has all",
            graph_id,
            len(guards) - SHOWN,
        )
    return tuple(str(guard) for guard in guards)


def _shorten(guard: AddedGuard) -> str:
    condition = guard.condition
    if len(condition) <= CONDITION:
        return str(guard)
    half = (CONDITION - 5) // 2
    return str(guard).replace(condition, f"{condition[:half]} ... {condition[-half:]}", 1)
