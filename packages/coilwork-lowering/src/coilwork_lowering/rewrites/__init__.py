"""Rewrites of graphs before they are lowered: pairs of a pattern and its replacement.

Open `table.py` first: it lists all that Coilwork does by itself. `pattern.py` and `rewrite.py` say what a
pair is, `engine.py` applies them, and the other files hold one kind each.
"""

from coilwork_lowering.rewrites.batch_norm import FROZEN
from coilwork_lowering.rewrites.captured import CapturedVocabulary
from coilwork_lowering.rewrites.clean_up import clean_up, cleaned_up
from coilwork_lowering.rewrites.condition import (
    Condition,
    dtype_among,
    equals,
    has_rank,
    is_number,
    like_result,
    same_dtype,
)
from coilwork_lowering.rewrites.constants import Prepared, split_constants
from coilwork_lowering.rewrites.engine import apply_rewrites
from coilwork_lowering.rewrites.match import Match
from coilwork_lowering.rewrites.packing import pack_weights
from coilwork_lowering.rewrites.pattern import call, either, items, tensor, value
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite
from coilwork_lowering.rewrites.table import REWRITES, choose_rewrites
from coilwork_lowering.rewrites.values import complete_values

__all__ = [
    "FROZEN",
    "REWRITES",
    "CapturedVocabulary",
    "Condition",
    "Fired",
    "Match",
    "Prepared",
    "Rewrite",
    "apply_rewrites",
    "call",
    "choose_rewrites",
    "clean_up",
    "cleaned_up",
    "complete_values",
    "dtype_among",
    "either",
    "equals",
    "is_number",
    "items",
    "like_result",
    "has_rank",
    "pack_weights",
    "same_dtype",
    "split_constants",
    "tensor",
    "value",
]
