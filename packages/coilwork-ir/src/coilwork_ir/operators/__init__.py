"""Facts about ATen's operators: `info.py` says which facts there are, `table.py` has one row per operator.

Whoever asks for a fact asks `find_info`, by the operator's bare name, or `find_target_info`, by an
overload's. Open `info.py` first.
"""

from __future__ import annotations

from coilwork_ir.operators.info import (
    Decision,
    EagerLimits,
    OpInfo,
    ProductRoles,
    Relation,
    ScalarTypes,
    TypeClass,
)
from coilwork_ir.operators.table import (
    OPERATORS,
    find_info,
    find_target_info,
    list_operators,
    list_undetermined,
)

__all__ = [
    "OPERATORS",
    "Decision",
    "EagerLimits",
    "OpInfo",
    "ProductRoles",
    "Relation",
    "ScalarTypes",
    "TypeClass",
    "find_info",
    "find_target_info",
    "list_operators",
    "list_undetermined",
]
