"""Operators: schemas, kernels, decompositions, type promotion, and what higher-order operators mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch._prims_common import (
    ELEMENTWISE_TYPE_PROMOTION_KIND,
    elementwise_dtypes,
    suggest_memory_format,
)
from torch.torch_version import TorchVersion
from torch.utils._pytree import tree_map_only

from coilwork_ir.operators import find_target_info

# overloads


Overload: TypeAlias = torch._ops.OpOverload
PROMOTION = ELEMENTWISE_TYPE_PROMOTION_KIND
# From 2.13 on what is too large for this type becomes its largest number; before, it becomes NaN. No tensor
# is made to find out: a package may be imported where a program lets all tensors be on `meta`, or fake.
E4M3_SATURATES: Final = TorchVersion(torch.__version__) >= TorchVersion("2.13.0a0")


def promote_types(
    kind: ELEMENTWISE_TYPE_PROMOTION_KIND, operands: Sequence[Any]
) -> tuple[torch.dtype, torch.dtype]:
    """(type to compute in, type of the result) for fake tensors and numbers under torch's promotion rules."""
    compute, result = elementwise_dtypes(*operands, type_promotion_kind=kind)
    return compute, result


def list_composite_operators() -> tuple[str, ...]:
    """Return the names of all operators that are made of others: libraries that a program loads add to
    them.
    """
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return tuple(names)


def copy_base_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return a fresh copy of torch's core ATen decompositions. Making it walks all operators: a tenth of
    a second.
    """
    # loaded on use: the tables take longer to build than this package takes to import
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())


def get_more_decompositions(packets: Sequence[Any]) -> dict[Any, Callable[..., Any]]:
    """Decompositions registered for `packets`."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions(packets))


def get_qualified_name(target: Overload) -> str:
    """`"aten.add.Tensor"` for an overload."""
    return f"{target.namespace}.{target._schema.name.split('::')[-1]}.{target._overloadname}"


def get_overload(name: str) -> Overload:
    """Return the overload of a qualified name, `"aten.add.Tensor"`.

    Raises:
        KeyError: there is none.
    """
    overload: Any = torch.ops
    for part in name.split("."):
        overload = getattr(overload, part, None)
    if not isinstance(overload, Overload):
        raise KeyError(name)
    return overload


def is_list_of_sizes(formal: torch.Argument) -> bool:
    """Tell if an argument is a list of sizes, which may be open; lists of other numbers print as it does."""
    kind: Any = formal.real_type
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    return bool(kind.kind() == "ListType" and kind.getElementType().kind() == "SymIntType")


def get_schema(target: Overload) -> torch.FunctionSchema:
    """Return the schema of an overload."""
    return target._schema


def has_kernel(target: Overload, device_type: str) -> bool:
    """Tell if a kernel is registered for `target` on the backend of `device_type` itself."""
    key = {"cpu": "CPU", "cuda": "CUDA"}.get(device_type, "CPU")
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key))


def has_quantized_kernel(target: Overload, device_type: str) -> bool:
    """Tell if a kernel for quantised tensors is registered for `target` on the backend of `device_type`."""
    key = {"cuda": "QuantizedCUDA"}.get(device_type, "QuantizedCPU")
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), key))


def is_quantizing(target: Any) -> bool:
    """Tell if calls of `target` make quantised tensors of floats, which torch captures as `float32`."""
    return isinstance(target, Overload) and find_target_info(get_qualified_name(target)).makes_quantized


def suggest_format(value: torch.Tensor) -> torch.memory_format:
    """Channels-last if that is how `value` lies, else contiguous: the format of what eager's kernels make of
    it.
    """
    return suggest_memory_format(value)


def makes_rows_of_one_tap(image: torch.Tensor, weight: torch.Tensor, *call: Any) -> bool:
    """Tell if the gradient of `weight` lies in the order of its dimensions, where torch's meta function says
    channels-last: `call` is what `convolution_backward` is given behind the weight.

    ATen's own kernels on CPUs convert the weight to the image's format, and its gradient lies as suits that.
    A weight that lies in both formats, of one tap or of single channels, is not converted.
    """
    bias_sizes, *numbers, _ = call
    if not weight.is_contiguous(memory_format=torch.channels_last):
        return False
    if suggest_format(weight) is torch.channels_last:
        return False
    backend: Any = torch._C._select_conv_backend(image, weight, None, *numbers, bias_sizes=bias_sizes)
    return backend.name in ("Slow2d", "SlowTranspose2d")


_COUNTED: Final = frozenset(
    {"aten::unique_dim", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim_consecutive"}
)


def find_kernel_dtype(target: Any, number: int, first: torch.dtype | None) -> torch.dtype | None:
    """Return the element type that kernels give result `number`, where torch 2.11's meta functions name
    another. None elsewhere.

    Positions and counts of distinct values are `int64`, not of the values' type; logarithms of an attention's
    sums on a CPU are as precise as its queries, of type `first`, and `float32` for queries of 16 bits only.
    """
    if not isinstance(target, Overload):
        return None
    if get_schema(target).name in _COUNTED and number:
        return torch.int64
    if number == 1 and first is torch.float64 and find_target_info(get_qualified_name(target)).is_attention:
        return torch.float64
    return None


_PACKINGS: Final = frozenset({"mkldnn::_reorder_linear_weight", "mkldnn::_reorder_convolution_weight"})


def is_packing(target: Any) -> bool:
    """Tell if calls of `target` lay a weight out as oneDNN wants it."""
    return isinstance(target, Overload) and get_schema(target).name in _PACKINGS


def list_packed_types() -> tuple[torch.dtype, ...]:
    """Return the types of weights that oneDNN packs on this machine; none where torch was built without it,
    or it is switched off.
    """
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return ()
    if not all(torch._C._jit_get_schemas_for_operator(name) for name in _PACKINGS):
        return ()
    supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return (torch.float32, torch.bfloat16) if supported else (torch.float32,)


# higher-order operators


def list_functionalized_calls(
    copied: Callable[[torch.Tensor], torch.Tensor],
) -> dict[Any, Callable[..., Any]]:
    """Return the wrappers of operators that write into their arguments, and functions that say what each
    does.

    They copy by `copied` what is written into; torch's own would keep its place in the storage, by way of
    flat views of it.
    """
    from torch._higher_order_ops.auto_functionalize import (
        auto_functionalized,
        auto_functionalized_dense,
        auto_functionalized_v2,
        auto_functionalized_v2_dense,
    )

    def copy_arguments(operator: Overload, **arguments: Any) -> Any:
        for formal in get_schema(operator).arguments:
            if (
                formal.alias_info is not None
                and formal.alias_info.is_write
                and arguments.get(formal.name) is not None
            ):
                arguments[formal.name] = tree_map_only(torch.Tensor, copied, arguments[formal.name])
        return auto_functionalized_dense(operator, (), **arguments)

    def copy_bases(operator: Overload, **arguments: Any) -> Any:
        bases = [copied(base) for base in arguments.pop("_all_bases", ())]
        return auto_functionalized_v2_dense(operator, (), _all_bases=bases, **arguments)

    return {auto_functionalized: copy_arguments, auto_functionalized_v2: copy_bases}


def copy_of_storage(value: torch.Tensor) -> torch.Tensor:
    """Return a copy of `value`, as far from the beginning of its storage as `value` is."""
    from torch._prims_common import clone_preserve_strides

    copy: torch.Tensor = clone_preserve_strides(value)
    return copy


def list_dense_equivalents() -> dict[Any, Callable[..., Any]]:
    """Higher-order operators that stand for calls of others, and the functions that make these calls."""
    from torch._higher_order_ops.flex_attention import (
        flex_attention,
        flex_attention_backward,
        sdpa_dense,
        sdpa_dense_backward,
    )

    return {flex_attention: sdpa_dense, flex_attention_backward: sdpa_dense_backward}


def list_out_dtype_equivalents() -> dict[Any, Callable[..., Any]]:
    """Return the higher-order operator that computes an operator in a wider type, and the function that calls
    what it stands for.
    """
    from torch._higher_order_ops.out_dtype import out_dtype, out_dtype_dense

    return {out_dtype: out_dtype_dense}
