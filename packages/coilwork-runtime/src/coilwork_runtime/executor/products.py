"""Matrix products that the native executor may hand to cuBLASLt itself: which calls, and under which settings
of torch.

ATen works out descriptors, asks for an algorithm and looks after a workspace in every call. The executor does
so once per shape (native/libraries/products.hpp). Results may differ from ATen's in the last bits, where the
library is asked for an algorithm in another way; they are the same in every call. What is refused is done by
ATen.

A call says that it implements a product, of two matrices or of batches of them, or one with an activation:
    its arguments are those of ATen's
operators.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from coilwork_runtime.executor.libraries import CalledLibrary
from coilwork_runtime.executor.program_reader import Argument, RecordedCall, Slot
from coilwork_runtime.torch_compat import product_settings

_PRODUCT: Final = 1
_BATCHED: Final = "batched product"
_ACTIVATED: Final = "activated product"
# By what a call implements: how many tensors it may read, of which those before the last two are added.
_OPERANDS: Final[Mapping[str, tuple[int, ...]]] = {"product": (2, 3), _BATCHED: (2,), _ACTIVATED: (3,)}
# As the library's epilogues are numbered (native/interfaces/cublaslt.hpp).
_RELU: Final = 2
_GELU: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLibrary(CalledLibrary):
    """Where products are computed; `settings` are as `product_settings`."""

    NAME: ClassVar[str] = "cuBLASLt"
    WORK: ClassVar[str] = "products"
    settings: Callable[[], int] = product_settings


def product_bytes(call: RecordedCall, library: ProductLibrary | None) -> bytes | None:
    """Return what the plan of a call says of a product (native/program/plans.hpp); `None` if it is none that
    the library does.
    """
    count = len(call.args)
    device = None if library is None else library.number(call.device)
    result = call.kwargs.get("out")
    known = _OPERANDS.get(call.implements, ())
    if count not in known or device is None or not isinstance(result, Slot):
        return None
    slots = [value for value in call.args if isinstance(value, Slot)]
    scales = dict(call.kwargs)
    del scales["out"]
    activation = 0
    if call.implements == _ACTIVATED:
        activation = _GELU if scales.pop("use_gelu", False) else _RELU
    adds = count == 2 or not _is(0, scales.get("beta"))
    if not adds:
        del scales["beta"]
    if len(slots) != count or not all(_is(1, value) for value in scales.values()):
        return None
    *bias, first, second = slots if adds else slots[1:]
    batched = call.implements == _BATCHED
    data = bytes((_PRODUCT, batched)) + struct.pack("<III", first.number, second.number, result.number)
    data += bytes((len(bias),)) + b"".join(struct.pack("<I", one.number) for one in bias)
    return data + bytes((activation,)) + struct.pack("<i", device)


def _is(number: int, value: Argument) -> bool:
    return isinstance(value, int | float) and value == number
