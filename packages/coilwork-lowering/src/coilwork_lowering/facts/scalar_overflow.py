"""Check which numbers fit the type that eager's kernels convert them to.

Eager refuses `-1e9` in `float16`; generated code would make infinity of it, or wrap around. As with operands'
types, a call that is left to ATen without need is correct all the same.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_ir.operators import Relation, find_target_info
from coilwork_lowering.torch_compat.operators import (
    Overload,
    get_qualified_name,
    get_schema,
    is_list_of_sizes,
)
from coilwork_lowering.torch_compat.sizes import is_from_data, is_surely, is_true_when_traced, is_truth_value

_IN_EVERY_TYPE: Final = 127
LEAST_SIZE: Final = -1 << 62
"""Of what is less torch's `SymInt` keeps no number but an expression."""
_NUMBERS: Final = (int, float, torch.SymInt, torch.SymFloat)
_FLOATS: Final = (float, torch.SymFloat)
_RELATIONS: Final[Mapping[Relation, Callable[[float, float], bool]]] = MappingProxyType(
    {"ne": operator.ne, "ge": operator.ge, "gt": operator.gt}
)


def has_valid_numbers(target: Overload, arguments: Mapping[str, object]) -> bool:
    """Tell if the numbers among `arguments`, which are named as in the schema, fit where eager's kernel of
    `target` puts them.
    """
    name = get_qualified_name(target).split(".")[1]
    if not _are_closed_sizes(target, arguments):
        return False
    limits = find_target_info(get_qualified_name(target)).limits
    factors = [arguments.get(key) for key in limits.scaling_numbers]
    if not all(_can_scale(factor, arguments.values()) for factor in factors):
        return False
    if "_pool" in name and not _may_be_max_pool1d(name, arguments) and not _has_short_windows(arguments):
        return False
    if limits.required_number is not None and not _meets_requirement(arguments, *limits.required_number):
        return False
    converted = [arguments.get(key) for key in limits.converted_numbers]
    if not limits.promoted_numbers and any(type(value) is complex for value in converted):
        types = [*_list_computed_types(arguments)]
        return not types or any(dtype.is_complex for dtype in types)
    numbers = [value for value in converted if isinstance(value, _NUMBERS) and type(value) is not bool]
    if all(isinstance(number, int | float) and 0 <= number <= _IN_EVERY_TYPE for number in numbers):
        return True
    found = _compute_type(arguments, numbers)
    promoted = bool(limits.promoted_numbers) and any(isinstance(number, _FLOATS) for number in numbers)
    if promoted and not found.is_floating_point and not found.is_complex:
        found = torch.get_default_dtype()
    if limits.computed_numbers and found in (torch.float16, torch.bfloat16):
        found = torch.float32
    return all(_fits_in_every_call(number, found) for number in numbers)


def _fits_in_every_call(number: Any, dtype: torch.dtype) -> bool:
    """Tell if `number` fits `dtype`, which is guarded on where a later call may give another one.

    An infinity that a call gives where others gave numbers is taken for one that does not fit. A number from
    data, and one that a condition decides, counts as fitting: asking would cost a kernel.
    """
    if isinstance(number, int | float):
        return can_convert_number(number, dtype)
    if (
        is_from_data(number)
        or is_truth_value(number)
        or dtype.is_complex
        or dtype in (torch.bool, torch.float64, torch.int64)
    ):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    least = -limits.max if limits.min == 0 else limits.min
    return is_true_when_traced(number >= least) and is_true_when_traced(number <= limits.max)


@functools.cache
def _lists_of_sizes(target: Overload) -> tuple[str, ...]:
    """Return the arguments of `target` that are lists of sizes, which may be open."""
    return tuple(formal.name for formal in get_schema(target).arguments if is_list_of_sizes(formal))


def _are_closed_sizes(target: Overload, arguments: Mapping[str, object]) -> bool:
    """Tell if torch takes all numbers in lists of sizes for closed sizes."""
    lists = (arguments.get(name) for name in _lists_of_sizes(target))
    numbers = (number for sizes in lists if isinstance(sizes, list | tuple) for number in sizes)
    return not any(isinstance(number, int) and number < LEAST_SIZE for number in numbers)


def _meets_requirement(arguments: Mapping[str, object], name: str, relation: Relation, bound: int) -> bool:
    """Tell if the numbers that the argument `name` holds are in this relation to `bound`."""
    argument = arguments.get(name)
    numbers = argument if isinstance(argument, list | tuple) else (argument,)
    compare: Callable[[Any, int], Any] = _RELATIONS[relation]
    return all(_compare_number(number, compare, bound) for number in numbers)


def _compare_number(number: object, compare: Callable[[Any, int], Any], bound: int) -> bool:
    """Tell if `number` is as required, which is guarded on where a later call may give another one."""
    if isinstance(number, torch.SymFloat | torch.SymInt):
        return is_true_when_traced(compare(number, bound))
    return not isinstance(number, int | float) or bool(compare(number, bound))


def _may_be_max_pool1d(name: str, arguments: Mapping[str, object]) -> bool:
    """Tell if this may be `max_pool1d`, whose kernel counts in 64 bits."""
    value = arguments.get("self")
    if "max_pool2d" not in name or not isinstance(value, torch.Tensor) or value.dim() < 2:
        return False
    return is_surely(value.shape[-2] == 1)


def _has_short_windows(arguments: Mapping[str, object]) -> bool:
    """Tell if what says where the windows of a pooling lie fits 32 bits, in which eager's kernels count."""
    lists = [arguments.get(key) for key in ("kernel_size", "stride", "padding", "dilation")]
    numbers = [number for sizes in lists if isinstance(sizes, list | tuple) for number in sizes]
    return all(can_convert_number(number, torch.int32) for number in numbers if isinstance(number, int))


def can_convert_number(number: float, dtype: torch.dtype) -> bool:
    """Tell if torch converts `number` to `dtype` in C++ without an error: fractions are cut off, and integers
    wrap below zero.
    """
    if dtype.is_complex or dtype is torch.bool:
        return True
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        return number != number or abs(number) == float("inf") or abs(number) <= limits.max
    whole = torch.iinfo(dtype)
    if type(number) is int and whole.min == 0:
        return abs(number) <= whole.max
    return whole.min <= number <= whole.max


def _can_scale(factor: object, operands: Iterable[object]) -> bool:
    """Tell if `factor` is of a kind that scales `operands`: a truth value for truth values, a fraction for
    fractions.
    """
    operands = tuple(operands)
    types = [operand.dtype for operand in operands if isinstance(operand, torch.Tensor)]
    if type(factor) is bool:
        beside = any(type(operand) in (int, float) for operand in operands)
        return not beside and all(dtype is torch.bool for dtype in types)
    return type(factor) is not float or any(dtype.is_floating_point or dtype.is_complex for dtype in types)


def require_accepted_numbers(target: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """`decomposition` of `target`, for numbers that eager's kernel takes."""
    if not isinstance(target, Overload):
        return decomposition
    limits = find_target_info(get_qualified_name(target)).limits
    if (
        not limits.converted_numbers
        and limits.required_number is None
        and "_pool" not in get_schema(target).name
        and not _lists_of_sizes(target)
    ):
        return decomposition
    names = [formal.name for formal in get_schema(target).arguments]

    @functools.wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if not has_valid_numbers(target, {**dict(zip(names, args)), **kwargs}):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose


def _compute_type(arguments: Mapping[str, object], numbers: Sequence[object]) -> torch.dtype:
    """Return the result's, before the numbers have a say in it: the one asked for, or that of the tensors, or
    of the numbers alone.
    """
    asked = arguments.get("dtype")
    if isinstance(asked, torch.dtype):
        return asked
    tensors = [*_list_computed_types(arguments)]
    if tensors:
        return functools.reduce(torch.promote_types, tensors)
    is_float = any(isinstance(number, _FLOATS) for number in numbers)
    return torch.get_default_dtype() if is_float else torch.int64


def _list_computed_types(arguments: Mapping[str, object]) -> Iterator[torch.dtype]:
    """Yield the types of tensors that are computed with, hence not of positions, masks and labels."""
    for key, value in arguments.items():
        if isinstance(value, torch.Tensor) and key not in ("mask", "index"):
            yield value.dtype
