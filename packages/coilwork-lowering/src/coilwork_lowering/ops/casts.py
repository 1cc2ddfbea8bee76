"""Conversions between types.

`fast` numerics go on with what an operator computed before it was rounded to its type. A program that
converts to 16 bits, and computes with the result in more, asks for the rounding itself: it simulates a narrow
type, or measures what that takes away. Such a conversion rounds whatever the numerics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from coilwork_ir.operators import find_target_info
from coilwork_ir.scalar import Scalar
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.facts.alias_analysis import view_source
from coilwork_lowering.ops.elementwise import elementwise, overloads
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import round_to, to_dtype


def _convert(builder: Builder, call: Call) -> Value:
    # no promotion: the value goes from memory's type straight to the result's
    source = call.tensor("a" if "a" in call.arguments else "self")
    narrow = _make_narrowing(call, source)
    return elementwise(builder, call, narrow, operands=[source], compute=[source.dtype])


def _to_copy(builder: Builder, call: Call) -> Value:
    """A copy in another type and layout; one of memory to another device is left to the fallback."""
    value = call.tensor("self")
    dtype = call.dtype
    if value.device != call.device:
        again = builder.rematerialize(value, call.device, strides=call.strides(builder))
        if again is None or again.dtype is not dtype:
            raise NotLowered("a copy to another device")
        return again
    narrow = _make_narrowing(call, value)
    return builder.pointwise(
        value.shape,
        dtype,
        value.device,
        lambda point: to_dtype(narrow(builder.read(value, point)), dtype),
        strides=call.strides(builder),
    )


def _make_narrowing(call: Call, source: TensorValue) -> Callable[[Scalar], Scalar]:
    """Return what rounds elements of `source` to the type of the result before they are converted, where that
    is to be seen.
    """
    is_conversion = find_target_info(call.captured).is_conversion
    narrows = call.dtype.is_low_precision and source.dtype.is_float and is_conversion
    if narrows and _is_wider_somewhere(call.node):
        return partial(round_to, narrow=call.dtype)
    return lambda a: a


def _is_wider_somewhere(node: torch.fx.Node) -> bool:
    """Tell whether a call that takes `node`, or a view of it, has a result in a wider float type."""
    narrow = node.meta["val"].dtype
    seen, stack = {node}, [node]
    while stack:
        for user in stack.pop().users:
            made = user.meta.get("val")
            for one in made if isinstance(made, list | tuple) else (made,):
                if not isinstance(one, torch.Tensor):
                    continue
                if one.dtype.is_floating_point and one.dtype.itemsize > narrow.itemsize:
                    return True
            if user not in seen and view_source(user) in seen:
                seen.add(user)
                stack.append(user)
    return False


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("prims.convert_element_type.default"), _convert),
    Rule(overloads("_to_copy"), _to_copy),
)
