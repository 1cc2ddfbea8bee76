"""The file of an artefact: a zip archive of named records, each with its SHA-256 in a manifest.

`manifest.json` holds `format`, `runtime` (the version that wrote it), `records` (name -> SHA-256) and
`facts` (what the records are); `manifest.sha256` is its own digest. Constants are records of raw bytes.
Nothing is pickled, and nothing is unpacked to disk.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_runtime.dtypes import get_dtype_name, get_torch_dtype
from coilwork_runtime.errors import ArtifactError

FORMAT: Final = 7
# The record of the program as bytes.
PROGRAM: Final = "program.bin"
# Manifests of the kernels, with their texts.
KERNELS: Final = "kernels.bin"
ROLES: Final = "roles.txt"
# The program for people to read; not in every artefact.
MODULE: Final = "module.py"
MANIFEST: Final = "manifest.json"
DIGEST: Final = "manifest.sha256"
# Equal contents give equal files.
EPOCH: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The verified contents of the file."""

    runtime: str
    facts: Mapping[str, Any]
    contents: Mapping[str, bytes]


def write_records(path: Path, records: Records) -> None:
    """Write the file; it appears complete or not at all.

    Raises:
        ArtifactError: it cannot be written.
    """
    manifest = json.dumps(
        {
            "format": FORMAT,
            "runtime": records.runtime,
            "facts": records.facts,
            "records": {name: _digest(data) for name, data in sorted(records.contents.items())},
        },
        indent=1,
        sort_keys=True,
    ).encode()
    try:
        # not mkstemp: the file should be as readable as the user's other files
        partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            with zipfile.ZipFile(partial, "w") as archive:
                _add(archive, MANIFEST, manifest)
                _add(archive, DIGEST, _digest(manifest).encode())
                for name, data in sorted(records.contents.items()):
                    _add(archive, name, data)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise ArtifactError(
            "unwritable",
            f"the artefact {path} cannot be written",
            reason=str(error),
            remedy="choose a folder that exists, is yours, and has space",
        ) from error


def read_records(path: Path) -> Records:
    """Read and verify the file.

    Raises:
        ArtifactError: it is missing, is no artefact, is damaged, or has a newer format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive)
    except OSError as error:
        raise ArtifactError(
            "unreadable", f"the artefact {path} cannot be read", reason=str(error), remedy="check the path"
        ) from error
    # a flipped byte in zip's own structures may surface as any of these
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        KeyError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise _damage_error(path, f"{type(error).__name__}: {error}") from error


def _read(path: Path, archive: zipfile.ZipFile) -> Records:
    names = set(archive.namelist())
    if MANIFEST not in names or DIGEST not in names:
        raise ArtifactError(
            "no-artifact",
            f"{path} is a zip archive but no artefact",
            reason=f"it holds no {MANIFEST}",
            remedy="name a file that save_artifact wrote",
        )
    text = archive.read(MANIFEST)
    if _digest(text).encode() != archive.read(DIGEST):
        raise _damage_error(path, "the manifest differs from its digest")
    manifest = json.loads(text)
    if manifest["format"] != FORMAT:
        raise ArtifactError(
            "artifact-format",
            f"{path} has format {manifest['format']}; this runtime reads format {FORMAT}",
            reason=f"it was written by coilwork-runtime {manifest['runtime']}",
            remedy="install that version of coilwork-runtime, or save the artefact again",
        )
    contents: dict[str, bytes] = {}
    for name, digest in manifest["records"].items():
        contents[name] = archive.read(name)
        if _digest(contents[name]) != digest:
            raise _damage_error(path, f"record {name} differs from its digest")
    return Records(runtime=manifest["runtime"], facts=manifest["facts"], contents=contents)


def _damage_error(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(
        "damaged-artifact",
        f"the artefact {path} is damaged or cut short",
        reason=reason,
        remedy="copy or save it again",
    )


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, EPOCH), data, compress_type=zipfile.ZIP_STORED)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
    """The memory from the first to the last element."""
    plain = value.detach().resolve_conj().resolve_neg()
    flat = torch.as_strided(plain, (compute_span(plain.shape, plain.stride()),), (1,)).cpu()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size()) if flat.numel() else b""


def decode_constant(description: Mapping[str, Any], data: bytes) -> torch.Tensor:
    """The tensor, on the device it was on.

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
