"""Turn an ATen graph into loops: rewrite it, lay it out and lower it, as the table `LOWERING_STAGES`.

`list_generated_calls` names the calls that generated code computes and that ATen could run instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import fx

from coilwork_ir.loc import Origin
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_lowering.aten_layouts import lay_out_convolutions, pad_products
from coilwork_lowering.facts.fx_nodes import get_operator_name, get_origin, is_view
from coilwork_lowering.lower import Lowered, lower
from coilwork_lowering.options import LayoutOptions, LoweringOptions
from coilwork_lowering.registry import RULES
from coilwork_lowering.repeated_layers import lengthen_lowered, shorten_captured
from coilwork_lowering.rewrites.clean_up import clean_up_copy
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite

# generated calls


def list_generated_calls(gm: torch.fx.GraphModule, *, views: bool) -> tuple[Origin, ...]:
    """Calls of operators that have a rule, in order, those in the graphs of control flow included.

    Equal graphs give calls in one order, whatever their nodes are called. With `views`, calls that compute
    nothing are among them.
    """
    return tuple(
        get_origin(node)
        for module in gm.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.op == "call_function" and get_operator_name(node) in RULES and (views or not is_view(node))
    )


# stages


Strides = Sequence[Sequence[int | torch.SymInt] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringContext:
    """The settings that the stages read.

    Attributes:
        name: of the graph of loops.
        options: settings of lowering.
        rewrites: what the graph is cleaned up by; None for one that is cleaned up already.
        layout: what decides layouts; None for a graph whose layouts are decided.
        strides: of each static tensor input; None leaves what the captured graph says.
        stage: a context around each stage, by name, which may time it.
        write: gets the name and the text of each file that explains what was done, if anyone wants them.
    """

    name: str
    options: LoweringOptions
    rewrites: Sequence[Rewrite] | None = None
    layout: LayoutOptions | None = None
    strides: Strides = ()
    stage: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    write: Callable[[str, str], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringDraft:
    """A graph on its way to loops, and what rewrites did to it."""

    gm: fx.GraphModule
    fired: tuple[Fired, ...] = ()
    lowered: Lowered | None = None


def _rewrite(draft: LoweringDraft, context: LoweringContext) -> LoweringDraft:
    if context.rewrites is None:
        return draft
    with context.stage("rewrite"):
        gm, fired = clean_up_copy(draft.gm, context.rewrites)
    if context.write is not None and fired:
        context.write("aten.rewritten.txt", format_aten(gm))
    return replace(draft, gm=gm, fired=fired)


def _lay_out(draft: LoweringDraft, context: LoweringContext) -> LoweringDraft:
    if context.layout is None:
        return draft
    with context.stage("layout"):
        gm, decision = lay_out_convolutions(draft.gm, context.layout)
        gm, padding = pad_products(gm, context.layout)
    if context.write is not None:
        context.write("layout.txt", "\n".join((decision.reason, *padding.reasons)) + "\n")
        if decision.changes or padding.padded or padding.by_rows:
            context.write("aten.laid_out.txt", format_aten(gm))
    return replace(draft, gm=gm)


def _lower(draft: LoweringDraft, context: LoweringContext) -> LoweringDraft:
    with context.stage("lower"):
        lowered = lower(
            draft.gm, name=context.name, options=context.options, example_strides=context.strides or None
        )
    if context.write is not None and lowered.updates:
        context.write("updates.txt", "".join(f"{update.text}\n" for update in lowered.updates))
    if context.write is not None and lowered.copies:
        context.write("copies.txt", "".join(f"{copy}\n" for copy in lowered.copies))
    return replace(draft, lowered=lowered)


LOWERING_STAGES: Final[PassTable[LoweringDraft, LoweringContext]] = PassTable(
    passes=(
        Pass(name="rewrite", run=_rewrite, why="what the user wrote in many calls may be one"),
        Pass(name="lay out", run=_lay_out, why="convolutions and products are faster in some layouts"),
        Pass(name="lower", run=_lower, why="loops say what is computed, without views and operators' names"),
    ),
    order=(
        Before("rewrite", "lay out", "layouts are chosen for the calls that are left"),
        Before("lay out", "lower", "loops have the strides of the operators' results"),
    ),
)


def lower_captured(
    gm: fx.GraphModule, context: LoweringContext
) -> tuple[fx.GraphModule, tuple[Fired, ...], Lowered]:
    """Return the graph that is lowered, what rewrites did to it, and its loops.

    Raises:
        LoweringError: a call has neither a rule nor a kernel of ATen's.
    """
    if context.write is not None:
        context.write("aten.txt", format_aten(gm))
    # calls that are left to ATen one by one are alike no more
    if context.options.repeat and not context.options.fallback_nodes:
        with context.stage("repeat"):
            shorter = shorten_captured(gm)
        if shorter is not None:
            draft = LOWERING_STAGES.run(LoweringDraft(gm=shorter.gm), context)
            assert draft.lowered is not None, "the last stage makes it"
            with context.stage("repeat"):
                lengthened = lengthen_lowered(draft.lowered, shorter)
            if lengthened is not None:
                return gm, draft.fired, lengthened
    draft = LOWERING_STAGES.run(LoweringDraft(gm=gm), context)
    assert draft.lowered is not None, "the last stage makes it"
    return draft.gm, draft.fired, draft.lowered


def list_calls(gm: fx.GraphModule, context: LoweringContext, *, views: bool) -> tuple[Origin, ...]:
    """Return the calls of the graph that is lowered which generated code computes, as
    `list_generated_calls`.
    """
    draft = LOWERING_STAGES.select("rewrite", "lay out").run(LoweringDraft(gm=gm), context)
    return list_generated_calls(draft.gm, views=views)


def format_aten(gm: fx.GraphModule) -> str:
    """Return the graph as text, with the layout and the device of each value."""
    return str(gm.print_readable(print_output=False, include_stride=True, include_device=True))
