"""The lowering table: every rule by the overload it serves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_lowering.ops import arithmetic, creation, indexing, joining, mutation, reductions, views
from coilwork_lowering.rules import Rule

_FAMILIES: Final[tuple[tuple[Rule, ...], ...]] = (
    arithmetic.RULES,
    creation.RULES,
    indexing.RULES,
    joining.RULES,
    mutation.RULES,
    reductions.RULES,
    views.RULES,
)


def _table() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for family in _FAMILIES:
        for rule in family:
            for target in rule.targets:
                if target in table:
                    raise AssertionError(f"two lowerings for {target}")
                table[target] = rule
    return table


RULES: Final[Mapping[str, Rule]] = MappingProxyType(_table())
