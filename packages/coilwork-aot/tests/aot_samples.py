"""A package without programs that run, as the tests of the file's form need it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import torch

from coilwork_aot.archive import Archive, encode_archive, read_headers
from coilwork_aot.loading import verify_archive
from coilwork_aot.manifest import (
    DIGEST,
    MANIFEST,
    WEIGHTS,
    Leaf,
    Manifest,
    RecordFacts,
    StateEntry,
    TargetFacts,
    Variant,
    encode_manifest,
)
from coilwork_aot.record_hashes import hash_record
from coilwork_aot.trees import Tree
from coilwork_aot.weights import collect_storages, encode_weights

PROGRAM, KERNELS, CALLS = "programs/a.bin", "programs/a.kernels", "programs/a.calls"
STATE: Mapping[str, torch.Tensor] = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3)}


def make_manifest(records: Mapping[str, bytes]) -> Manifest:
    places, _ = collect_storages(STATE)
    leaf = Leaf(kind="tensor", name="x", position=0, dtype="f32", device="cpu", sizes=("s0",), strides=(1,))
    variant = Variant(
        target=TargetFacts(device="cpu", name="x86-64-avx2"),
        inputs=(leaf,),
        results=(Leaf(kind="tensor", position=0),),
        in_tree=Tree("tuple", None, (Tree("tuple", None, (Tree(),)), Tree("dict", [], ()))),
        out_tree=Tree(),
        symbols={"s0": (2, 64)},
        state=(0, 1),
        constants={},
        program=PROGRAM,
        kernels=KERNELS,
        calls=CALLS,
        binaries={},
        roles="takes 3\n",
        devices=("cpu",),
    )
    return Manifest(
        schema=3,
        name="sample",
        made_by={"coilwork-aot": "0"},
        torch=("2.11", "2.14"),
        runtime="0.1.0",
        entries={"forward": (variant,)},
        state=tuple(
            StateEntry(name=name, kind="parameter", is_persistent=True, place=places[name]) for name in STATE
        ),
        records={
            name: RecordFacts(size=len(data), sha256=hash_record(data)) for name, data in records.items()
        },
    )


def make_records() -> dict[str, bytes]:
    _, storages = collect_storages(STATE)
    weights = b"".join(bytes(part) for part in encode_weights(storages))
    return {PROGRAM: b"a program", KERNELS: b"kernels", CALLS: b"calls", WEIGHTS: weights}


def make_package(manifest: bytes | None = None, records: Mapping[str, bytes] | None = None) -> bytes:
    """The bytes of a package; `manifest` and `records` replace its own, and the digest is right."""
    own = make_records()
    text = encode_manifest(make_manifest(own)) if manifest is None else manifest
    digest = hashlib.sha256(text).hexdigest().encode()
    parts = {MANIFEST: text, DIGEST: digest, **(own if records is None else records)}
    return encode_archive({name: (data,) for name, data in parts.items()})


def verify(data: bytes) -> Manifest:
    memory = bytearray(data)
    return verify_archive(Archive(records=read_headers(memory, "sample"), memory=memory), "sample")


__all__ = ["make_manifest", "make_package", "make_records", "replace", "verify"]
