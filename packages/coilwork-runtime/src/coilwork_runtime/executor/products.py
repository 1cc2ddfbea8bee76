"""Matrix products that the native executor may hand to cuBLASLt itself: which calls, and under which settings of torch.

ATen works out descriptors, asks for an algorithm and looks after a workspace in every call. The executor does so once per
shape (native/libraries/products.hpp). Results may differ from ATen's in the last bits, where the library is asked for an algorithm in
another way; they are the same in every call. What is refused is done by ATen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from coilwork_runtime.executor.libraries import CalledLibrary
from coilwork_runtime.executor.recorded_calls import Argument, RecordedCall, Slot
from coilwork_runtime.torch_compat import product_settings

_PRODUCT: Final = 1
_OPERANDS: Final[Mapping[str, int]] = {"aten.mm.out": 2, "aten.bmm.out": 2, "aten.addmm.out": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLibrary(CalledLibrary):
    """Where products are computed; `settings` are as `product_settings`."""

    NAME: ClassVar[str] = "cuBLASLt"
    WORK: ClassVar[str] = "products"
    settings: Callable[[], int] = product_settings


def product_bytes(call: RecordedCall, library: ProductLibrary | None) -> bytes | None:
    """What the plan of a call says of a product (native/program/plans.hpp); `None` if it is none that the library does."""
    count = _OPERANDS.get(call.target)
    device = None if library is None else library.number(call.device)
    result = call.kwargs.get("out")
    if count is None or device is None or not isinstance(result, Slot) or len(call.args) != count:
        return None
    slots = [value for value in call.args if isinstance(value, Slot)]
    scales = [value for name, value in call.kwargs.items() if name != "out"]
    if len(slots) != count or not all(_is_one(value) for value in scales):
        return None
    *bias, first, second = slots
    batched = call.target == "aten.bmm.out"
    data = bytes((_PRODUCT, batched)) + struct.pack("<III", first.number, second.number, result.number)
    data += bytes((len(bias),)) + b"".join(struct.pack("<I", one.number) for one in bias)
    return data + struct.pack("<i", device)


def _is_one(value: Argument) -> bool:
    return isinstance(value, int | float) and value == 1
