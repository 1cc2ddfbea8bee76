"""Find calls whose dtypes or numbers eager mode rejects and torch's tracing accepts.

`has_writes_of_other_types` finds results that are written into tensors of another dtype (`x.add_(z)` with a
complex `z`); eager is then asked on copies of the inputs. `has_rejected_types` finds operators that torch
decomposes whatever they are given: losses, images and classes of dtypes without a kernel, `hardshrink` by a
number that does not fit, pooling windows beyond 32 bits, and results whose dtype or shape differs between
meta functions and kernels. The captured graph runs then, and raises eager's error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.nn import functional

from coilwork_frontend.capture.operator_fixes import (
    MULTILABEL,
    MULTILABEL_FORWARD,
    MarginCall,
    match_margin_call,
)
from coilwork_frontend.capture.runtime_checks import ONE_HOT
from coilwork_frontend.torch_compat.operators import ROW_POOLS, disable_modes, get_native_function
from coilwork_frontend.torch_compat.sizes import hint_of
from coilwork_ir.device_traits import ATEN_CPU, has_trait

# ---- Results of other dtypes ----


# Of these eager's kernels compute little, whatever can be cast to them.
_WIDE_UNSIGNED: Final = frozenset({torch.uint16, torch.uint32, torch.uint64})
_ASSIGNING: Final = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
)


def has_writes_of_other_types(gm: fx.GraphModule) -> bool:
    """Tell if a call in Dynamo's graph writes its result into a tensor of another dtype."""
    return any(_changes_type(node) or _has_other_out_type(node) for node in gm.graph.nodes)


def _changes_type(node: fx.Node) -> bool:
    """Tell if a call in place has a result whose dtype cannot be cast to that of the tensor it overwrites."""
    target = _value(node.args[0]) if node.args else None
    functional = _find_functional(node) if isinstance(target, Tensor) else None
    if functional is None or not isinstance(target, Tensor):
        return False
    others = [value.dtype for value in map(_value, node.args) if isinstance(value, Tensor)]
    if not all(torch.can_cast(other, target.dtype) for other in others):
        return True
    # numbers change the dtype, too, and sums have one of their own
    result = _result_on_meta(functional, node.args, node.kwargs)
    if not isinstance(result, Tensor) or result.dtype is target.dtype:
        return False
    return target.dtype in _WIDE_UNSIGNED or not torch.can_cast(result.dtype, target.dtype)


def _find_functional(node: fx.Node) -> Callable[..., Any] | None:
    """Return the out-of-place function of a call in place (`add` of `add_`); None for other nodes."""
    target: Any = node.target
    if node.op == "call_method":
        return getattr(Tensor, target[:-1], None) if _is_in_place(target) else None
    if node.op != "call_function":
        return None
    name = getattr(target, "__name__", "")
    if getattr(operator, name, None) is target:
        return getattr(operator, name[1:], None) if name in _ASSIGNING else None
    is_function = _is_in_place(name) and getattr(torch, name, None) is target
    return getattr(torch, name[:-1], None) if is_function else None


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _result_on_meta(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
    """Return the result of `call` on meta tensors like the arguments; None if the call fails."""
    with disable_modes(), torch.no_grad():
        try:
            return call(
                *map(_move_to_meta, args), **{name: _move_to_meta(one) for name, one in kwargs.items()}
            )
        except Exception:  # noqa: BLE001  then nothing says that the type is another
            return None


def _has_other_out_type(node: fx.Node) -> bool:
    out = _value(node.kwargs.get("out"))
    if node.op != "call_function" or not isinstance(out, Tensor):
        return False
    call: Any = node.target
    result = _result_on_meta(
        call, node.args, {name: one for name, one in node.kwargs.items() if name != "out"}
    )
    return isinstance(result, Tensor) and result.dtype is not out.dtype


class _Unknown(Exception):
    """A value that no tensor on the meta device stands for."""


def _value(argument: object) -> object:
    return argument.meta.get("example_value") if isinstance(argument, fx.Node) else argument


def _move_to_meta(argument: object) -> Any:
    if isinstance(argument, list | tuple):
        return type(argument)([_move_to_meta(item) for item in argument])
    value = _value(argument)
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise _Unknown
        sizes = [_require_known(size) for size in value.shape]
        strides = [_require_known(step) for step in value.stride()]
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    if isinstance(value, torch.SymInt):
        return _require_known(value)
    # an open number, whose kind alone decides the result's dtype
    if isinstance(value, torch.SymFloat):
        return 1.5
    if isinstance(value, torch.SymBool):
        return True
    if isinstance(argument, fx.Node) and not isinstance(value, bool | int | float):
        raise _Unknown
    return value


def _require_known(size: Any) -> int:
    number = hint_of(size) if isinstance(size, torch.SymInt) else int(size)
    if number is None:
        raise _Unknown
    return number


# ---- Operators without a kernel ----


aten: Final = torch.ops.aten
# operators that are others inside, which have the kernels
_KERNELS: Final = MappingProxyType({MULTILABEL: MULTILABEL_FORWARD})
_RESIZING: Final = (
    *(f"upsample_{kind}" for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")),
    *(f"{kind}{count}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for count in (1, 2, 3)),
)
_RESIZE_KERNELS: Final = MappingProxyType(
    {
        function: getattr(aten, name).default
        for name in _RESIZING
        for function in (
            get_native_function(name),
            getattr(aten, name),
            getattr(aten, name).default,
        )
    }
)
# The kernels of one mode take the same types, whatever the dimensions.
_BY_MODE: Final = MappingProxyType(
    {
        "nearest": aten.upsample_nearest2d.default,
        "nearest-exact": aten._upsample_nearest_exact2d.default,
        "linear": aten.upsample_linear1d.default,
        "bilinear": aten.upsample_bilinear2d.default,
        "bicubic": aten.upsample_bicubic2d.default,
        "trilinear": aten.upsample_trilinear3d.default,
    }
)
# Other names of `interpolate`, which say the mode.
_NAMED_MODES: Final = MappingProxyType(
    {functional.upsample_nearest: "nearest", functional.upsample_bilinear: "bilinear"}
)
_CHOSEN_MODES: Final = frozenset({functional.interpolate, functional.upsample})
_POOLS_WITH_POSITIONS: Final = frozenset(
    {
        *(functional.max_pool1d_with_indices, torch.max_pool1d_with_indices),
        *(aten.max_pool1d_with_indices, aten.max_pool1d_with_indices.default),
    }
)
_IMAGE_POOLS: Final = frozenset(
    {
        *(functional.max_pool2d, functional.max_pool2d_with_indices, torch.max_pool2d),
        *(aten.max_pool2d, aten.max_pool2d.default),
        *(aten.max_pool2d_with_indices, aten.max_pool2d_with_indices.default),
    }
)
_HUBER: Final = frozenset(
    {functional.huber_loss, get_native_function("huber_loss"), aten.huber_loss, aten.huber_loss.default}
)
_REARRANGING: Final = frozenset(
    {
        *(torch.pixel_shuffle, aten.pixel_shuffle, aten.pixel_shuffle.default),
        *(torch.pixel_unshuffle, aten.pixel_unshuffle, aten.pixel_unshuffle.default),
    }
)
_HARDSHRINK: Final = aten.hardshrink.default
_NARROW: Final = torch.iinfo(torch.int32)
_SHRINKING: Final = frozenset({torch.hardshrink, _HARDSHRINK, _HARDSHRINK.overloadpacket})


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerKernels:
    """The types that eager's kernels accept, by the table of operators. Both functions take an operator and
    its arguments by name.
    """

    accept_types: Callable[[Any, Mapping[str, object]], bool]
    accept_numbers: Callable[[Any, Mapping[str, object]], bool]


def has_rejected_types(gm: fx.GraphModule, kernels: EagerKernels) -> bool:
    """Tell if a call in Dynamo's graph is of dtypes or numbers that eager rejects.

    The captured graph has to run then: eager raises its error, or accepts the call if there are no elements.
    """
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    calls = [match_margin_call(node) for node in nodes]
    return any(call is not None and _rejects_margin_loss(call, kernels) for call in calls) or any(
        _rejects_shrinking(node, kernels)
        or _rejects_resizing(node, kernels)
        or _pools_other_than_floats(node)
        or _has_long_windows(node)
        or _classifies_by_other_types(node)
        or _trains_between_types(node)
        or _rearranges_nothing(node)
        for node in nodes
    )


def _has_long_windows(node: fx.Node) -> bool:
    """Tell if pooling has a window size, stride or padding beyond 32 bits that eager rejects.

    Eager rejects it for images, and for rows that return indices or require gradients; for other rows it
    counts in 64 bits. Tracing treats all rows as images of one line.
    """
    known = ROW_POOLS | _POOLS_WITH_POSITIONS | _IMAGE_POOLS
    if node.op != "call_function" or node.target not in known or not node.args:
        return False
    row = _get_first_value(node)
    returns_indices = node.args[6] if len(node.args) > 6 else node.kwargs.get("return_indices", False)
    is_narrow = node.target not in ROW_POOLS or bool(returns_indices)
    if not is_narrow and not (isinstance(row, torch.Tensor) and row.requires_grad):
        return False
    numbers = [item for value in (*node.args[1:], *node.kwargs.values()) for item in _items(value)]
    return any(type(number) is int and not _NARROW.min <= number <= _NARROW.max for number in numbers)


def _classifies_by_other_types(node: fx.Node) -> bool:
    """Tell if the classes of a `one_hot` are not `int64`; tracing takes others if it knows their number."""
    value = _get_first_value(node) if node.op == "call_function" and node.target in ONE_HOT else None
    return isinstance(value, Tensor) and value.dtype is not torch.int64


def _items(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _trains_between_types(node: fx.Node) -> bool:
    """Tell if a `huber_loss` requires a gradient and has another dtype than its first operand.

    Eager's kernel has the first operand's dtype and rejects the gradient. Torch's meta function has the wider
    dtype of both operands.
    """
    if node.op != "call_function" or node.target not in _HUBER:
        return False
    value, result = _get_first_value(node), node.meta.get("example_value")
    return (
        isinstance(value, torch.Tensor)
        and isinstance(result, torch.Tensor)
        and result.requires_grad
        and result.dtype is not value.dtype
    )


def _rearranges_nothing(node: fx.Node) -> bool:
    """Tell if `pixel_shuffle` or `pixel_unshuffle` gets an image without elements on a CPU.

    Eager's kernel returns the image with its old shape, which no gradient fits.
    """
    if node.op != "call_function" or node.target not in _REARRANGING:
        return False
    value = _get_first_value(node)
    return (
        isinstance(value, torch.Tensor)
        and has_trait(value.device.type, ATEN_CPU)
        and any(type(size) is int and size == 0 for size in value.shape)
    )


def _get_first_value(node: fx.Node) -> object:
    """Return the fake value of the first operand of a call in Dynamo's graph."""
    operand = node.args[0] if node.args else node.kwargs.get("input")
    return operand.meta.get("example_value") if isinstance(operand, fx.Node) else None


def _pools_other_than_floats(node: fx.Node) -> bool:
    """Tell if a row of integers is pooled on a CPU: eager pools integers of images only, tracing of both."""
    if node.op != "call_function" or node.target not in ROW_POOLS:
        return False
    value = _get_first_value(node)
    return (
        isinstance(value, torch.Tensor)
        and has_trait(value.device.type, ATEN_CPU)
        and not value.is_floating_point()
    )


def _rejects_resizing(node: fx.Node, kernels: EagerKernels) -> bool:
    """Tell if eager rejects a resize: its dtype has no kernel, or a dimension other than the batch is
    empty."""
    if node.op != "call_function":
        return False
    target: Any = node.target
    kernel = _RESIZE_KERNELS.get(target)
    if target in _CHOSEN_MODES or target in _NAMED_MODES:
        mode = node.args[3] if len(node.args) > 3 else node.kwargs.get("mode", "nearest")
        antialias = node.kwargs.get("antialias", False) or len(node.args) > 6
        kernel = None if antialias else _BY_MODE.get(_NAMED_MODES.get(target, str(mode)))
    if kernel is None:
        return False
    value, result = _get_first_value(node), node.meta.get("example_value")
    sizes = [size for one in (value, result) if isinstance(one, torch.Tensor) for size in one.shape[1:]]
    is_empty = any(type(size) is int and size == 0 for size in sizes)
    return isinstance(value, torch.Tensor) and (is_empty or not kernels.accept_types(kernel, {"self": value}))


def _rejects_shrinking(node: fx.Node, kernels: EagerKernels) -> bool:
    """Tell if eager rejects a `hardshrink`: the dtype has no kernel, or the number does not fit it."""
    if node.op != "call_function" or node.target not in _SHRINKING or not node.args:
        return False
    value = _get_first_value(node)
    bound = node.args[1] if len(node.args) > 1 else node.kwargs.get("lambd")
    arguments = {"self": value, "lambd": bound}
    return not (
        kernels.accept_numbers(_HARDSHRINK, arguments) and kernels.accept_types(_HARDSHRINK, arguments)
    )


def _rejects_margin_loss(call: MarginCall, kernels: EagerKernels) -> bool:
    kernel = _KERNELS.get(call.operator, call.operator)
    has_other_weight = call.weight is not None and call.weight.dtype is not call.scores.dtype
    has_kernel = call.labels.dtype is torch.int64 and kernels.accept_types(kernel, {"self": call.scores})
    return has_other_weight or not has_kernel
