"""`torch.compile` through AOTAutograd, lowering, and the evaluator in place of generated code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import loop_evaluator
import torch
from aot_compilers import compiler_of
from torch._functorch.aot_autograd import aot_module_simplified

from coilwork_lowering import (
    LayoutOptions,
    Lowered,
    LoweringOptions,
    PaddingDecision,
    decompositions,
    lower,
    pad_products,
    partition,
)


def make_boxed_call(call: Callable[[list[Any]], list[Any]]) -> Callable[..., Any]:
    """Mark `call` as taking one list."""
    vars(call)["_boxed_call"] = True
    return call


class Recorder:
    """A `torch.compile` backend that keeps every lowered graph, and what was decided about products of
    inference graphs.
    """

    def __init__(self, options: LoweringOptions | None = None, layout: LayoutOptions | None = None) -> None:
        self.options = LoweringOptions() if options is None else options
        self.layout = LayoutOptions() if layout is None else layout
        self.lowered: list[Lowered] = []
        self.decisions: list[PaddingDecision] = []

    def compiler(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        strides = [t.stride() if isinstance(t, torch.Tensor) else None for t in inputs]
        made = lower(gm, name="graph", options=self.options, example_strides=strides)
        self.lowered.append(made)

        def call(args: list[Any]) -> list[Any]:
            given = list(args)
            args.clear()
            return loop_evaluator.run(made.graph, made.constants, given)

        return make_boxed_call(call)

    def inference(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        laid_out, decision = pad_products(gm, self.layout)
        self.decisions.append(decision)
        return self.compiler(laid_out, inputs)

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Any:
        return aot_module_simplified(
            gm,
            list(inputs),
            fw_compiler=compiler_of(self.compiler),
            bw_compiler=compiler_of(self.compiler),
            inference_compiler=compiler_of(self.inference),
            decompositions=decompositions(self.options),
            partition_fn=partial(partition, layout=self.layout),
            keep_inference_input_mutations=True,
        )
