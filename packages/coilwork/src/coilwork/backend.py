"""`torch.compile(model, backend="coilwork")`: from Dynamo's graph to callables, through AOTAutograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from coilwork.collector import collector_paused
from coilwork.compile_graph import compile_graph
from coilwork.job import Role
from coilwork.layout import layout_options
from coilwork.modes import announce_mode
from coilwork.options import CompileOptions, resolve
from coilwork.stages import lowering_options
from coilwork.torch_compat import (
    BoxedCallable,
    check_torch_version,
    compile_with_aot_autograd,
    flattened,
    has_nested_inputs,
)
from coilwork_lowering import decompositions, partition


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
    return compile_dynamo_graph(gm, example_inputs, settings)


def compile_dynamo_graph(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> Callable[..., Any]:
    """`backend` with its settings already resolved."""
    if has_nested_inputs(example_inputs):
        return flattened(gm, example_inputs, lambda g, i: compile_dynamo_graph(g, i, options))
    lowering = lowering_options(options, options.fallback)
    with collector_paused():
        return compile_with_aot_autograd(
            gm,
            example_inputs,
            forward=partial(_compile, role="forward", options=options),
            backward=partial(_compile, role="backward", options=options),
            inference=partial(_compile, role="inference", options=options),
            decompositions=decompositions(lowering),
            partition=partial(partition, layout=layout_options(options)),
        )


def _compile(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role, options: CompileOptions
) -> BoxedCallable:
    # The backward graph is often compiled at its first call, outside of the pause around AOTAutograd.
    with collector_paused():
        return compile_graph(gm, example_inputs, role=role, options=options)
