"""The weights of a package: one safetensors record, with each storage once.

The format: a little-endian u64 length, a JSON header of that length, then the bytes of the tensors, at
offsets that the header gives (https://github.com/huggingface/safetensors, README, "Format"). A storage that
one tensor fills is a tensor of its name; any other is a row of bytes. How tensors lie in storages is in the
package's manifest.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_aot.archive import Parts
from coilwork_aot.errors import PackageError
from coilwork_runtime.dtypes import get_dtype_name, get_torch_dtype
from coilwork_runtime.saved_program import compute_span

ALIGNMENT_BYTES: Final = 64
MOST_HEADER_BYTES: Final = 100_000_000
# Names of element types in safetensors by ours; other types are stored as bytes.
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "f64": "F64",
        "f32": "F32",
        "f16": "F16",
        "bf16": "BF16",
        "f8e4m3": "F8_E4M3",
        "f8e5m2": "F8_E5M2",
        "i64": "I64",
        "i32": "I32",
        "i16": "I16",
        "i8": "I8",
        "u64": "U64",
        "u32": "U32",
        "u16": "U16",
        "u8": "U8",
        "bool": "BOOL",
    }
)
_TYPES: Final = MappingProxyType({given: name for name, given in _NAMES.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlace:
    """How a tensor lies in a storage.

    Attributes:
        storage: key of the storage; empty if the package does not bring it.
        dtype: element type, as kernels name it.
        size, stride: in elements.
        offset: of the first element, in elements from the storage's beginning.
    """

    storage: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def end_bytes(self) -> int:
        """Return how many bytes the storage has to have."""
        return (self.offset + compute_span(self.size, self.stride)) * get_torch_dtype(self.dtype).itemsize


# ---- Collecting ----


@dataclass(slots=True)
class _Storage:
    """The part of a storage that tensors use, in bytes of it; `keys` are the tensors by name."""

    first: int
    last: int
    tensors: dict[str, torch.Tensor]


def collect_storages(
    tensors: Mapping[str, torch.Tensor],
) -> tuple[dict[str, TensorPlace], dict[str, torch.Tensor]]:
    """Return where each tensor lies, and the storages by key: a plain tensor, or a row of bytes.

    A storage is called as the first tensor that fills it, else as the first that uses it. Tensors on `meta`
    have no storage.
    """
    storages: dict[tuple[torch.device, int], _Storage] = {}
    for name, value in tensors.items():
        if value.is_meta:
            continue
        first = int(value.storage_offset()) * value.element_size()
        last = first + compute_span(value.shape, value.stride()) * value.element_size()
        at = (value.device, value.untyped_storage().data_ptr() if last > first else -1 - len(storages))
        known = storages.setdefault(at, _Storage(first, last, {}))
        known.first, known.last = min(known.first, first), max(known.last, last)
        known.tensors[name] = value
    places = {name: _place_of(value, "", 0) for name, value in tensors.items()}
    kept: dict[str, torch.Tensor] = {}
    for storage in storages.values():
        whole = next((name for name, one in storage.tensors.items() if _is_filled_by(one, storage)), None)
        key = whole or next(iter(storage.tensors))
        kept[key] = (storage.tensors[key].detach() if whole else _view_bytes(storage)).cpu().contiguous()
        for name, value in storage.tensors.items():
            places[name] = _place_of(value, key, storage.first)
    return places, kept


def _place_of(value: torch.Tensor, key: str, first: int) -> TensorPlace:
    offset_bytes = value.storage_offset() * value.element_size() - first if key else 0
    if offset_bytes % value.element_size():
        raise PackageError(
            "unwritable",
            f"a tensor of {value.dtype} begins inside of an element of its storage",
            remedy="clone it before exporting",
        )
    return TensorPlace(
        storage=key,
        dtype=get_dtype_name(value.dtype),
        size=tuple(value.shape),
        stride=tuple(value.stride()),
        offset=offset_bytes // value.element_size(),
    )


def _is_filled_by(value: torch.Tensor, storage: _Storage) -> bool:
    size = value.numel() * value.element_size()
    return (
        value.is_contiguous()
        and size == storage.last - storage.first
        and get_dtype_name(value.dtype) in _NAMES
    )


def _view_bytes(storage: _Storage) -> torch.Tensor:
    value = next(iter(storage.tensors.values())).detach()
    raw = torch.empty(0, dtype=torch.uint8, device=value.device)
    return raw.set_(value.untyped_storage(), storage.first, (storage.last - storage.first,), (1,))


# ---- The record ----


def encode_weights(storages: Mapping[str, torch.Tensor]) -> Parts:
    """Return the safetensors bytes of contiguous `storages` on the CPU.

    The parts are views of their memory, so `storages` has to outlive them.
    """
    header: dict[str, Any] = {}
    at = 0
    for key, value in sorted(storages.items()):
        size = value.numel() * value.element_size()
        header[key] = {
            "dtype": _NAMES[get_dtype_name(value.dtype)],
            "shape": list(value.shape),
            "data_offsets": [at, at + size],
        }
        at += size + -size % ALIGNMENT_BYTES
        # safetensors allows no gaps, so padding is a tensor, too
        if size % ALIGNMENT_BYTES:
            header[f"{key}/padding"] = {"dtype": "U8", "shape": [at - header[key]["data_offsets"][1]]}
            header[f"{key}/padding"]["data_offsets"] = [header[key]["data_offsets"][1], at]
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT_BYTES)
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    for _, value in sorted(storages.items()):
        data = _view_memory(value)
        parts += [data, bytes(-len(data) % ALIGNMENT_BYTES)]
    return parts


def _view_memory(value: torch.Tensor) -> memoryview:
    size = value.numel() * value.element_size()
    return (
        memoryview((ctypes.c_char * size).from_address(value.data_ptr())).cast("B")
        if size
        else memoryview(b"")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor of a safetensors record; `data` are its bytes, without a copy."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def read_weights(
    data: memoryview,
    *,
    fault: str = "the weights cannot be read",
    remedy: str = "copy or export the package again",
) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors record.

    Raises:
        PackageError: the record is damaged, or describes what is not there: that is the `fault`.
    """
    try:
        return _read_weights(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise PackageError(
            "damaged-weights",
            fault,
            reason=f"{type(error).__name__}: {error}",
            remedy=remedy,
        ) from error


def _read_weights(data: memoryview) -> dict[str, StoredTensor]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MOST_HEADER_BYTES):
        raise ValueError(f"the header says that it has {length} bytes")
    body = data[8 + length :]
    tensors: dict[str, StoredTensor] = {}
    for key, entry in json.loads(bytes(data[8 : 8 + length])).items():
        if key == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if not all(type(one) is int and one >= 0 for one in (begin, end, *shape)) or end > len(body):
            raise ValueError(f"{key} is said to lie where no bytes are")
        dtype = _TYPES[entry["dtype"]]
        size = get_torch_dtype(dtype).itemsize
        for extent in shape:
            size *= extent
        if size != end - begin:
            raise ValueError(f"{key} has {end - begin} bytes and a shape of {size}")
        tensors[key] = StoredTensor(dtype=dtype, shape=shape, data=body[begin:end])
    return tensors


def view_row(data: memoryview) -> torch.Tensor:
    """Return a storage as a row of bytes on the CPU, without a copy."""
    return torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)


def make_tensor(place: TensorPlace, storage: torch.Tensor) -> torch.Tensor:
    """Return the tensor at `place` of a row of bytes.

    Raises:
        PackageError: the storage is too short.
    """
    dtype = get_torch_dtype(place.dtype)
    values = (*place.size, *place.stride, place.offset)
    if len(place.size) != len(place.stride) or min(values) < 0 or place.end_bytes > storage.numel():
        raise PackageError(
            "damaged-weights",
            f"a tensor of {list(place.size)} does not lie in its storage of {storage.numel()} bytes",
            remedy="copy or export the package again",
        )
    made = torch.empty(0, dtype=dtype, device=storage.device)
    return made.set_(
        storage.untyped_storage(), _find_first(storage, dtype) + place.offset, place.size, place.stride
    )


def _find_first(storage: torch.Tensor, dtype: torch.dtype) -> int:
    """Return the offset of `storage` in its memory, in elements of `dtype`."""
    return storage.storage_offset() // dtype.itemsize
