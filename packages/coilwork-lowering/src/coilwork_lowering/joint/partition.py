"""Partition the joint graph into forward and backward, by a table of passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_lowering.aten_layouts import lay_out_convolutions, pad_products
from coilwork_lowering.building.size_assertions import drop_squeezed_sizes
from coilwork_lowering.joint.corrections import (
    copy_overwritten_inputs,
    correct_gradient_strides,
    correct_result_types,
    fold_specialized_floats,
    renew_shared_storages,
    shape_tangents,
)
from coilwork_lowering.joint.early_gradients import compute_gradients_early
from coilwork_lowering.joint.free_strides import free_saved_strides
from coilwork_lowering.joint.large_products import recompute_large_products
from coilwork_lowering.joint.pool_offsets import narrow_pool_positions
from coilwork_lowering.joint.recompute import (
    find_compared_extremes,
    find_forward_nodes,
    keep,
    recompute_from_memory,
    recompute_from_sizes,
    recompute_quantized,
)
from coilwork_lowering.joint.rng_remat import expand_dropouts, mark_redrawn_masks, save_random_draws
from coilwork_lowering.joint.split import split_joint
from coilwork_lowering.options import LayoutOptions, LoweringOptions
from coilwork_lowering.rewrites import Fired, Rewrite, clean_up
from coilwork_lowering.torch_compat.graphs import GraphRecord

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
    """AOTAutograd's `partition_fn`: clean-up, layouts and marks, then a split at a minimum cut (`split.py`).

    `rewrites` are done as part of the clean-up, and `record` is told what they did; `lowering` is what both
    halves will be lowered with.

    Weights are copied here, where forward and backward are still one graph, once for the convolutions of
    both. What is saved may lie as the forward graph likes. Marks are of values that the backward computes
    again from what is in memory anyway, where the minimum cut would save them.

    A fault of a step that only makes programs faster or smaller costs these steps, if there is `on_fault`,
    which is told the error and may raise it. The graph is then cut as it was captured.
    """
    captured = None if on_fault is None else GraphRecord(joint_gm.graph)
    context = JointContext(
        num_fwd_outputs=num_fwd_outputs,
        inputs=joint_inputs,
        layout=layout,
        lowering=lowering,
        rewrites=tuple(rewrites),
        cut=partial(split_joint, **kw),
    )
    try:
        cut = JOINT_PASSES.run(JointDraft(gm=joint_gm), context)
    except Exception as error:
        if on_fault is None or captured is None:
            raise
        on_fault(error)
        whole = torch.fx.GraphModule(joint_gm, captured.rebuild())
        return _halves(JOINT_PASSES.select(*NEEDED).run(JointDraft(gm=whole), context))
    if record is not None:
        record(cut.fired)
    return _halves(cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointContext:
    """The settings and facts that the steps read.

    Attributes:
        num_fwd_outputs: how many of the joint graph's outputs are the forward graph's.
        inputs: of the joint graph.
        layout: what decides layouts.
        lowering: what both halves will be lowered with.
        rewrites: done as part of the clean-up.
        cut: splits the graph at a minimum cut.
    """

    num_fwd_outputs: int
    inputs: Sequence[Any]
    layout: LayoutOptions
    lowering: LoweringOptions
    rewrites: tuple[Rewrite, ...]
    cut: Callable[..., Halves]


@dataclass(frozen=True, slots=True, kw_only=True)
class JointDraft:
    """A joint graph on its way to two halves.

    Steps but those of layouts change the graph in place, which is the partition's own.

    Attributes:
        fired: what rewrites did.
        masks: of dropouts that are written out.
        extremes: values that are compared with their extremes.
    """

    gm: torch.fx.GraphModule
    fired: tuple[Fired, ...] = ()
    masks: tuple[torch.fx.Node, ...] = ()
    extremes: tuple[torch.fx.Node, ...] = ()
    halves: Halves | None = None


def _halves(draft: JointDraft) -> Halves:
    assert draft.halves is not None, "a step cuts the graph"
    return draft.halves


def _correct_types(draft: JointDraft, context: JointContext) -> JointDraft:
    log.debug("joint graph: %d results are of other types than captured", correct_result_types(draft.gm))
    return draft


def _correct_strides(draft: JointDraft, context: JointContext) -> JointDraft:
    log.debug("joint graph: %d gradients lie otherwise than captured", correct_gradient_strides(draft.gm))
    return draft


def _shape_gradients(draft: JointDraft, context: JointContext) -> JointDraft:
    log.debug("joint graph: %d gradients in the shape of their results", shape_tangents(draft.gm))
    return draft


def _write_numbers(draft: JointDraft, context: JointContext) -> JointDraft:
    log.debug("joint graph: %d floats are known", fold_specialized_floats(draft.gm))
    return draft


def _clean_up(draft: JointDraft, context: JointContext) -> JointDraft:
    return replace(draft, fired=clean_up(draft.gm, context.rewrites))


def _lay_out(draft: JointDraft, context: JointContext) -> JointDraft:
    gm, decision = lay_out_convolutions(draft.gm, context.layout)
    log.debug("joint graph: %s", decision.reason)
    return replace(draft, gm=gm)


def _pad(draft: JointDraft, context: JointContext) -> JointDraft:
    gm, padding = pad_products(draft.gm, context.layout, joint=True)
    for reason in padding.reasons:
        log.debug("joint graph: %s", reason)
    return replace(draft, gm=gm)


def _narrow_positions(draft: JointDraft, context: JointContext) -> JointDraft:
    narrowed = narrow_pool_positions(draft.gm)
    log.debug("joint graph: positions of %d max-pools saved as distances", narrowed)
    return draft


def _write_dropouts(draft: JointDraft, context: JointContext) -> JointDraft:
    return replace(draft, masks=expand_dropouts(draft.gm, context.lowering))


def _keep_numbers(draft: JointDraft, context: JointContext) -> JointDraft:
    log.debug("joint graph: results of %d operators that draw numbers are kept", save_random_draws(draft.gm))
    return draft


def _keep_inputs(draft: JointDraft, context: JointContext) -> JointDraft:
    log.debug(
        "joint graph: %d inputs are read before they are overwritten", copy_overwritten_inputs(draft.gm)
    )
    return draft


def _find_extremes(draft: JointDraft, context: JointContext) -> JointDraft:
    return replace(
        draft,
        extremes=find_compared_extremes(draft.gm, find_forward_nodes(draft.gm, context.num_fwd_outputs)),
    )


def _mark_recomputed(draft: JointDraft, context: JointContext) -> JointDraft:
    outputs, find_model = context.num_fwd_outputs, context.lowering.find_model
    marked = recompute_from_memory(draft.gm, num_fwd_outputs=outputs, find_model=find_model)
    counted = recompute_from_sizes(draft.gm, num_fwd_outputs=context.num_fwd_outputs)
    quantized = recompute_quantized(draft.gm)
    again = [node.name for node in (*(item.node for item in marked), *counted, *quantized)]
    log.debug("computed again in the backward: %s", ", ".join(again) or "nothing")
    return draft


def _compute_early(draft: JointDraft, context: JointContext) -> JointDraft:
    lowering = context.lowering
    if not lowering.chunk_products:
        return draft
    found = compute_gradients_early(
        draft.gm, num_fwd_outputs=context.num_fwd_outputs, find_model=lowering.find_model
    )
    log.debug("gradients in the forward: of %s", ", ".join(node.name for node in found) or "nothing")
    return draft


def _mark_products(draft: JointDraft, context: JointContext) -> JointDraft:
    lowering = context.lowering
    if not lowering.chunk_products:
        return draft
    marked = recompute_large_products(
        draft.gm, num_fwd_outputs=context.num_fwd_outputs, find_model=lowering.find_model
    )
    log.debug("computed again in chunks: %s", ", ".join(node.name for node in marked) or "nothing")
    return draft


def _keep_extremes(draft: JointDraft, context: JointContext) -> JointDraft:
    keep(draft.extremes)
    log.debug("joint graph: %d values that are compared with their extremes are kept", len(draft.extremes))
    return draft


def _draw_again(draft: JointDraft, context: JointContext) -> JointDraft:
    log.debug(
        "joint graph: masks of %d dropouts are drawn again in the backward", mark_redrawn_masks(draft.masks)
    )
    return draft


def _renew_storages(draft: JointDraft, context: JointContext) -> JointDraft:
    renewed = renew_shared_storages(draft.gm)
    log.debug("joint graph: %d views are of the memory of others than those that were captured", renewed)
    return draft


def _cut(draft: JointDraft, context: JointContext) -> JointDraft:
    forward, backward = context.cut(draft.gm, context.inputs, num_fwd_outputs=context.num_fwd_outputs)
    return replace(draft, halves=(forward, drop_squeezed_sizes(backward)))


def _free_strides(draft: JointDraft, context: JointContext) -> JointDraft:
    outputs, lowering = context.num_fwd_outputs, context.lowering
    freed = free_saved_strides(*_halves(draft), num_fwd_outputs=outputs, lowering=lowering)
    log.debug("joint graph: %d saved values may lie as the forward graph likes", freed)
    return draft


_EITHER: Final = "they change different calls, so either order does"

JOINT_PASSES: Final[PassTable[JointDraft, JointContext]] = PassTable(
    passes=(
        Pass(name="result types", run=_correct_types, why="results are of the types that eager gives them"),
        Pass(name="gradient strides", run=_correct_strides, why="gradients lie as eager's do"),
        Pass(name="gradient shapes", run=_shape_gradients, why="gradients have the shapes of their results"),
        Pass(name="known numbers", run=_write_numbers, why="what is known needs neither memory nor a guard"),
        Pass(name="clean up", run=_clean_up, why="what the user wrote in many calls may be one"),
        Pass(name="lay out", run=_lay_out, why="a weight that both halves convert is copied once"),
        Pass(name="pad", run=_pad, why="products of padded rows are faster, in both halves"),
        Pass(name="pool positions", run=_narrow_positions, why="a distance takes fewer bits than a position"),
        Pass(name="dropouts", run=_write_dropouts, why="a mask that is drawn again need not be saved"),
        Pass(name="random numbers", run=_keep_numbers, why="the backward reads what the forward drew"),
        Pass(name="overwritten inputs", run=_keep_inputs, why="the backward reads what was there before"),
        Pass(
            name="find extremes", run=_find_extremes, why="what equals an extreme has to be that very value"
        ),
        Pass(name="recompute", run=_mark_recomputed, why="what comes from memory anyway need not be saved"),
        Pass(
            name="early gradients",
            run=_compute_early,
            why="sums of gradients are smaller than what they are of, and no product is computed twice",
        ),
        Pass(
            name="large products",
            run=_mark_products,
            why="what is computed chunk by chunk is never in memory as a whole",
        ),
        Pass(name="keep extremes", run=_keep_extremes, why="computed again, it could round otherwise"),
        Pass(name="draw again", run=_draw_again, why="a seed is smaller than a mask"),
        Pass(name="storages", run=_renew_storages, why="a view is of memory that its half has"),
        Pass(name="cut", run=_cut, why="a minimum cut saves the fewest bytes"),
        Pass(name="saved strides", run=_free_strides, why="nobody but the backward sees how they lie"),
    ),
    order=(
        Before("result types", "gradient strides", _EITHER),
        Before("gradient strides", "gradient shapes", _EITHER),
        Before("gradient shapes", "known numbers", _EITHER),
        Before("known numbers", "clean up", "a number that is known is one that patterns read"),
        Before("clean up", "lay out", "layouts are chosen for the calls that are left"),
        Before("lay out", "pad", "rows are padded in the layout that they have"),
        Before("pad", "pool positions", _EITHER),
        Before("pool positions", "dropouts", _EITHER),
        Before("dropouts", "random numbers", "a mask that is written out is no operator that draws"),
        Before("random numbers", "overwritten inputs", _EITHER),
        Before(
            "overwritten inputs", "find extremes", "what is read before it is overwritten may be compared"
        ),
        Before("find extremes", "recompute", "marks are looked through for it"),
        Before("recompute", "early gradients", "marks in a graph are taken for the user's"),
        Before("early gradients", "large products", "what nobody reads later need not be computed again"),
        Before("large products", "keep extremes", "what an extreme is compared with is kept, however large"),
        Before("recompute", "keep extremes", "the later mark counts, and this one is for results"),
        Before("keep extremes", "draw again", _EITHER),
        Before("draw again", "storages", _EITHER),
        Before("storages", "cut", "a view and its memory are cut together"),
        Before("cut", "saved strides", "what is saved is known then"),
    ),
)
"""From a joint graph to its halves."""

NEEDED: Final = (
    *("result types", "gradient strides", "gradient shapes", "known numbers", "random numbers"),
    *("overwritten inputs", "find extremes", "keep extremes", "storages", "cut"),
)
"""The steps without which results differ from eager's."""
