"""Trace a function to ATen, lower it, evaluate the loop IR, and compare values, types and strides
with eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import loop_evaluator
import torch
from aot_compilers import TracingMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from benchmarks.accuracy import check_all, compare_group
from coilwork_ir.loops import Extern, Graph
from coilwork_ir.machine import FindModel, change_figures, find_like_model
from coilwork_lowering import Lowered, LoweringOptions, lower


def trace_and_lower(
    function: Callable[..., Any],
    inputs: tuple[Any, ...],
    *,
    options: LoweringOptions | None = None,
    mode: TracingMode = "fake",
) -> Lowered:
    """Lower the ATen graph of `function`, no decompositions."""
    gm = make_fx(function, tracing_mode=mode)(*inputs)
    return lower(gm, name="graph", options=LoweringOptions() if options is None else options)


def find_changed_model(**figures: int | float) -> FindModel:
    """Finds models like those of this package, with other figures: `subject__name=value`."""
    changed = {name.replace("__", "."): value for name, value in figures.items()}
    return lambda device: change_figures(find_like_model(device), changed)


def externs(graph: Graph) -> list[str]:
    """Targets of the extern calls."""
    return [node.target for node in graph.nodes if isinstance(node, Extern)]


def assert_as_eager(
    function: Callable[..., Any],
    *inputs: Any,
    extern: bool = False,
    tolerance: float | None = None,
) -> Lowered:
    """`function` through lowering gives eager's results, without extern calls unless `extern`."""
    lowered = trace_and_lower(function, inputs)
    if not extern:
        assert externs(lowered.graph) == []
    found = loop_evaluator.run(lowered.graph, lowered.constants, _copies(inputs))
    expected = pytree.tree_leaves(function(*_copies(inputs)))
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        if not isinstance(wanted, torch.Tensor):
            assert got == wanted
            continue
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        if wanted.numel() > 0:
            pairs = zip(wanted.shape, got.stride(), wanted.stride(), strict=True)
            assert all(n == 1 or a == b for n, a, b in pairs), (got.stride(), wanted.stride())
        exact = not wanted.dtype.is_floating_point
        try:
            torch.testing.assert_close(
                got,
                wanted,
                equal_nan=True,
                rtol=0 if exact else tolerance,
                atol=0 if exact else (None if tolerance is None else tolerance),
            )
        except AssertionError:
            if wanted.dtype is not torch.float32 or tolerance is not None:
                raise
            _check_by_float64(function, inputs, found, expected)
    return lowered


def _check_by_float64(
    function: Callable[..., Any], inputs: tuple[Any, ...], found: list[Any], expected: list[Any]
) -> None:
    """Judge by float64 what is further from eager than two values of single operators are: each library adds
    the terms of a sum in an order of its own, and another one on each processor.
    """
    reference = pytree.tree_leaves(function(*(_widen(x) for x in _copies(inputs))))
    values = zip(found, expected, reference, strict=True)
    judged = [three for three in values if isinstance(three[1], torch.Tensor)]
    compiled, eager, exact = zip(*judged, strict=True)
    names = [f"result {number}" for number in range(len(judged))]
    check_all(compare_group(names, compiled=compiled, eager=eager, reference=exact))


def _widen(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _copies(inputs: tuple[Any, ...]) -> list[Any]:
    return [_copy(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def _copy(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    if any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True)):
        return x
    return made.copy_(x)
