"""Forward and backward from the joint graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import torch

from coilwork_lowering.joint.compared_extremes import compared_extremes, keep
from coilwork_lowering.joint.drawn_again import draw_again, write_out_dropouts
from coilwork_lowering.joint.drawn_once import keep_random_numbers
from coilwork_lowering.joint.known_numbers import write_out_known_numbers
from coilwork_lowering.joint.overwritten_inputs import keep_overwritten_inputs
from coilwork_lowering.joint.pool_positions import narrow_pool_positions
from coilwork_lowering.joint.recompute import (
    forward_of,
    recompute_from_memory,
    recompute_from_sizes,
    recompute_quantized,
)
from coilwork_lowering.joint.result_types import correct_result_types
from coilwork_lowering.joint.saved_strides import free_saved_strides, has_static_inputs
from coilwork_lowering.joint.shared_storages import renew_shared_storages
from coilwork_lowering.joint.tangents import shape_tangents
from coilwork_lowering.layout import lay_out_convolutions, pad_products
from coilwork_lowering.options import LayoutOptions, LoweringOptions
from coilwork_lowering.rewrites import Fired, Rewrite, clean_up
from coilwork_lowering.sizes.squeezed import without_squeezed_sizes
from coilwork_lowering.torch_compat.graphs import copied_graph, min_cut

Halves: TypeAlias = tuple[torch.fx.GraphModule, torch.fx.GraphModule]
DEFAULT_LAYOUT: Final = LayoutOptions()
DEFAULTS: Final = LoweringOptions()
log = logging.getLogger("coilwork.lowering")


def partition(
    joint_gm: torch.fx.GraphModule,
    joint_inputs: Sequence[Any],
    *,
    num_fwd_outputs: int,
    layout: LayoutOptions = DEFAULT_LAYOUT,
    lowering: LoweringOptions = DEFAULTS,
    rewrites: Sequence[Rewrite] = (),
    record: Callable[[tuple[Fired, ...]], object] | None = None,
    on_fault: Callable[[Exception], object] | None = None,
    **kw: Any,
) -> Halves:
    """AOTAutograd's `partition_fn`: our clean-up, layouts and marks, then torch's min-cut rematerialisation.

    `rewrites` are done as part of the clean-up, and `record` is told what they did; `lowering` is what both halves will be lowered with.

    Layouts are chosen here, where forward and backward are still one graph, so that what is saved for the backward
    stays in the layout that its convolutions want. Marks are of values that the backward computes again from what is in
    memory anyway, where the minimum cut would save them.

    torch's own pass for common subexpressions is switched off, because it would load TorchInductor.

    A fault of a step that only makes programs faster or smaller costs these steps, if there is `on_fault`, which is told the
    error and may raise it. The graph is then cut as it was captured.
    """
    captured = None if on_fault is None else torch.fx.GraphModule(joint_gm, copied_graph(joint_gm.graph))
    kw["num_fwd_outputs"] = num_fwd_outputs
    try:
        halves, fired = _cut_improved(joint_gm, joint_inputs, layout, lowering, rewrites, **kw)
    except Exception as error:
        if on_fault is None or captured is None:
            raise
        on_fault(error)
        return _cut_as_captured(captured, joint_inputs, **kw)
    if record is not None:
        record(fired)
    return halves


def _cut_improved(
    joint_gm: torch.fx.GraphModule,
    joint_inputs: Sequence[Any],
    layout: LayoutOptions,
    lowering: LoweringOptions,
    rewrites: Sequence[Rewrite],
    *,
    num_fwd_outputs: int,
    **kw: Any,
) -> tuple[Halves, tuple[Fired, ...]]:
    _keep_results(joint_gm)
    fired = clean_up(joint_gm, rewrites)
    if not has_static_inputs(joint_gm):
        # what is saved lies as captured then, so the scheduler cannot lay out both halves
        layout = replace(layout, scheduled_devices=())
    laid_out, decision = lay_out_convolutions(joint_gm, layout)
    log.debug("joint graph: %s", decision.reason)
    laid_out, padding = pad_products(laid_out, layout, joint=True)
    for reason in padding.reasons:
        log.debug("joint graph: %s", reason)
    narrowed = narrow_pool_positions(laid_out)
    log.debug("joint graph: positions of %d max-pools saved as distances", narrowed)
    masks = write_out_dropouts(laid_out, lowering)
    _keep_values(laid_out)
    compared = compared_extremes(laid_out, forward_of(laid_out, num_fwd_outputs))
    marked = recompute_from_memory(laid_out, num_fwd_outputs=num_fwd_outputs)
    counted = recompute_from_sizes(laid_out, num_fwd_outputs=num_fwd_outputs)
    quantized = recompute_quantized(laid_out)
    # behind marks to the contrary
    keep(compared)
    log.debug("joint graph: %d values that are compared with their extremes are kept", len(compared))
    log.debug("joint graph: masks of %d dropouts are drawn again in the backward", draw_again(masks))
    again = [node.name for node in (*(item.node for item in marked), *counted, *quantized)]
    log.debug("computed again in the backward: %s", ", ".join(again) or "nothing")
    halves = _cut(laid_out, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kw)
    freed = free_saved_strides(*halves, num_fwd_outputs=num_fwd_outputs, lowering=lowering)
    log.debug("joint graph: %d saved values may lie as the forward graph likes", freed)
    return halves, fired


def _cut_as_captured(
    joint_gm: torch.fx.GraphModule, joint_inputs: Sequence[Any], *, num_fwd_outputs: int, **kw: Any
) -> Halves:
    """The halves after the steps without which results differ from eager's."""
    _keep_results(joint_gm)
    _keep_values(joint_gm)
    keep(compared_extremes(joint_gm, forward_of(joint_gm, num_fwd_outputs)))
    return _cut(joint_gm, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kw)


def _keep_results(joint_gm: torch.fx.GraphModule) -> None:
    """Give results the types and gradients the shapes that eager gives them."""
    typed = correct_result_types(joint_gm)
    log.debug("joint graph: %d results are of other types than captured", typed)
    shaped = shape_tangents(joint_gm)
    log.debug("joint graph: %d gradients in the shape of their results", shaped)
    written = write_out_known_numbers(joint_gm)
    log.debug("joint graph: %d floats are known", written)


def _keep_values(joint_gm: torch.fx.GraphModule) -> None:
    """Have the backward read what the forward drew, and inputs as they were before they were overwritten."""
    drawn = keep_random_numbers(joint_gm)
    log.debug("joint graph: results of %d operators that draw numbers are kept", drawn)
    overwritten = keep_overwritten_inputs(joint_gm)
    log.debug("joint graph: %d inputs are read before they are overwritten", overwritten)


def _cut(joint_gm: torch.fx.GraphModule, joint_inputs: Sequence[Any], **kw: Any) -> Halves:
    renewed = renew_shared_storages(joint_gm)
    log.debug("joint graph: %d views are of the memory of others than those that were captured", renewed)
    forward, backward = min_cut(joint_gm, joint_inputs, **kw)
    return forward, without_squeezed_sizes(backward)
