"""Find the vendor's libraries that the native executor calls itself: cuBLASLt, cuDNN, and graphs of the
driver.

ATen works out descriptors, asks for an algorithm and looks after a workspace in every call. The executor
does so once per shape (native/libraries/). Results may differ from ATen's in the last bits, where the
library is asked in another way or ATen would take an engine that does not repeat its bits; they are the same
in every call. ATen does what is refused here.

The executor listens to a program's calls (native/replay/replay.hpp). Stretches of launches, products and
convolutions in its capture regions that did not change become driver graphs, which the driver takes in about
the time of two launches. Each call still works out all of it, and does what is not word for word the same as
if there were no graphs. So graphs need no fixed sizes, inputs or memory, and hold none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from coilwork_runtime.devices import find_device_number
from coilwork_runtime.executor.program_reader import Argument, RecordedCall, Slot
from coilwork_runtime.torch_compat import get_convolution_settings, get_product_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledLibrary:
    """A library, and when it is called.

    Attributes:
        NAME: of the library, for people.
        WORK: what it computes: the extension's function that opens it, and the option that decides about it.
        path: of the library; empty for the one that torch has loaded.
        device: type of the devices that it computes on.
        settings: what torch says at present; a negative number leaves everything to ATen.
        required: whether it is an error if the library cannot be opened; else ATen does everything then.
    """

    NAME: ClassVar[str]
    WORK: ClassVar[str]
    path: str = ""
    device: str = "cuda"
    settings: Callable[[], int]
    required: bool = True

    def open(self, extension: Any) -> int:
        """Return the address that the extension knows it by.

        Raises:
            ImportError: it is not to be had.
        """
        address: int = getattr(extension, self.WORK)(self.path)
        return address

    def number(self, device: str) -> int | None:
        """Return the number of `device` in plans: its index, -1 for the CPU of tests; `None` if the library
        does not compute there.
        """
        is_served = device.partition(":")[0] == self.device
        return find_device_number(device) if is_served else None


# ---- matrix products ----


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
    """The library for matrix products; `settings` are as `get_product_settings`."""

    NAME: ClassVar[str] = "cuBLASLt"
    WORK: ClassVar[str] = "products"
    settings: Callable[[], int] = get_product_settings


def encode_product(call: RecordedCall, library: ProductLibrary | None) -> bytes | None:
    """Return the part of a call's plan about a product (native/program/plans.hpp); `None` if the library does
    not do the call.
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


# ---- convolutions ----


_CONVOLUTION: Final = 2
_FORWARD: Final = "convolution"
_GRADIENTS: Final = "convolution gradients"
# The tensors that a convolution relates, as native/libraries/convolution_library.hpp numbers them, and no
# tensor.
_IMAGE, _WEIGHT, _SUMS, _NONE = 0, 1, 2, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionLibrary(CalledLibrary):
    """The library for convolutions; `settings` are as `get_convolution_settings`."""

    NAME: ClassVar[str] = "cuDNN"
    WORK: ClassVar[str] = "convolutions"
    settings: Callable[[], int] = get_convolution_settings


def encode_convolution(call: RecordedCall, library: ConvolutionLibrary | None) -> bytes | None:
    """Return the part of a call's plan about a convolution (native/program/plans.hpp); `None` if the library
    does not do the call.
    """
    device = None if library is None else library.number(call.device)
    if device is None or call.kwargs:
        return None
    if call.implements == _FORWARD and len(call.args) == 9:
        value, weight, bias, *shape = call.args
        transposed = shape[3]
        given = {_SUMS if transposed else _IMAGE: value, _WEIGHT: weight}
        computed = [_IMAGE if transposed else _SUMS]
        return (
            None if bias is not None else _encode_convolution(given, computed, (*shape[:3], shape[5]), device)
        )
    if call.implements == _GRADIENTS and len(call.args) == 11:
        gradient, value, weight, _, *shape, mask = call.args
        transposed = shape[3]
        given = {_WEIGHT: weight}
        given |= {_IMAGE: gradient, _SUMS: value} if transposed else {_IMAGE: value, _SUMS: gradient}
        computed = [_SUMS if transposed else _IMAGE, _WEIGHT, _NONE]
        wanted = [role if want is True else _NONE for role, want in zip(computed, mask, strict=True)]
        return (
            None
            if mask[2] is not False
            else _encode_convolution(given, wanted, (*shape[:3], shape[5]), device)
        )
    return None


def _encode_convolution(
    given: Mapping[int, Argument], computed: Sequence[int], shape: Sequence[Argument], device: int
) -> bytes | None:
    stride, padding, dilation, groups = shape
    lists = [_list_numbers(values, stride) for values in (stride, padding, dilation)]
    if not all(isinstance(value, Slot) for value in given.values()) or not isinstance(groups, int):
        return None
    if any(values is None for values in lists):
        return None
    slots = b"".join(
        b"\1" + struct.pack("<I", given[role].number) if role in given else b"\0"
        for role in (_IMAGE, _WEIGHT, _SUMS)
    )
    numbers = b"".join(struct.pack(f"<I{len(values)}q", len(values), *values) for values in lists if values)
    roles = struct.pack(f"<I{len(computed)}i", len(computed), *computed)
    return bytes((_CONVOLUTION,)) + slots + roles + numbers + struct.pack("<qi", groups, device)


def _list_numbers(values: Argument, like: Argument) -> list[int] | None:
    """One number for each dimension of space; `None` where some are only known in a call."""
    if not isinstance(values, list) or not values or not all(type(value) is int for value in values):
        return None
    return values if len(values) == len(like) else None


# ---- driver graphs ----


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGraphs:
    """The source of driver graphs.

    Attributes:
        path: of the driver's library; empty for the one that is loaded.
    """

    path: str = ""

    def open(self, extension: Any) -> int:
        """Return the address that the extension knows them by; 0 if they are not to be had."""
        try:
            address: int = extension.graphs(self.path)
        except ImportError:
            return 0
        return address
