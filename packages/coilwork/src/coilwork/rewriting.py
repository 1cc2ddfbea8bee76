"""Which rewrites a compilation does, from its options; and those of the captured graph, before autograd."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork.errors import OptionError, UncachedPassWarning
from coilwork_frontend.torch_compat.tensors import is_static_input
from coilwork_lowering import RewriteOptions
from coilwork_lowering.rewrites import (
    FROZEN,
    REWRITES,
    CapturedVocabulary,
    Fired,
    Rewrite,
    apply_rewrites,
    chosen,
)

NAMES: Final = tuple(rewrite.name for rewrite in REWRITES)
"""The names of Coilwork's own rewrites."""


def rewrites_of(level: str, options: CompileOptions, *, on_gpu: bool = False) -> tuple[Rewrite, ...]:
    """The rewrites of `level`, Coilwork's and the user's own.

    Random numbers are drawn otherwise than in eager where the option `random` lets generated code draw them. Batch invariance
    and deterministic algorithms are promises about the captured operators: then nothing that rounds otherwise is done.
    """
    generated = _draws_its_own(options, on_gpu)
    promised = options.batch_invariant or torch.are_deterministic_algorithms_enabled()
    numerics = "eager" if promised and options.numerics == "fast" else options.numerics
    allowed = RewriteOptions(numerics=numerics, random=generated, skip=options.skip_rewrites)
    match level:
        case "captured" | "aten" | "frozen":
            return chosen(level, allowed, options.rewrites)
    raise AssertionError(f"level {level}")


def packs_weights(options: CompileOptions) -> bool:
    """Whether frozen weights are packed for oneDNN, which rounds sums otherwise than the captured calls do."""
    promised = options.batch_invariant or torch.are_deterministic_algorithms_enabled()
    return options.freezing and options.numerics == "fast" and not promised


def draws_its_own(options: CompileOptions, example_inputs: Sequence[Any]) -> bool:
    """Whether random numbers may be others than eager's."""
    return _draws_its_own(options, _on_gpu(example_inputs))


def _draws_its_own(options: CompileOptions, on_gpu: bool) -> bool:
    return options.random == "generated" or (options.random == "auto" and on_gpu)


def _on_gpu(values: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)


def check_names(options: CompileOptions) -> None:
    """Refuse to skip what does not exist.

    Raises:
        OptionError: `skip_rewrites` names no rewrite; the message names the nearest known one.
    """
    known = [rewrite.name for rewrite in (*REWRITES, *options.rewrites)]
    for name in options.skip_rewrites:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise OptionError("unknown-rewrite", f"there is no rewrite {name!r}", remedy=hint)


def announce_unkeyed(options: CompileOptions) -> None:
    """Warn that passes and rewrites without uuid keep what is compiled out of the cache."""
    if options.cache and options.unkeyed:
        warnings.warn(
            f"graphs are not cached: {', '.join(options.unkeyed)} has no uuid. Give it an attribute or method `uuid` "
            "that changes whenever it does",
            UncachedPassWarning,
            stacklevel=3,
        )


def rewrite_captured(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> tuple[Fired, ...]:
    """Rewrite Dynamo's graph, in place; returns what was done.

    With `freezing`, and where no gradient is asked for, parameters and buffers are marked, and what needs them frozen is
    rewritten as well.
    """
    rewrites = rewrites_of("captured", options, on_gpu=_on_gpu(example_inputs))
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
