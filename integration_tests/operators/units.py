"""What a sweep consists of: units of work, each one operator called one way with one dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

# What is most used comes first: an unfinished sweep has seen it.
DTYPES: Final = (
    "float32 int64 bool bfloat16 float16 float64 uint8 int32 complex64 int16 int8 complex128 complex32 "
    "uint16 uint32 "
    "uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
).split()
WAYS_OF_A_SWEEP: Final = ("forward", "errors", "backward", "dynamic", "dynamic_backward")
# Only in these are all ways tried unless more is asked for.
FULLY: Final = ("float32",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One operator, called one way with one dtype (none for errors)."""

    op: str
    way: str
    dtype: str

    @property
    def key(self) -> str:
        """The unit as text, e.g. `"add|forward|float32"`."""
        return f"{self.op}|{self.way}|{self.dtype}"

    @staticmethod
    def of(key: str) -> Unit:
        """The unit of a key."""
        op, way, dtype = key.split("|")
        return Unit(op=op, way=way, dtype=dtype)


def chosen_names(database: Mapping[str, Any], *, shard: str, only: str) -> list[str]:
    """The names in shard `i/n`: every n-th from the i-th; `only` is a list of names, `a,b`, or a prefix,
    `nn.*`.
    """
    names = sorted(database)
    if only:
        wanted = only.split(",")
        names = [
            name
            for name in names
            if any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in wanted)
        ]
    index, count = map(int, shard.split("/"))
    return names[index::count]


def units(
    database: Mapping[str, Any],
    names: Sequence[str],
    *,
    ways: Sequence[str],
    dtypes: Sequence[str],
    device: str,
    fully: Sequence[str] = FULLY,
) -> list[Unit]:
    """Everything to do, in order: by dtype, then by way, then by operator. Ways but `forward` only for dtypes
    in `fully`.

    An operator that knows none of the dtypes in `fully` is tried in all ways with the first dtype it knows.
    """
    found = []
    for dtype in dtypes:
        for way in ways:
            if way == "errors":
                found += [Unit(op=name, way=way, dtype="") for name in names if dtype == dtypes[0]]
                continue
            found += [
                Unit(op=name, way=way, dtype=dtype)
                for name in names
                if supports(database[name], way, dtype, device)
                and (
                    way == "forward" or dtype in fully or dtype == _main_dtype(database[name], fully, device)
                )
            ]
    return found


def supports(op: Any, way: str, dtype: str, device: str) -> bool:
    """Whether the database says that `op` can be called so."""
    if way == "inplace" and op.inplace_variant is None:
        return False
    if way == "out" and not op.supports_out:
        return False
    backward = way in ("backward", "dynamic_backward")
    if backward and not op.supports_autograd:
        return False
    known = op.supported_backward_dtypes(device) if backward else op.supported_dtypes(device)
    return getattr(torch, dtype) in known


def _main_dtype(op: Any, fully: Sequence[str], device: str) -> str:
    known = op.supported_dtypes(device)
    if any(getattr(torch, dtype) in known for dtype in fully):
        return ""
    return next((dtype for dtype in DTYPES if getattr(torch, dtype) in known), "")
