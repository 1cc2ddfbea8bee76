"""The lowering table: every rule by the overload it serves."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.operators import OPERATORS, OpInfo
from coilwork_lowering.ops import (
    activations,
    arithmetic,
    attention,
    binary_search,
    casts,
    contractions,
    creation,
    data_movement,
    foreach,
    gathers,
    grid_sampling,
    im2col,
    norms,
    pooling,
    powers,
    random,
    recurrent_layers,
    reductions,
    slice_updates,
    sort_and_topk,
    upsample_gradients,
    views,
)
from coilwork_lowering.ops.scattering import embeddings, scatters
from coilwork_lowering.ops.special_functions import chebyshev, formulas
from coilwork_lowering.rules import Rule

_FAMILIES: Final[tuple[tuple[Rule, ...], ...]] = (
    activations.RULES,
    arithmetic.RULES,
    attention.RULES,
    casts.RULES,
    chebyshev.RULES,
    creation.RULES,
    embeddings.RULES,
    grid_sampling.RULES,
    gathers.RULES,
    data_movement.RULES,
    slice_updates.RULES,
    norms.RULES,
    pooling.RULES,
    powers.RULES,
    contractions.RULES,
    random.RULES,
    recurrent_layers.RULES,
    reductions.RULES,
    upsample_gradients.RULES,
    scatters.RULES,
    binary_search.RULES,
    sort_and_topk.RULES,
    formulas.RULES,
    im2col.RULES,
    views.RULES,
)


def make_rules(operators: Mapping[str, OpInfo]) -> Mapping[str, Rule]:
    """Return the rules of all families, and of those `operators` whose row is their lowering."""
    table: dict[str, Rule] = {}
    for family in (*_FAMILIES, arithmetic.make_row_rules(operators)):
        _enter(table, family)
    _enter(table, foreach.make_foreach_rules(MappingProxyType(dict(table))))
    return MappingProxyType(table)


def _enter(table: dict[str, Rule], family: tuple[Rule, ...]) -> None:
    for rule in family:
        for target in rule.targets:
            if target in table:
                raise AssertionError(f"two lowerings for {target}")
            table[target] = rule


RULES: Final[Mapping[str, Rule]] = make_rules(OPERATORS)
