"""What lowering gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from coilwork_ir.index import Expr
from coilwork_ir.loops import Graph
from coilwork_lowering.reinplacing import Update
from coilwork_lowering.sizes.added_guards import AddedGuard

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A lowered graph and what travels beside it.

    Attributes:
        graph: the loop IR.
        constants: the tensors that `graph.constants` name by key.
        symbols: pairs (IR symbol, torch's sympy symbol) of every size symbol.
        guards: what lowering demanded of sizes; there should be none.
        updates: which updates overwrite what they are an update of, and why others do not.
        copies: views that were laid out in memory, and why.
    """

    graph: Graph
    constants: Mapping[str, torch.Tensor]
    symbols: tuple[tuple[Expr, sympy.Symbol], ...]
    guards: tuple[AddedGuard, ...] = ()
    updates: tuple[Update, ...] = ()
    copies: tuple[str, ...] = ()
