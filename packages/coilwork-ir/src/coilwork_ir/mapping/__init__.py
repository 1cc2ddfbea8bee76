"""Mappings: how a kernel runs, as values with text, legality rules and equality.

Open `text.py` first: its docstring shows a mapping, and its table lists every directive. `mapping.py` has
mappings and versions, `verify.py` the verifier; `tiling.py`, `threads.py`, `memory.py` and `units.py` are the
directives, by what they decide.
"""

from coilwork_ir.mapping.directive import Directive
from coilwork_ir.mapping.mapping import (
    Condition,
    Guard,
    Mapped,
    Mapping,
    Nest,
    Version,
    Versions,
    always,
    find,
    find_all,
)
from coilwork_ir.mapping.memory import (
    Evict,
    Index,
    Prefetch,
    Privatise,
    Save,
    Select,
    Sort,
    Transpose,
    Values,
)
from coilwork_ir.mapping.numbers import Number, Open
from coilwork_ir.mapping.text import (
    DIRECTIVES,
    format_mapped,
    format_mapping,
    format_versions,
    parse_mapping,
    parse_versions,
)
from coilwork_ir.mapping.threads import (
    Accumulators,
    Block,
    Fold,
    Grain,
    Invariant,
    Join,
    Lanes,
    Peel,
    Runs,
    Threads,
    Vector,
    Warps,
)
from coilwork_ir.mapping.tiling import Coarsen, FlatGrid, Keep, Loop, Sequential, Share, Straddle, Tile
from coilwork_ir.mapping.units import Choose, Contract, Functions, Limit, Order, Unit
from coilwork_ir.mapping.verify import assume, find_fault, verify_mapping, verify_versions

__all__ = [
    "DIRECTIVES",
    "Accumulators",
    "Block",
    "Coarsen",
    "Condition",
    "Contract",
    "Directive",
    "Evict",
    "FlatGrid",
    "Fold",
    "Functions",
    "Grain",
    "Guard",
    "Index",
    "Invariant",
    "Join",
    "Keep",
    "Lanes",
    "Limit",
    "Loop",
    "Mapped",
    "Mapping",
    "Nest",
    "Number",
    "Open",
    "Order",
    "Peel",
    "Prefetch",
    "Privatise",
    "Runs",
    "Save",
    "Select",
    "Sequential",
    "Share",
    "Sort",
    "Straddle",
    "Threads",
    "Tile",
    "Choose",
    "Transpose",
    "Unit",
    "Values",
    "Vector",
    "Version",
    "Versions",
    "Warps",
    "always",
    "assume",
    "find",
    "find_all",
    "find_fault",
    "format_mapped",
    "format_mapping",
    "format_versions",
    "parse_mapping",
    "parse_versions",
    "verify_mapping",
    "verify_versions",
]
