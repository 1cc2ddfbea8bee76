"""Types that eager's kernels take. What they refuse is neither decomposed nor lowered: the call is ATen's,
whose error is eager's.

The operator table errs in one direction: a call that is left to ATen without need, as one of operands that
are promoted, is right all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.operators import EagerLimits, OpInfo, TypeClass, find_target_info
from coilwork_lowering.facts.accepted_shapes import accepts_shapes, has_rule
from coilwork_lowering.torch_compat.operators import Overload, qualified_name, schema_of

Types: TypeAlias = frozenset[torch.dtype]

_WIDE: Final[Types] = frozenset({torch.float32, torch.float64})
_FLOATS: Final[Types] = frozenset({*_WIDE, torch.float16, torch.bfloat16})
_INTEGERS: Final[Types] = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_WIDE_UNSIGNED: Final[Types] = frozenset({torch.uint16, torch.uint32, torch.uint64})
_COMPLEX: Final[Types] = frozenset({torch.complex32, torch.complex64, torch.complex128})
_CLASSES: Final[Mapping[TypeClass, Types]] = MappingProxyType(
    {
        "float": _FLOATS,
        "wide_float": _WIDE,
        "integer": _INTEGERS,
        "complex": _COMPLEX,
        "wide_complex": _COMPLEX - {torch.complex32},
        "bool": frozenset({torch.bool}),
        "uint8": frozenset({torch.uint8}),
        "int32": frozenset({torch.int32}),
        "int64": frozenset({torch.int64}),
    }
)
_EIGHT_BITS: Final[Types] = frozenset(
    getattr(torch, name)
    for name in "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split()
    if hasattr(torch, name)
)
# Of `types_everywhere`, the arguments that are operands where they are truth values: others say how to
# compute.
_OPERANDS: Final = ("self", "other", "element", "test_element")
_PARAMETERS: Final = ("weight", "bias", "running_mean", "running_var")


def accepts(target: Overload, arguments: Mapping[str, object]) -> bool:
    """Tell if eager has a kernel of `target` for the types of `arguments`, which are named as in
    the schema.
    """
    info = find_target_info(qualified_name(target))
    limits = info.limits
    if target.namespace == "aten" and not info.takes_float8 and _has_eight_bits(arguments.values()):
        return False
    if limits.needs_alike_float8 and _mixes_eight_bits(arguments):
        return False
    tensors = [one for one in arguments.values() if isinstance(one, torch.Tensor)]
    if limits.rejects_float8_powers and any(one.dtype is torch.float8_e8m0fnu for one in tensors):
        return False
    if limits.types_everywhere and not _are_all(arguments.items(), _types_in(limits.types_everywhere)):
        return False
    if len(_types(arguments, limits.same_types)) > 1:
        return False
    is_gradient = schema_of(target).name.endswith("_backward")
    if is_gradient and not limits.takes_integer_gradients:
        alike = not limits.takes_other_gradients
        if not _is_of_its_type(arguments, alike=alike):
            return False
    if limits.index_types is not None:
        positions, allowed = limits.index_types
        if not _types(arguments, (positions,)) <= _types_in(allowed):
            return False
    if limits.makes_no_wide_unsigned and arguments.get("dtype") in _WIDE_UNSIGNED:
        return False
    if not tensors or limits.is_typed_by_result:
        return _accepts_result(limits, arguments, tensors)
    return _accepts_operands(info, arguments, tensors)


def _accepts_result(
    limits: EagerLimits, arguments: Mapping[str, object], tensors: Iterable[torch.Tensor]
) -> bool:
    """Tell if eager has a kernel for the type that the result is to have."""
    dtype = arguments.get("dtype")
    if isinstance(dtype, torch.dtype) and not dtype.is_complex and any(map(torch.is_complex, tensors)):
        return False
    if (limits.rejects_wide_unsigned or limits.is_typed_by_result) and dtype in _WIDE_UNSIGNED:
        return False
    return not limits.types or dtype is None or dtype in _types_in(limits.types)


def _accepts_operands(info: OpInfo, arguments: Mapping[str, object], tensors: Sequence[torch.Tensor]) -> bool:
    """Tell if eager has a kernel for the types of `tensors`, the first of them above all."""
    limits, first = info.limits, tensors[0]
    if limits.types and first.dtype not in _types_in(limits.types):
        return False
    if not has_trait(first.device.type, ATEN_CPU):
        return True
    if arguments.get("input_dtype") not in (None, first.dtype):
        return False
    if limits.rejects_wide_unsigned and any(one.dtype in _WIDE_UNSIGNED for one in tensors):
        return False
    is_norm = info.norm in ("batch", "group", "layer")
    if is_norm and not _scaled_by(first.dtype, _types(arguments, _PARAMETERS)):
        return False
    return not limits.types_on_cpus or first.dtype in _types_in(limits.types_on_cpus)


@functools.cache
def _types_in(classes: tuple[TypeClass, ...]) -> Types:
    """The types of these classes."""
    return frozenset().union(*(_CLASSES[each] for each in classes))


def _has_eight_bits(arguments: Iterable[object]) -> bool:
    """Tell if a tensor among the arguments, or in one of their lists, holds floats of 8 bits, or the result
    is to.
    """
    return not _EIGHT_BITS.isdisjoint(_listed_types(arguments))


def _listed_types(arguments: Iterable[object]) -> Iterator[torch.dtype]:
    """The types among the arguments, and those of tensors among them and in their lists."""
    for value in arguments:
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, torch.Tensor):
                yield item.dtype
            elif isinstance(item, torch.dtype):
                yield item


def _mixes_eight_bits(arguments: Mapping[str, object]) -> bool:
    """Tell if floats of 8 bits would have to be promoted, or others to them."""
    tensors = [
        item
        for name, value in arguments.items()
        if name != "condition"
        for item in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(item, torch.Tensor)
    ]
    types = {one.dtype for one in tensors}
    return len(types) > 1 and not _EIGHT_BITS.isdisjoint(types)


def _is_of_its_type(arguments: Mapping[str, object], *, alike: bool) -> bool:
    """Tell if a gradient is no integer, and, if `alike`, has the type of what it is taken of, as most have
    it.
    """
    types = _types(arguments, ("grad_output", "self", "grid"))
    is_one = not alike or len(types) < 2
    return is_one and not any(dtype in _INTEGERS or dtype is torch.bool for dtype in types)


def _are_all(arguments: Iterable[tuple[str, object]], types: Types) -> bool:
    """Tell if all tensors are of these types, and stay so beside the numbers, which are of these
    types, too.
    """
    return all(_type_of(name, one) in (None, *types) for name, one in arguments)


def _type_of(name: str, value: object) -> torch.dtype | None:
    """That of a tensor or of a number that is an operand; None of others, and of integers, which take part in
    every type.
    """
    if isinstance(value, torch.Tensor):
        return value.dtype
    if type(value) is float:
        return torch.float32
    return torch.bool if type(value) is bool and name in _OPERANDS else None


def _types(arguments: Mapping[str, object], names: tuple[str, ...]) -> Types:
    """Return those of the tensors of these names."""
    given = [arguments.get(name) for name in names]
    return frozenset(one.dtype for one in given if isinstance(one, torch.Tensor))


def _scaled_by(dtype: torch.dtype, parameters: Types) -> bool:
    """Tell whether a norm of `dtype` may have parameters of these types: its own, or `f32` beside 16 bits."""
    return parameters <= {dtype} or (dtype in _FLOATS - _WIDE and parameters == {torch.float32})


def require_accepted_types(target: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """`decomposition` of `target`, for what eager has a kernel."""
    if not isinstance(target, Overload) or target.namespace != "aten":
        return decomposition
    if not _is_named(target) and not has_rule(target):
        return _require_wider_types(target, decomposition)
    names = [formal.name for formal in schema_of(target).arguments]

    @functools.wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        if not accepts(target, given) or not accepts_shapes(target, given):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose


def _require_wider_types(target: Overload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """`decomposition` of an operator that takes every type but floats of 8 bits."""
    if find_target_info(qualified_name(target)).takes_float8:
        return decomposition

    @functools.wraps(decomposition)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if _has_eight_bits(args) or _has_eight_bits(kwargs.values()):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return decompose


def _is_named(target: Overload) -> bool:
    """Tell if eager refuses some types of the operands of `target`, floats of 8 bits aside."""
    is_gradient = schema_of(target).name.endswith("_backward")
    return is_gradient or find_target_info(qualified_name(target)).limits.concern_types
