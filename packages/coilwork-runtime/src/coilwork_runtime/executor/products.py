"""Matrix products that the native executor may hand to cuBLASLt itself: which calls, and under which settings of torch.

ATen works out descriptors, asks for an algorithm and looks after a workspace in every call. The executor does so once per
shape (native/products.hpp). Results may differ from ATen's in the last bits, where the library is asked for an algorithm in
another way; they are the same in every call. What is refused is done by ATen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coilwork_runtime.executor.recorded_calls import Argument, RecordedCall, Slot
from coilwork_runtime.torch_compat import product_settings

_PRODUCT: Final = 1
_OPERANDS: Final[Mapping[str, int]] = {"aten.mm.out": 2, "aten.bmm.out": 2, "aten.addmm.out": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLibrary:
    """Where products are computed.

    Attributes:
        path: of the library; empty for the cuBLASLt that torch has loaded.
        device: type of the devices that it computes on.
        settings: what torch says at present, as `product_settings`; a negative number leaves all products to ATen.
        required: whether it is an error if the library cannot be opened; else ATen does all products then.
    """

    path: str = ""
    device: str = "cuda"
    settings: Callable[[], int] = product_settings
    required: bool = True

    def open(self, extension: Any) -> int:
        """The address that the extension knows it by.

        Raises:
            ImportError: it is not to be had.
        """
        address: int = extension.products(self.path)
        return address


def product_bytes(call: RecordedCall, library: ProductLibrary | None) -> bytes | None:
    """What the plan of a call says of a product (native/plans.hpp); `None` if it is none that the library does."""
    count = _OPERANDS.get(call.target)
    kind, _, index = call.device.partition(":")
    result = call.kwargs.get("out")
    if (
        library is None
        or count is None
        or kind != library.device
        or not isinstance(result, Slot)
        or len(call.args) != count
    ):
        return None
    slots = [value for value in call.args if isinstance(value, Slot)]
    scales = [value for name, value in call.kwargs.items() if name != "out"]
    if len(slots) != count or not all(_is_one(value) for value in scales):
        return None
    *bias, first, second = slots
    batched = call.target == "aten.bmm.out"
    data = bytes((_PRODUCT, batched)) + struct.pack("<III", first.number, second.number, result.number)
    data += bytes((len(bias),)) + b"".join(struct.pack("<I", one.number) for one in bias)
    return data + struct.pack("<i", int(index or 0) if kind == "cuda" else -1)


def _is_one(value: Argument) -> bool:
    return isinstance(value, int | float) and value == 1
