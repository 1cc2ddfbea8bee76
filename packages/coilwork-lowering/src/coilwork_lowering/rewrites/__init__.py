"""Rewrites of graphs before they are lowered: pairs of a pattern and its replacement.

Open `table.py` first: it lists all that Coilwork does by itself. `rewrite.py` says what a pair is,
`engine.py` applies them, and the other files hold one kind each.
"""

from coilwork_lowering.rewrites.batch_norm_folding import FROZEN
from coilwork_lowering.rewrites.call_normalization import CapturedVocabulary
from coilwork_lowering.rewrites.clean_up import clean_up, clean_up_copy, complete_values
from coilwork_lowering.rewrites.constant_folding import Prepared, pack_weights, split_constants
from coilwork_lowering.rewrites.engine import apply_rewrites
from coilwork_lowering.rewrites.rewrite import (
    Condition,
    Fired,
    Match,
    Rewrite,
    call,
    dtype_among,
    either,
    equals,
    has_rank,
    is_number,
    items,
    like_result,
    same_dtype,
    tensor,
    value,
)
from coilwork_lowering.rewrites.table import REWRITES, choose_rewrites

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
    "clean_up_copy",
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
