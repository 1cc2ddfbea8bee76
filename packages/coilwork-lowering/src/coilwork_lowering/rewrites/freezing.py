"""Rewrites around parameters that stay the same: of the captured graph, and of the inference graph that is
split into what is prepared once and what runs in each call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import fx

from coilwork_lowering.layout import lay_out_convolutions, pad_products
from coilwork_lowering.options import LayoutOptions, RewriteOptions
from coilwork_lowering.rewrites.batch_norm import FROZEN
from coilwork_lowering.rewrites.captured import CapturedVocabulary
from coilwork_lowering.rewrites.clean_up import cleaned_up
from coilwork_lowering.rewrites.constants import Prepared, split_constants
from coilwork_lowering.rewrites.engine import apply_rewrites
from coilwork_lowering.rewrites.packing import pack_weights
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite
from coilwork_lowering.rewrites.table import choose_rewrites


def rewrite_captured(
    gm: fx.GraphModule,
    options: RewriteOptions,
    own: Sequence[Rewrite] = (),
    *,
    frozen: Collection[int] | None = None,
) -> tuple[Fired, ...]:
    """Rewrite Dynamo's graph, in place; returns what was done. `own` are the user's rewrites.

    With positions of `frozen` inputs, these are marked, and what needs them frozen is rewritten as well.
    """
    rewrites = choose_rewrites("captured", options, own)
    if frozen is not None:
        rewrites = (*choose_rewrites("frozen", options, own), *rewrites)
        inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        for position in frozen:
            inputs[position].meta[FROZEN] = True
    return apply_rewrites(gm, rewrites, vocabulary=CapturedVocabulary())


def freeze(
    gm: fx.GraphModule,
    frozen: Sequence[int],
    rewrites: Sequence[Rewrite],
    layout: LayoutOptions,
    *,
    packs: bool,
) -> tuple[fx.GraphModule, tuple[Fired, ...], Prepared | None]:
    """An inference graph after `rewrites`, what they did, and what the inputs at positions `frozen` decide of
    it.

    Weights are laid out, and packed for oneDNN if `packs`, in the preparation; None if nothing is prepared.
    """
    gm, fired = cleaned_up(gm, rewrites)
    laid_out, _ = lay_out_convolutions(gm, layout)
    laid_out, _ = pad_products(laid_out, layout)
    if packs:
        laid_out, _ = pack_weights(laid_out, frozen, layout.find_model)
    return gm, fired, split_constants(laid_out, frozen)
