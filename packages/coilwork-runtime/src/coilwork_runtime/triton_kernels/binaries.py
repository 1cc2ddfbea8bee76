"""A compiled Triton kernel, and the bytes it is stored as."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAGIC: Final = b"COILTRIT"
_LENGTH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBinary:
    """Machine code of one kernel, and how to launch it.

    Attributes:
        image: a cubin or a code object.
        name: function in `image`.
        shared_bytes: dynamic shared memory per block.
        threads: per block.
        scratch_bytes: global memory that the compiler wants per block, almost always 0.
        cluster: blocks that share their memory, of which the grid counts clusters; 1 for none.
        cooperative: all blocks run at once and may wait for each other.
    """

    image: bytes
    name: str
    shared_bytes: int
    threads: int
    scratch_bytes: int = 0
    cluster: int = 1
    cooperative: bool = False


def binary_from_reply(metadata: Mapping[str, Any], image: bytes) -> GpuBinary:
    """Return what a worker answered.

    Raises:
        ValueError: the kernel wants a kind of launch that generated code does not use.
    """
    for wish in ("launch_pdl", "profile_scratch_size"):
        if metadata[wish]:
            raise ValueError(f"the compiled kernel asks for {wish}, which is not supported")
    return GpuBinary(
        image=image,
        name=metadata["name"],
        shared_bytes=metadata["shared"],
        threads=metadata["num_warps"] * metadata["warp_size"],
        # of a cluster's blocks each has its own
        scratch_bytes=metadata["global_scratch_size"] * metadata["num_ctas"],
        cluster=metadata["num_ctas"],
        cooperative=bool(metadata["launch_cooperative_grid"]),
    )


def encode_binary(binary: GpuBinary) -> bytes:
    """The stored form."""
    facts: dict[str, str | int] = {
        "name": binary.name,
        "shared_bytes": binary.shared_bytes,
        "threads": binary.threads,
        "scratch_bytes": binary.scratch_bytes,
    }
    # said only where it is so: what was stored before stays what it is
    if binary.cluster != 1:
        facts["cluster"] = binary.cluster
    if binary.cooperative:
        facts["cooperative"] = 1
    header = json.dumps(facts).encode()
    return MAGIC + _LENGTH.pack(len(header)) + header + binary.image


def decode_binary(data: bytes) -> GpuBinary:
    """Inverse of `encode_binary`.

    Raises:
        ValueError: the bytes are something else.
    """
    start = len(MAGIC) + _LENGTH.size
    if not data.startswith(MAGIC) or len(data) < start:
        raise ValueError("no compiled Triton kernel")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    header = json.loads(data[start : start + length])
    image = data[start + length :]
    if not isinstance(header, dict) or not image:
        raise ValueError("no compiled Triton kernel")
    numbers = {field: header.get(field) for field in ("shared_bytes", "threads", "scratch_bytes")}
    shared, threads, scratch = numbers.values()
    cluster, cooperative = header.get("cluster", 1), header.get("cooperative", 0)
    name = header.get("name")
    if not (
        isinstance(name, str)
        and isinstance(shared, int)
        and isinstance(threads, int)
        and isinstance(scratch, int)
        and isinstance(cluster, int)
        and isinstance(cooperative, int)
    ):
        raise ValueError("no compiled Triton kernel")
    return GpuBinary(
        image=image,
        name=name,
        shared_bytes=shared,
        threads=threads,
        scratch_bytes=scratch,
        cluster=cluster,
        cooperative=bool(cooperative),
    )
