"""What higher-order operators stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from coilwork_lowering.torch_compat.operators import Overload, schema_of


def functionalized_calls(copied: Callable[[torch.Tensor], torch.Tensor]) -> dict[Any, Callable[..., Any]]:
    """The wrappers of operators that write into their arguments, and functions that say what each does.

    They copy by `copied` what is written into; torch's own would keep its place in the storage, by way of
    flat views of it.
    """
    from torch._higher_order_ops.auto_functionalize import (
        auto_functionalized,
        auto_functionalized_dense,
        auto_functionalized_v2,
        auto_functionalized_v2_dense,
    )

    def by_argument(operator: Overload, **given: Any) -> Any:
        for formal in schema_of(operator).arguments:
            if (
                formal.alias_info is not None
                and formal.alias_info.is_write
                and given.get(formal.name) is not None
            ):
                given[formal.name] = tree_map_only(torch.Tensor, copied, given[formal.name])
        return auto_functionalized_dense(operator, (), **given)

    def by_base(operator: Overload, **given: Any) -> Any:
        bases = [copied(base) for base in given.pop("_all_bases", ())]
        return auto_functionalized_v2_dense(operator, (), _all_bases=bases, **given)

    return {auto_functionalized: by_argument, auto_functionalized_v2: by_base}


def copy_of_storage(value: torch.Tensor) -> torch.Tensor:
    """A copy of `value`, as far from the beginning of its storage as `value` is."""
    from torch._prims_common import clone_preserve_strides

    copy: torch.Tensor = clone_preserve_strides(value)
    return copy


def dense_meanings() -> dict[Any, Callable[..., Any]]:
    """Higher-order operators that stand for calls of others, and the functions that make these calls."""
    from torch._higher_order_ops.flex_attention import (
        flex_attention,
        flex_attention_backward,
        sdpa_dense,
        sdpa_dense_backward,
    )

    return {flex_attention: sdpa_dense, flex_attention_backward: sdpa_dense_backward}


def out_dtype_meaning() -> dict[Any, Callable[..., Any]]:
    """The higher-order operator that computes an operator in a wider type, and the function that calls what
    it stands for.
    """
    from torch._higher_order_ops.out_dtype import out_dtype, out_dtype_dense

    return {out_dtype: out_dtype_dense}
