"""Which operators AOTAutograd takes apart before lowering. Nothing here comes from `torch._inductor`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from coilwork_ir.operators import find_target_info, list_operators
from coilwork_lowering.decompositions.own import own_decompositions
from coilwork_lowering.decompositions.products import product_decompositions
from coilwork_lowering.facts.operand_checks import require_accepted_types
from coilwork_lowering.facts.scalar_overflow import require_accepted_numbers
from coilwork_lowering.options import LoweringOptions, names
from coilwork_lowering.torch_compat.operators import (
    Overload,
    base_decompositions,
    composite_operators,
    more_decompositions,
    qualified_name,
)


def decompositions(options: LoweringOptions = LoweringOptions()) -> dict[Any, Callable[..., Any]]:  # noqa: B008
    """The table for AOTAutograd: torch's core decompositions and more, less what is kept whole. It is the
    caller's own.
    """
    return dict(_table(options, composite_operators()))


@functools.lru_cache(maxsize=8)
def _table(options: LoweringOptions, operators: tuple[str, ...]) -> Mapping[Any, Callable[..., Any]]:
    """As `decompositions`; where there are other `operators`, there is another table."""
    table = base_decompositions()
    further = list_operators(lambda info: info.decomposition == "torch")
    packets = [
        getattr(torch.ops.aten, name) for name in further if name in dir(torch.ops.aten) or _exists(name)
    ]
    table.update(more_decompositions(packets))
    table.update(own_decompositions(table))
    kept = {op: function for op, function in table.items() if not _is_kept(op, options)}
    if options.sum_products:
        kept.update(product_decompositions())
    return MappingProxyType(
        {
            op: require_accepted_types(op, require_accepted_numbers(op, function))
            for op, function in kept.items()
        }
    )


def _exists(name: str) -> bool:
    try:
        getattr(torch.ops.aten, name)
    except AttributeError:
        return False
    return True


def _is_kept(op: Any, options: LoweringOptions) -> bool:
    if not isinstance(op, Overload):
        return False
    name = qualified_name(op)
    info = find_target_info(name)
    if info.is_attention:
        return not options.decompose_sdpa
    is_whole = op.namespace == "aten" and info.decomposition == "none"
    return is_whole or names((*options.keep, *options.fallback), name)
