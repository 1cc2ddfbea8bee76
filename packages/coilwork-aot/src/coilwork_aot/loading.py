"""Load a package: verify it, choose the programs for this machine, bind kernels and state.

No compiler runs, nothing is timed, and nothing is unpickled or imported. Every hash is checked before
anything in the file is looked at more closely, and that of the weights before any kernel is loaded. A package
holds machine code all the same: load those alone that you would run, and insist on a digest where the file
comes from elsewhere.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Final

import torch

from coilwork_aot.archive import Archive, read_archive
from coilwork_aot.errors import PackageError, TargetError
from coilwork_aot.manifest import (
    DIGEST,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    WEIGHTS,
    Manifest,
    Variant,
    decode_manifest,
)
from coilwork_aot.model import BoundVariant, EntryPoint, LoadedModel
from coilwork_aot.record_hashes import hash_record
from coilwork_aot.state import ModelState, open_state, read_safetensors
from coilwork_aot.trees import check_known
from coilwork_cache import Store
from coilwork_runtime import Builder, bind_roles
from coilwork_runtime.device_copies import DeviceCopies
from coilwork_runtime.devices import (
    can_run_on,
    count_devices,
    current_device,
    describe_gpu,
    read_cpu_features,
)
from coilwork_runtime.errors import DeviceError, ProgramBytesError
from coilwork_runtime.executor.call_plans import require_operator
from coilwork_runtime.executor.choice import Driven, ExecutorOptions, Loadable, drive
from coilwork_runtime.executor.program_reader import read_tables, rename_devices
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.convention_parser import parse_roles
from coilwork_runtime.manifest.kernel_manifest import KernelSpec, decode_kernels
from coilwork_runtime.triton_kernels.compilation import decode_binary
from coilwork_runtime.triton_kernels.gpu import make_torch_gpu
from coilwork_runtime.version import __version__ as runtime_version

_CPU: Final = torch.device("cpu")
Weights = Mapping[str, torch.Tensor] | str | PathLike[str]


def load(
    path: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    weights: Weights | None = None,
    share: LoadedModel | None = None,
    digest: str = "",
    verify_weights: bool = True,
    store: Store | None = None,
    options: ExecutorOptions | None = None,
) -> LoadedModel:
    """Load a package that `coilwork.export` wrote.

    Args:
        path: the file.
        device: what the model runs on. Default: the device that the package was made for, the current one of
            its type.
        weights: values for the state, by name, instead of the package's own: tensors, or a safetensors file.
        share: a model loaded from a package with the same state, whose tensors this one uses, too.
        digest: what `export` returned; another package is refused.
        verify_weights: check the hash of the weights, which reads them all.
        store: where the native executor lies, if the runtime's wheel has none.
        options: how programs run.

    Raises:
        PackageError: the file is damaged or no package, or `weights` do not fit.
        TargetError: the package does not run here.
    """
    archive = read_archive(Path(path))
    return load_archive(
        archive,
        str(path),
        device=device,
        weights=weights,
        share=share,
        digest=digest,
        verify_weights=verify_weights,
        store=store,
        options=options,
    )


def load_archive(
    archive: Archive,
    where: str,
    *,
    device: str | torch.device | None = None,
    weights: Weights | None = None,
    share: LoadedModel | None = None,
    digest: str = "",
    verify_weights: bool = True,
    store: Store | None = None,
    options: ExecutorOptions | None = None,
) -> LoadedModel:
    """Do as `load`, for an archive; messages call it `where`."""
    manifest = verify_archive(archive, where, digest=digest, verify_weights=False)
    with ThreadPoolExecutor(1) as pool, DeviceCopies() as copies:
        # beside the weights' way to the device, and before any kernel is loaded
        verifying = pool.submit(_check_weights, archive, manifest) if verify_weights else None
        try:
            _check_versions(manifest, where)
            place = _choose_device(manifest, device)
            chosen = {
                name: _choose_variants(name, variants, place) for name, variants in manifest.entries.items()
            }
            state = _open_state(archive, manifest, place, weights, share, copies)
        finally:
            # a wrong byte comes before what it may have led to
            if verifying is not None:
                verifying.result()
        builder = Builder(store, gpu=make_torch_gpu(store, may_build=False))
        binder = _Binder(archive, builder, state, place, store, options)
        entries = {
            name: EntryPoint(name, [binder.bind(name, one) for one in variants], state, place)
            for name, variants in chosen.items()
        }
    return LoadedModel(name=manifest.name, manifest=manifest, device=place, entries=entries, state=state)


# ---- Verifying ----


def read_manifest(path: str | PathLike[str]) -> Manifest:
    """Return the manifest of a package, whose headers and hashes are verified.

    Raises:
        PackageError: as `load`.
    """
    return verify_archive(read_archive(Path(path)), str(path))


def verify_archive(
    archive: Archive, where: str, *, digest: str = "", verify_weights: bool = True
) -> Manifest:
    """Verify the hashes of an archive, and return its manifest.

    Raises:
        PackageError: a record is damaged, missing or unknown, or the package is another than `digest` says.
    """
    manifest = _read_manifest(archive, where, digest)
    _check_records(archive, manifest)
    if verify_weights:
        _check_weights(archive, manifest)
    return manifest


def _read_manifest(archive: Archive, path: str, digest: str) -> Manifest:
    names = [*archive.records][:2]
    if names != [MANIFEST, DIGEST]:
        raise PackageError("not-a-package", f"{path} is an archive, but begins with no manifest")
    if archive.records[MANIFEST].size > MOST_MANIFEST_BYTES or archive.records[DIGEST].size != 64:
        raise PackageError("oversized-record", f"the manifest of {path} or its digest is too large")
    text = archive.read(MANIFEST)
    found = hashlib.sha256(text).hexdigest()
    if archive.read(DIGEST) != found.encode():
        raise PackageError("wrong-hash", f"the manifest of {path} differs from its digest")
    if digest and digest != found:
        raise PackageError("wrong-digest", f"{path} is another package", reason=f"its digest is {found}")
    return decode_manifest(text)


def _check_records(archive: Archive, manifest: Manifest) -> None:
    """Check all records but the weights, of which only the size is looked at."""
    present = archive.records.keys() - {MANIFEST, DIGEST}
    for name in sorted(present - manifest.records.keys()):
        raise PackageError("unknown-record", f"the manifest does not know record {name}")
    for name in sorted(manifest.records.keys() - present):
        raise PackageError("missing-record", f"record {name} is not there")
    for name, facts in manifest.records.items():
        if archive.records[name].size != facts.size:
            raise PackageError("wrong-hash", f"record {name} has {archive.records[name].size} bytes")
        if name != WEIGHTS:
            _check_hash(archive, manifest, name)


def _check_weights(archive: Archive, manifest: Manifest) -> None:
    if WEIGHTS in manifest.records:
        _check_hash(archive, manifest, WEIGHTS)


def _check_hash(archive: Archive, manifest: Manifest, name: str) -> None:
    if hash_record(archive.view(name)) != manifest.records[name].sha256:
        raise PackageError("wrong-hash", f"record {name} differs from its hash")


def _check_versions(manifest: Manifest, path: str) -> None:
    first, below = map(_read_version, manifest.torch)
    if not first <= _read_version(torch.__version__) < below:
        raise TargetError(
            "torch-version",
            f"{path} runs with torch from {manifest.torch[0]} to below {manifest.torch[1]}",
            reason=f"this is torch {torch.__version__}",
            remedy="install such a torch, or export again",
        )
    if _read_version(manifest.runtime) != _read_version(runtime_version):
        raise TargetError(
            "runtime-version",
            f"{path} was made for coilwork-runtime {manifest.runtime}, and this is {runtime_version}",
            remedy=f"pip install 'coilwork-runtime=={manifest.runtime}', or export again",
        )


def _read_version(text: str) -> tuple[int, ...]:
    """Return the major and the minor version."""
    parts = text.split("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)


# ---- Choosing ----


def _choose_device(manifest: Manifest, wanted: str | torch.device | None) -> torch.device:
    kinds = list(dict.fromkeys(one.target.device for one in _list_variants(manifest)))
    if wanted is None:
        preferred = [kind for kind in kinds if kind != _CPU.type and count_devices(kind)]
        wanted = preferred[0] if preferred else kinds[0] if _CPU.type not in kinds else _CPU
    try:
        place = torch.device(wanted)
    except RuntimeError as error:
        raise TargetError("wrong-device", f"{wanted!r} is no device", reason=str(error)) from error
    if place.type not in kinds:
        raise TargetError(
            "wrong-device",
            f"the package is for {', '.join(kinds)}, and not for {place.type}",
            remedy=f"export it with a target of the kind {place.type}",
        )
    if place.type == _CPU.type:
        return _CPU
    count = count_devices(place.type)
    is_named = ":" in str(place)
    index = int(place.index) if is_named else current_device(place.type)
    if index >= count:
        raise TargetError(
            "missing-device",
            f"torch sees {count} devices of the kind {place.type}",
            remedy="run it on a machine with such a device, with a build of torch for it",
        )
    return torch.device(place.type, index)


def _list_variants(manifest: Manifest) -> Iterable[Variant]:
    return (one for variants in manifest.entries.values() for one in variants)


def _choose_variants(name: str, variants: Sequence[Variant], device: torch.device) -> list[Variant]:
    """Return the variants to try for a call, for each kind of inputs the best one for this machine.

    Raises:
        TargetError: none fits.
    """
    errors: list[TargetError] = []
    # by what distinguishes their calls
    best: dict[str, Variant] = {}
    for variant in variants:
        if variant.target.device != device.type:
            continue
        error = _check_target(name, variant, device)
        if error is not None:
            errors.append(error)
            continue
        key = repr((variant.in_tree, variant.inputs, variant.symbols))
        known = best.get(key)
        if known is None or _rank(variant, device) > _rank(known, device):
            best[key] = variant
    if best:
        return [*best.values()]
    if errors:
        raise errors[0]
    raise TargetError("wrong-device", f"entry point {name} has no program for {device.type}")


def _rank(variant: Variant, device: torch.device) -> tuple[bool, int]:
    is_own = device.type != _CPU.type and variant.target.name == describe_gpu(device.index or 0).name
    return is_own, len(variant.target.features)


def _check_target(name: str, variant: Variant, device: torch.device) -> TargetError | None:
    target = variant.target
    if device.type != _CPU.type:
        present = describe_gpu(device.index or 0).name
        if not can_run_on(target.name, present):
            return TargetError(
                "wrong-architecture",
                f"entry point {name} was compiled for {target.name}, and {device} is {present}",
                remedy=f"export it with target={present!r}",
            )
    here = (sys.platform, platform.machine())
    if target.system and (target.system, target.machine) != here:
        return TargetError(
            "wrong-architecture",
            f"entry point {name} was compiled for {target.system} on {target.machine}",
            reason=f"this is {here[0]} on {here[1]}",
        )
    missing = set(target.features) - read_cpu_features() if target.features else set()
    if missing:
        return TargetError(
            "missing-features",
            f"entry point {name} uses {', '.join(sorted(missing))}, which this processor lacks",
            remedy="export it with a target of fewer features, such as x86-64-avx2",
        )
    return None


# ---- Binding ----


def _open_state(
    archive: Archive,
    manifest: Manifest,
    device: torch.device,
    weights: Weights | None,
    share: LoadedModel | None,
    copies: DeviceCopies,
) -> ModelState:
    if share is not None:
        if share.state.entries != manifest.state or share.device != device:
            raise PackageError("wrong-state", "the model to share with has another state, or another device")
        return share.state
    given = read_safetensors(Path(weights)) if isinstance(weights, str | PathLike) else weights
    own = archive.view(WEIGHTS) if WEIGHTS in archive.records else None
    return open_state(manifest.state, own, device, given, copies)


class _Binder:
    """Binds programs of one package to this process."""

    def __init__(
        self,
        archive: Archive,
        builder: Builder,
        state: ModelState,
        device: torch.device,
        store: Store | None,
        options: ExecutorOptions | None,
    ) -> None:
        self._archive = archive
        self._builder = builder
        self._state = state
        self._device = device
        self._store = store
        self._options = options

    def bind(self, name: str, variant: Variant) -> BoundVariant:
        """Return the callable of a program.

        Raises:
            PackageError: a part of it cannot be read, or a kernel is missing.
        """
        check_known(variant.in_tree, as_dict=False)
        check_known(variant.out_tree, as_dict=True)
        try:
            specs = decode_kernels(self._archive.read(variant.kernels))
        except ValueError as error:
            raise _make_part_error("damaged-kernels", name, error) from error
        launchers = {spec.name: self._make_launcher(name, variant, spec) for spec in specs}
        program = self._archive.read(variant.program)
        try:
            program = rename_devices(program, self._map_devices(variant))
            tables = read_tables(program)
            if parse_roles(variant.roles).names:
                raise ValueError("its roles name functions")
        except (ProgramBytesError, ValueError, KeyError) as error:
            raise _make_part_error("damaged-program", name, error) from error
        absent = sorted({*tables.kernels} - launchers.keys())
        if absent:
            raise PackageError(
                "missing-kernel", f"entry point {name} launches {absent[0]}, which is not there"
            )
        driven = self._load_driver(name, variant, program, launchers)
        call = bind_roles(driven.call, variant.roles, {}).call
        return BoundVariant(variant=variant, call=call, executor=driven.executor)

    def _map_devices(self, variant: Variant) -> dict[str, str]:
        """Return the names of the program's devices that are other ones here."""
        kind = self._device.type
        moved = {one for one in variant.devices if one.partition(":")[0] == kind != _CPU.type}
        return {one: str(self._device) for one in moved if one != str(self._device)}

    def _make_launcher(self, name: str, variant: Variant, spec: KernelSpec) -> Launcher:
        binaries = variant.binaries.get(spec.name)
        if not binaries:
            raise PackageError("missing-kernel", f"kernel {spec.name} of entry point {name} has no binary")
        images = [(one.config, self._archive.read(one.record)) for one in binaries]
        if not spec.is_triton:
            loaded = self._builder.load_library(spec, images[0][1])
            if loaded is None:
                raise PackageError(
                    "damaged-kernels",
                    f"the library of kernel {spec.name} does not load",
                    remedy="check that libc and torch are not older than where it was exported",
                )
            return loaded
        try:
            decoded = [(config, decode_binary(image)) for config, image in images]
            return self._builder.load_binaries(spec, decoded)
        except (ValueError, KeyError, StopIteration) as error:
            raise _make_part_error("damaged-kernels", name, error) from error

    def _load_driver(
        self, name: str, variant: Variant, program: bytes, launchers: Mapping[str, Launcher]
    ) -> Driven:
        options = self._options or ExecutorOptions(rounds_freely=variant.rounds_freely, may_build=False)
        graph = Loadable(
            name=name,
            module="",
            kernels=b"",
            program=program,
            refusal=variant.refusal,
            constants={key: self._state.tensors[number] for key, number in variant.constants.items()},
            devices=variant.devices,
            is_stored=True,
        )
        try:
            for call in read_tables(program).calls:
                require_operator(call.target)
            return drive(graph, launchers=launchers, options=options, store=self._store, warn=_warn)
        except ProgramBytesError as error:
            if error.code != "missing-operator":
                raise _make_part_error("damaged-program", name, error) from error
            raise TargetError(
                error.code,
                f"entry point {name} calls an operator that is not registered here",
                reason=error.what,
                remedy="import the library that registers it before you load the package",
            ) from error
        except (KeyError, ValueError) as error:
            raise _make_part_error("damaged-program", name, error) from error
        except DeviceError as error:
            raise TargetError(
                "missing-device", f"entry point {name} needs a device", reason=str(error)
            ) from error


def _make_part_error(code: str, name: str, error: Exception) -> PackageError:
    return PackageError(
        code,
        f"a part of entry point {name} cannot be read",
        reason=f"{type(error).__name__}: {error}"[:1000],
        remedy="copy or export the package again",
    )


def _warn(graph: str, wanted: str, reason: str) -> None:
    warnings.warn(f"entry point {graph} is driven by Python instead of {wanted}: {reason}", stacklevel=6)
