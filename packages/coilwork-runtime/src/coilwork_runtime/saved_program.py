"""A program as files of a folder: its bytes, its kernels with their texts, and its constants.

Wrappers save programs so, and traces hold the first two files. `coilwork_aot.save_program` makes a package of
such a folder, which runs without a compiler.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_runtime.dtypes import get_dtype_name, get_torch_dtype

PROGRAM: Final = "program.bin"
# Manifests of the kernels, with their texts.
KERNELS: Final = "kernels.bin"
# The program for people to read: nothing runs by it.
MODULE: Final = "module.py"
CONSTANTS: Final = "constants.bin"
FACTS: Final = "facts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedProgram:
    """A program, and what running it takes.

    Attributes:
        program, kernels: bytes as `coilwork_wrapper.encode_program` and `coilwork_ir.kernel_source` write
            them.
        constants: tensors by the program's keys.
        refusal: why the native executor does not run it, if it does not.
        rounds_freely: libraries that the native executor calls itself may differ from ATen in the last bits
            of results.
    """

    name: str
    program: bytes
    kernels: bytes
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    refusal: str = ""
    rounds_freely: bool = False


def write_program(folder: Path, saved: SavedProgram, *, module: str) -> None:
    """Write the files of a program, and `module`, the same program for people, into `folder`, which is made.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    constants = {key: (describe_constant(one), encode_constant(one)) for key, one in saved.constants.items()}
    facts = {
        "name": saved.name,
        "refusal": saved.refusal,
        "rounds_freely": saved.rounds_freely,
        "constants": {key: {**facts, "bytes": len(data)} for key, (facts, data) in constants.items()},
    }
    (folder / PROGRAM).write_bytes(saved.program)
    (folder / KERNELS).write_bytes(saved.kernels)
    (folder / CONSTANTS).write_bytes(b"".join(data for _, data in constants.values()))
    (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    (folder / MODULE).write_text(module, encoding="utf-8")


def read_saved_program(folder: Path) -> SavedProgram:
    """Return the program in a folder; that of a trace has no constants, and the name of the folder.

    Raises:
        OSError: a file is missing.
        ValueError, KeyError, TypeError: a file is damaged.
    """
    program, kernels = (folder / PROGRAM).read_bytes(), (folder / KERNELS).read_bytes()
    if not (folder / FACTS).exists():
        return SavedProgram(name=folder.name, program=program, kernels=kernels)
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    data, start, constants = (folder / CONSTANTS).read_bytes(), 0, {}
    for key, described in facts["constants"].items():
        end = start + described["bytes"]
        constants[key] = decode_constant(described, data[start:end])
        start = end
    return SavedProgram(
        name=facts["name"],
        program=program,
        kernels=kernels,
        constants=constants,
        refusal=facts["refusal"],
        rounds_freely=bool(facts["rounds_freely"]),
    )


# ---- constants ----


def describe_constant(value: torch.Tensor) -> dict[str, Any]:
    """Element type, layout and device, as JSON."""
    return {
        "dtype": get_dtype_name(value.dtype),
        "size": list(value.shape),
        "stride": list(value.stride()),
        "device": str(value.device),
    }


def encode_constant(value: torch.Tensor) -> bytes:
    """Return the memory from the first to the last element."""
    plain = value.detach().resolve_conj().resolve_neg()
    flat = torch.as_strided(plain, (compute_span(plain.shape, plain.stride()),), (1,)).cpu()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def decode_constant(description: Mapping[str, Any], data: bytes) -> torch.Tensor:
    """Return the tensor, on the device it was on.

    Raises:
        ValueError: the bytes are too few or too many for the description.
    """
    dtype = get_torch_dtype(description["dtype"])
    size, stride = tuple(description["size"]), tuple(description["stride"])
    span = compute_span(size, stride)
    if span * dtype.itemsize != len(data):
        raise ValueError(f"a constant of {span} elements of {dtype} has {len(data)} bytes")
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return torch.as_strided(flat.to(description["device"]), size, stride)


def compute_span(size: torch.Size | tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from the first to the last, both included."""
    if 0 in size:
        return 0
    return sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) + 1
