"""The per-operator functions of torch's C interface that programs call instead of the dispatcher.

They cost half of what the dispatcher costs, and they are the only way to operators with `Scalar` arguments,
which the dispatcher's C interface cannot carry. Their C parameters follow from the operator's schema.
Generated C++ declares the functions of this table by hand; every one is exported by libtorch_cpu from 2.11
on, and the tests of `coilwork-cpp-wrapper` compare all of them with torch's headers. The native executor
finds further ones in the headers (`executor/operator_functions.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class CFunction:
    """A C function for one operator overload.

    `scalars`: how the operator uses its `Scalar` arguments, which the C function takes as `double`. With
    `"promote"` an integer makes another result than the equal `double` unless a tensor argument is of
    floating point; with `"cast"` it does not, because the value is converted to the element type at hand.
    """

    symbol: str
    scalars: Literal["promote", "cast"] = "promote"


_FUNCTIONS: Final[Mapping[str, str]] = {
    # matrix products, into a given tensor
    "aten.mm.out": "mm_out",
    "aten.bmm.out": "bmm_out",
    "aten.addmm.out": "addmm_out",
    "aten.baddbmm.out": "baddbmm_out",
    "aten._int_mm.out": "_int_mm_out",
    "aten.addbmm.default": "addbmm",
    "aten.addmv.default": "addmv",
    # arithmetic with a Scalar
    "aten.add.Tensor": "add_Tensor",
    "aten.add.Scalar": "add_Scalar",
    "aten.mul.Tensor": "mul_Tensor",
    "aten.mul.Scalar": "mul_Scalar",
    "aten.pow.Scalar": "pow_Scalar",
    "aten.pow.Tensor_Scalar": "pow_Tensor_Scalar",
    "aten.pow.Tensor_Tensor": "pow_Tensor_Tensor",
    "aten.histc.default": "histc",
    "aten._addmm_activation.default": "_addmm_activation",
    # frequent and heavy
    "aten.convolution.default": "convolution",
    "aten.max_pool2d_with_indices.default": "max_pool2d_with_indices",
    "aten.avg_pool2d.default": "avg_pool2d",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "_scaled_dot_product_flash_attention_for_cpu",
    "aten.cat.default": "cat",
    "aten.cumsum.default": "cumsum",
    "aten.topk.default": "topk",
    "aten.sort.default": "sort",
    "aten.sort.stable": "sort_stable",
    "aten.nonzero.default": "nonzero",
    "aten.native_dropout.default": "native_dropout",
}
_CASTING: Final[Mapping[str, str]] = {
    "aten.fill_.Scalar": "fill__Scalar",
    "aten.scatter.value_out": "scatter_value_out",
}


def _table() -> Mapping[str, CFunction]:
    entries = {target: CFunction(symbol=f"aoti_torch_cpu_{name}") for target, name in _FUNCTIONS.items()}
    entries.update(
        (target, CFunction(symbol=f"aoti_torch_cpu_{name}", scalars="cast"))
        for target, name in _CASTING.items()
    )
    entries["aten.full.default"] = CFunction(symbol="aoti_torch_aten_full", scalars="cast")
    return MappingProxyType(entries)


C_FUNCTIONS: Final[Mapping[str, CFunction]] = _table()
"""Operator overload -> its C function."""
NUMBER_READS: Final = ("aten._local_scalar_dense.default", "aten.item.default")
"""Operator overloads that read a tensor's number, for which there is a C function of another form."""
