"""Make a package of compiled programs: kernels as binaries, weights once, hashes of everything."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_aot.archive import Parts, encode_archive, write_archive
from coilwork_aot.manifest import (
    DIGEST,
    MANIFEST,
    SCHEMA,
    WEIGHTS,
    Binary,
    Leaf,
    Manifest,
    RecordFacts,
    StateEntry,
    TargetFacts,
    Variant,
    encode_manifest,
)
from coilwork_aot.record_hashes import hash_parts
from coilwork_aot.trees import Tree
from coilwork_aot.weights import collect_storages, encode_weights
from coilwork_runtime import Builder
from coilwork_runtime.devices import find_device_number
from coilwork_runtime.executor.choice import Loadable
from coilwork_runtime.executor.portable_plans import encode_plans
from coilwork_runtime.manifest.kernel_manifest import KernelSpec, encode_kernels
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.triton_kernels.compilation import GpuBinary, encode_binary
from coilwork_runtime.triton_kernels.versions import get_version
from coilwork_runtime.version import __version__ as runtime_version

Chosen = Sequence[tuple[Mapping[str, int], GpuBinary]]
"""Of each version of a kernel, a configuration and its machine code."""
MACHINES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"x86-64": ("x86_64", "amd64", "AMD64"), "aarch64": ("aarch64", "arm64")}
)
"""Names of machines that run code for targets that begin so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """A program as a compiler hands it over.

    Attributes:
        graph: bytes of the program and its kernels, and its constants.
        roles: text of the roles around the program; they name no functions.
        builder: builds its kernels, or has built them.
        target: name of the target.
        rounds_freely: results may differ from eager's in their last bits.
        chosen: what to package of kernels by name; of others the best guesses.
    """

    graph: Loadable
    roles: str
    builder: Builder
    target: str
    rounds_freely: bool
    chosen: Mapping[str, Chosen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryProgram:
    """A program with its caller's side: an entry point, for some inputs and one target.

    Attributes:
        state: names of its first inputs, in order.
    """

    name: str
    compiled: CompiledProgram
    inputs: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    in_tree: Tree
    out_tree: Tree
    symbols: Mapping[str, tuple[int, int]]
    state: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateValue:
    """A state that entry points share, by name."""

    kind: Any
    is_persistent: bool
    value: torch.Tensor


@dataclass(slots=True)
class _Contents:
    """The records of a package that is being made; equal bytes are one record."""

    records: dict[str, Parts] = field(default_factory=dict)

    def add(self, folder: str, data: bytes, ending: str) -> str:
        name = f"{folder}/{hashlib.sha256(data).hexdigest()[:32]}{ending}"
        self.records[name] = (data,)
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A package in memory.

    Attributes:
        contents: its records. Those of weights are views of the memory of `storages`.
        digest: SHA-256 of the manifest, by which `load` can insist on this package.
    """

    contents: Mapping[str, Parts]
    digest: str
    storages: Mapping[str, torch.Tensor]

    def write(self, path: Path) -> None:
        """Write the file; it appears complete or not at all.

        Raises:
            PackageError: it cannot be written.
        """
        write_archive(path, self.contents)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        return encode_archive(self.contents)


def make_package(
    *,
    name: str,
    entries: Sequence[EntryProgram],
    state: Mapping[str, StateValue],
    made_by: Mapping[str, str],
    torch_range: tuple[str, str],
    keeps_texts: bool = False,
) -> Package:
    """Make a package of programs and the state that they share.

    Equal arguments give equal bytes. State on `meta` is described without values. With `keeps_texts`, the
    package holds the texts of its kernels, for people.

    Raises:
        PackageError: a state cannot be stored.
        KernelBuildError, MissingCompilerError, MissingTritonError: a kernel does not build.
    """
    collected = _Contents()
    state = dict(state)
    variants: dict[str, list[Variant]] = {}
    for number, entry in enumerate(entries):
        constants = {key: f"{entry.name}.{number}.{key}" for key in sorted(entry.compiled.graph.constants)}
        for key, unique in constants.items():
            value = entry.compiled.graph.constants[key]
            state[unique] = StateValue(kind="constant", is_persistent=False, value=value)
        numbers = {one: position for position, one in enumerate(state)}
        variant = _make_variant(entry, constants, numbers, collected, keeps_texts=keeps_texts)
        variants.setdefault(entry.name, []).append(variant)
    places, storages = collect_storages({key: one.value for key, one in state.items()})
    described = tuple(
        StateEntry(name=key, kind=one.kind, is_persistent=one.is_persistent, place=places[key])
        for key, one in state.items()
    )
    records = dict(sorted(collected.records.items()))
    if storages:
        records[WEIGHTS] = encode_weights(storages)
    manifest = encode_manifest(
        Manifest(
            schema=SCHEMA,
            name=name,
            made_by=dict(made_by),
            torch=torch_range,
            runtime=runtime_version,
            entries={key: tuple(one) for key, one in variants.items()},
            state=described,
            records={key: _describe_record(parts) for key, parts in records.items()},
        )
    )
    digest = hashlib.sha256(manifest).hexdigest()
    contents = {MANIFEST: (manifest,), DIGEST: (digest.encode(),), **records}
    return Package(contents=contents, digest=digest, storages=storages)


def _describe_record(parts: Parts) -> RecordFacts:
    return RecordFacts(size=sum(map(len, parts)), sha256=hash_parts(parts))


def _make_variant(
    entry: EntryProgram,
    constants: Mapping[str, str],
    numbers: Mapping[str, int],
    contents: _Contents,
    *,
    keeps_texts: bool,
) -> Variant:
    compiled, graph = entry.compiled, entry.compiled.graph
    specs = load_kernels(graph.kernels)
    built = compiled.builder.binaries(specs)
    binaries: dict[str, tuple[Binary, ...]] = {}
    for spec, candidates in zip(specs, built, strict=True):
        kept = []
        for config, binary in compiled.chosen.get(spec.name) or _choose(spec, candidates):
            data = binary if isinstance(binary, bytes) else encode_binary(binary)
            ending = ".so" if isinstance(binary, bytes) else ".bin"
            kept.append(Binary(config=dict(config), record=contents.add("kernels", data, ending)))
        binaries[spec.name] = tuple(kept)
    kernels = graph.kernels if keeps_texts else encode_kernels(map(_drop_text, specs))
    return Variant(
        target=_describe_target(compiled, specs),
        inputs=entry.inputs,
        results=entry.results,
        in_tree=entry.in_tree,
        out_tree=entry.out_tree,
        symbols=entry.symbols,
        state=tuple(numbers[name] for name in entry.state),
        constants={key: numbers[name] for key, name in constants.items()},
        program=contents.add("programs", graph.program, ".bin"),
        kernels=contents.add("programs", kernels, ".kernels"),
        calls=contents.add("programs", encode_plans(graph.program), ".calls"),
        binaries=binaries,
        roles=compiled.roles,
        refusal=graph.refusal,
        devices=tuple(graph.devices),
        rounds_freely=compiled.rounds_freely,
    )


def _choose(spec: KernelSpec, candidates: Sequence[tuple[Mapping[str, int], Any]]) -> list[tuple[Any, Any]]:
    """Return the best guess of each version, so that nothing is timed when a package is used."""
    first: dict[int, tuple[Any, Any]] = {}
    for config, binary in candidates:
        first.setdefault(get_version(spec, config), (config, binary))
    return list(first.values())


def _drop_text(spec: KernelSpec) -> KernelSpec:
    return replace(spec, source="")


def _describe_target(compiled: CompiledProgram, specs: Sequence[KernelSpec]) -> TargetFacts:
    native = [spec for spec in specs if not spec.is_triton]
    return TargetFacts(
        device=_find_main_device(compiled.graph.devices),
        name=compiled.target,
        system=sys.platform if native else "",
        machine=_find_machine(compiled.target) if native else "",
        features=tuple(sorted({feature for spec in native for feature in spec.features})),
    )


def _find_machine(target: str) -> str:
    """Return what runs code for a processor: this machine if the target is none but its own."""
    here = platform.machine()
    named = next((names for family, names in MACHINES.items() if target.startswith(family)), (here,))
    return here if here in named else named[0]


def _find_main_device(devices: Iterable[str]) -> str:
    """Return the type of devices that a program is for: an accelerator, if it has tensors on one."""
    accelerators = (one for one in devices if find_device_number(one) >= 0)
    return next(accelerators, "cpu").partition(":")[0]
