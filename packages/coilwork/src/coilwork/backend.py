"""`torch.compile(model, backend="coilwork")`: from Dynamo's graph to callables, through AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from coilwork.collector import collector_paused
from coilwork.compile_graph import compile_graph
from coilwork.job import DECIDED, Role
from coilwork.layout import layout_options
from coilwork.modes import announce_mode
from coilwork.options import CompileOptions, resolve
from coilwork.passes import run_passes
from coilwork.rewriting import announce_unkeyed, check_names, rewrite_captured, rewrites_of
from coilwork.stages import lowering_options
from coilwork.torch_compat import (
    BoxedCallable,
    check_torch_version,
    compile_with_aot_autograd,
    flattened,
    has_nested_inputs,
    static_input_positions,
)
from coilwork_lowering import (
    decompositions,
    lay_out_convolutions,
    pad_products,
    partition,
)
from coilwork_lowering.rewrites import Fired, cleaned_up, split_constants


def backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[..., Any]:
    """Compile one Dynamo graph.

    Raises:
        OptionError: unknown mode or option.
        UnsupportedTorchError: torch is outside the supported range.
        CompileError: with `options={"strict": True}`, when a graph cannot be compiled.
    """
    check_torch_version()
    settings = resolve(mode=mode, options=options)
    announce_mode(settings.mode)
    check_names(settings)
    return compile_dynamo_graph(gm, example_inputs, settings)


def compile_dynamo_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    """`backend` with its settings already resolved."""
    if has_nested_inputs(example_inputs):
        return flattened(gm, example_inputs, lambda g, i: compile_dynamo_graph(g, i, options))
    lowering = lowering_options(options, options.fallback)
    announce_unkeyed(options)
    log = list(rewrite_captured(gm, example_inputs, options))
    with collector_paused():
        return compile_with_aot_autograd(
            gm,
            example_inputs,
            forward=partial(_compile, role="forward", options=options, log=log),
            backward=partial(_compile, role="backward", options=options, log=log),
            inference=partial(_compile_inference, options=options, log=log),
            decompositions=decompositions(lowering),
            partition=partial(_partition, options=options, log=log),
        )


def _partition(
    joint: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    options: CompileOptions,
    log: list[Fired],
    **rest: Any,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
    """The halves of a joint graph, after the user's passes; `log` gets what rewrites did to it."""
    joint = run_passes(joint, options.joint_passes, where="joint")
    rewrites = rewrites_of("aten", options)
    return partition(
        joint, inputs, layout=layout_options(options), rewrites=rewrites, record=log.extend, **rest
    )


def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    role: Role,
    options: CompileOptions,
    log: list[Fired],
) -> BoxedCallable:
    # The backward graph is often compiled at its first call, outside of the pause around AOTAutograd.
    with collector_paused():
        gm = run_passes(gm, options.passes, where=role)
        return compile_graph(gm, example_inputs, role=role, options=options, rewrites=tuple(log))


def _compile_inference(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, options: CompileOptions, log: list[Fired]
) -> BoxedCallable:
    """An inference graph, of which what frozen parameters decide may be taken out before."""
    gm = run_passes(gm, options.joint_passes, where="inference")
    if options.freezing:
        gm, fired = cleaned_up(gm, rewrites_of("aten", options))
        laid_out, _ = lay_out_convolutions(gm, layout_options(options))
        laid_out, _ = pad_products(laid_out, layout_options(options))
        prepared = split_constants(laid_out, static_input_positions())
        if prepared is not None:
            main = run_passes(prepared.main, options.passes, where="inference")
            inputs = [*(example_inputs[position] for position in prepared.kept), *prepared.values]
            done = (*log, *fired)
            return compile_graph(
                main,
                inputs,
                role="inference",
                options=options,
                rewrites=done,
                layout=DECIDED,
                prepared=prepared,
            )
    return _compile(gm, example_inputs, role="inference", options=options, log=log)
