"""Scans by a function: applied to what came before and the next point, one point after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coilwork_ir.interpret_ops import apply_op, literal
from coilwork_ir.interpretation.reductions import scan_last
from coilwork_ir.scalar import Combine, Combining, Const, Op, Parameter, Scalar, postorder


def scan_all(kind: Combining, values: Sequence[Tensor], *, reverse: bool) -> tuple[Tensor, ...]:
    """All results of the inclusive running `kind` of `values` along the last dimension, from the end if
    `reverse`.
    """
    if not isinstance(kind, Combine):
        (value,) = values
        return scan_last(kind, value, reverse=reverse)
    wide = torch.broadcast_tensors(*values)
    count = wide[0].shape[-1]
    points = range(count - 1, -1, -1) if reverse else range(count)
    results = tuple(torch.empty(value.shape, dtype=value.dtype) for value in wide)
    running: list[Tensor] = []
    for point in points:
        element = [value[..., point] for value in wide]
        running = combine(kind, [*running, *element]) if running else element
        for result, value in zip(results, running, strict=True):
            result[..., point] = value
    return results


def combine(function: Combine, given: Sequence[Tensor]) -> list[Tensor]:
    """The results of `function` for two tuples of values, one behind the other."""
    done: dict[Scalar, Tensor] = {}
    for node in postorder(function.results):
        match node:
            case Const():
                done[node] = literal(node.value, node.dtype)
            case Parameter():
                done[node] = given[node.position]
            case Op():
                done[node] = apply_op(node.op, [done[operand] for operand in node.operands], node.dtype)
            case _:
                raise TypeError(f"not a scalar of a function: {node!r}")
    return [done[result] for result in function.results]
