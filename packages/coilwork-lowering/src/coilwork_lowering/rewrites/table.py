"""The table of rewrites that are done by default, in the order in which they are tried at one call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from coilwork_lowering.options import RewriteOptions
from coilwork_lowering.rewrites.attention import ATTENTION_OPERANDS, ATTENTIONS
from coilwork_lowering.rewrites.batch_norm_folding import FOLDING
from coilwork_lowering.rewrites.circular_padding import CIRCULAR_PADDING
from coilwork_lowering.rewrites.complex_parts import COMPLEX_PARTS
from coilwork_lowering.rewrites.concat_split import CONCAT_SPLITS
from coilwork_lowering.rewrites.epilogues import ACTIVATIONS, EMBEDDINGS, PRODUCTS
from coilwork_lowering.rewrites.noop_elimination import NOOPS
from coilwork_lowering.rewrites.rewrite import Level, Rewrite
from coilwork_lowering.rewrites.softshrink import SOFTSHRINK

REWRITES: Final[tuple[Rewrite, ...]] = (
    *ATTENTIONS,
    ATTENTION_OPERANDS,
    *FOLDING,
    *NOOPS,
    *CONCAT_SPLITS,
    *PRODUCTS,
    *ACTIVATIONS,
    *EMBEDDINGS,
    *COMPLEX_PARTS,
    SOFTSHRINK,
    CIRCULAR_PADDING,
)


def choose_rewrites(
    level: Level, options: RewriteOptions, own: Iterable[Rewrite] = ()
) -> tuple[Rewrite, ...]:
    """Return the rewrites of `level` that `options` allow, and the user's `own` of that level behind them.

    Their conditions ask `options.find_model` what pays. A user's own rewrite is allowed whatever it says of
    itself: who adds it wants it.
    """
    return (
        *(
            replace(rewrite, find_model=options.find_model)
            for rewrite in REWRITES
            if rewrite.level == level and _is_allowed(rewrite, options)
        ),
        *(rewrite for rewrite in own if rewrite.level == level and rewrite.name not in options.skip),
    )


def _is_allowed(rewrite: Rewrite, options: RewriteOptions) -> bool:
    if rewrite.name in options.skip:
        return False
    if rewrite.inexact and options.numerics != "fast":
        return False
    return options.random or not rewrite.random
