"""Which rewrites a compilation does, from its options; and those of the captured graph, before autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coilwork.options import CompileOptions
from coilwork.torch_compat import is_static_input
from coilwork_lowering import RewriteOptions
from coilwork_lowering.rewrites import (
    FROZEN,
    CapturedVocabulary,
    Fired,
    Rewrite,
    apply_rewrites,
    chosen,
)


def rewrites_of(level: str, options: CompileOptions, *, on_gpu: bool = False) -> tuple[Rewrite, ...]:
    """The rewrites of `level`, Coilwork's and the user's own.

    Random numbers are drawn otherwise than in eager where the option `random` lets generated code draw them.
    """
    generated = options.random == "generated" or (options.random == "auto" and on_gpu)
    allowed = RewriteOptions(
        numerics=options.numerics, random=generated, skip=options.skip_rewrites
    )
    match level:
        case "captured" | "aten" | "frozen":
            return chosen(level, allowed, options.rewrites)
    raise AssertionError(f"level {level}")


def rewrite_captured(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> tuple[Fired, ...]:
    """Rewrite Dynamo's graph, in place; returns what was done.

    With `freezing`, and where no gradient is asked for, parameters and buffers are marked, and what needs them frozen is
    rewritten as well.
    """
    on_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in example_inputs)
    rewrites = rewrites_of("captured", options, on_gpu=on_gpu)
    if options.freezing and not _asks_for_gradients(example_inputs):
        rewrites = (*rewrites_of("frozen", options), *rewrites)
        inputs = (node for node in gm.graph.nodes if node.op == "placeholder")
        for node, value in zip(inputs, example_inputs):
            if is_static_input(value):
                node.meta[FROZEN] = True
    return apply_rewrites(gm, rewrites, vocabulary=CapturedVocabulary())


def _asks_for_gradients(values: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in values
    )
