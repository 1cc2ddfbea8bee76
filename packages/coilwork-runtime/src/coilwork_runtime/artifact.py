"""Saved artefacts: a program, its kernels' binaries and its constants in one file, run without a compiler.

`save_artifact` builds the kernels and writes the file. `load_artifact` verifies it, checks the device, loads
the binaries, and runs the program as a compiled graph is run. Kernels that do not fit the machine are built
again.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from coilwork_cache import Store
from coilwork_runtime.artifact_file import (
    KERNELS,
    MODULE,
    PROGRAM,
    ROLES,
    Records,
    decode_constant,
    describe_constant,
    encode_constant,
    read_records,
    write_records,
)
from coilwork_runtime.builder import Builder
from coilwork_runtime.calling_convention import bind_roles
from coilwork_runtime.devices import describe_gpu, read_cpu_features
from coilwork_runtime.errors import (
    ArtifactError,
    DeviceError,
    KernelBuildError,
    MissingCompilerError,
    MissingTritonError,
    ProgramBytesError,
)
from coilwork_runtime.executor.choice import Driven, ExecutorOptions, Loadable, drive
from coilwork_runtime.executor.program_reader import Tables, read_program
from coilwork_runtime.launch_descriptor import Launcher
from coilwork_runtime.manifest.convention_parser import parse_roles
from coilwork_runtime.manifest.kernel_manifest import KernelSpec, decode_kernels
from coilwork_runtime.module_loader import Call, load_kernels
from coilwork_runtime.triton_kernels.compilation import GpuBinary, decode_binary, encode_binary
from coilwork_runtime.triton_kernels.triton_interpreter import is_interpreting
from coilwork_runtime.triton_kernels.user_kernels import NAMESPACE
from coilwork_runtime.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedArtifact:
    """A program that is ready to run: call it with the inputs, get the tuple of outputs.

    Attributes:
        name: of the graph.
        targets: what its kernels were generated for, e.g. `("sm_90",)`.
        call: the boxed form: takes one list, which it empties.
        executor: who runs it, `native` or `python`.
    """

    name: str
    targets: tuple[str, ...]
    call: Call
    executor: str = "python"

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """The outputs for `inputs`.

        Raises:
            LayoutError: an input has another element type, device, shape or stride than was compiled for.
        """
        return tuple(self.call(list(inputs)))


def load_artifact(
    path: str | PathLike[str], *, store: Store | None = None, options: ExecutorOptions | None = None
) -> LoadedArtifact:
    """Load what `save_artifact` wrote. An artefact is a program: load only what you would run.

    Kernels whose binaries do not fit this machine are built again from their sources, where there is a
    compiler; `store` keeps what is built. It is run as a compiled graph is, by the native executor where that
    is to be had, which is built only for a store; `options` say otherwise.

    Raises:
        ArtifactError: the file is missing, damaged, or from another version.
        DeviceError: this machine lacks the device that it needs, or what is needed to build for the one it
            has.
        ExecutorUnavailableError: `options` ask for the native executor and are strict, and it is not to be
            had.
    """
    where = Path(path)
    records = read_records(where)
    _check_runtime(where, records.runtime)
    facts = records.facts
    if "gpu" in facts["devices"] and not torch.cuda.is_available() and not is_interpreting():
        raise DeviceError(
            "missing-device",
            f"the artefact {where} was made for {', '.join(facts['targets'])}; torch sees no GPU here",
            remedy="run it on a machine with such a GPU, with a build of torch for it",
        )
    builder = Builder(store)
    launchers = _launchers(where, _kernels(where, records), records, builder)
    try:
        constants = {
            key: decode_constant(entry, records.contents[entry["record"]])
            for key, entry in facts["constants"].items()
        }
    except RuntimeError as error:
        raise DeviceError(
            "missing-device",
            f"the artefact {where} has constants on a device that is not here",
            reason=str(error),
        ) from error
    if options is None:
        options = ExecutorOptions(rounds_freely=facts["rounds_freely"])
    options = replace(options, may_build=options.may_build and store is not None)
    driven = _drive(where, records, launchers, constants, options, store)
    return LoadedArtifact(
        name=facts["name"],
        targets=tuple(facts["targets"]),
        call=_apply_roles(where, records, driven.call),
        executor=driven.executor,
    )


def _apply_roles(path: Path, records: Records, call: Call) -> Call:
    try:
        return bind_roles(call, records.contents.get(ROLES, b"takes 0\n").decode(), {}).call
    except (KeyError, ValueError) as error:
        raise ArtifactError(
            "damaged-artifact", f"the artefact {path} holds damaged roles", reason=str(error)
        ) from error


def _drive(
    path: Path,
    records: Records,
    launchers: Mapping[str, Launcher],
    constants: Mapping[str, torch.Tensor],
    options: ExecutorOptions,
    store: Store | None,
) -> Driven:
    facts = records.facts
    try:
        graph = Loadable(
            name=facts["name"],
            module="",
            kernels=records.contents[KERNELS],
            program=records.contents[PROGRAM],
            refusal=facts["refusal"],
            constants=constants,
            devices=facts["memory"],
            is_stored=True,
        )
        return drive(graph, launchers=launchers, options=options, store=store, warn=_warn)
    except (KeyError, ProgramBytesError) as error:
        raise ArtifactError(
            "damaged-artifact",
            f"the program in the artefact {path} cannot be read",
            reason=str(error),
            remedy="save the artefact again",
        ) from error


def _warn(graph: str, wanted: str, reason: str) -> None:
    warnings.warn(f"artefact {graph} is driven by Python instead of {wanted}: {reason}", stacklevel=5)


def _kernels(path: Path, records: Records) -> tuple[KernelSpec, ...]:
    try:
        return decode_kernels(records.contents[KERNELS])
    except (KeyError, ValueError) as error:
        raise ArtifactError(
            "damaged-artifact", f"the artefact {path} holds damaged kernels", reason=str(error)
        ) from error


def _check_runtime(path: Path, written_by: str) -> None:
    """Before 1.0, a minor version may change what generated modules call."""
    if written_by.split(".")[:2] != __version__.split(".")[:2]:
        raise ArtifactError(
            "runtime-version",
            f"the artefact {path} was written by coilwork-runtime {written_by}, and this is {__version__}",
            remedy=f"pip install 'coilwork-runtime=={written_by}', or save the artefact again",
        )


def _launchers(
    path: Path, specs: Sequence[KernelSpec], records: Records, builder: Builder
) -> Mapping[str, Launcher]:
    launchers: dict[str, Launcher] = {}
    unfit: list[KernelSpec] = []
    for spec in specs:
        entries = records.facts["kernels"][spec.name]
        binaries = [(entry["config"], records.contents[entry["record"]]) for entry in entries]
        launcher = _launcher(path, spec, binaries, records.facts["machine"], builder)
        if launcher is None:
            unfit.append(adapt_to_machine(spec))
        else:
            launchers[spec.name] = launcher
    try:
        return launchers | dict(builder.build(unfit))
    except (KernelBuildError, MissingCompilerError, MissingTritonError) as error:
        raise DeviceError(
            "other-device",
            f"the artefact {path} was made for {', '.join(records.facts['targets'])}, not for this machine, "
            "and its kernels cannot be built here",
            reason=str(error),
            remedy="run it on such a machine, or install what is missing",
        ) from error


def _launcher(
    path: Path,
    spec: KernelSpec,
    binaries: Sequence[tuple[Mapping[str, int], bytes]],
    machine: str,
    builder: Builder,
) -> Launcher | None:
    """A launcher of the saved machine code, or None if it is not for this machine."""
    if not spec.is_triton:
        if machine != platform.machine() or not read_cpu_features() >= set(spec.features):
            return None
        return builder.load_library(spec, binaries[0][1])
    if is_interpreting() or not can_run_on(spec.target, describe_gpu(0).name):
        return None
    return builder.load_binaries(spec, [(config, _decode(path, image)) for config, image in binaries])


def adapt_to_machine(spec: KernelSpec) -> KernelSpec:
    """The kernel as it can be built here: without features that this CPU lacks, or for the present GPU."""
    if spec.is_triton:
        return spec if is_interpreting() else replace(spec, target=describe_gpu(0).name)
    present = read_cpu_features()
    return replace(spec, features=tuple(name for name in spec.features if name in present))


def can_run_on(target: str, present: str) -> bool:
    """Return True if machine code for `target` runs on the GPU `present`. NVIDIA's runs on later GPUs of the
    same major version.
    """
    if target.startswith("sm_") and present.startswith("sm_"):
        wanted, here = int(target[3:]), int(present[3:])
        return wanted // 10 == here // 10 and wanted <= here and (wanted == here or wanted < 90)
    return target == present


def _decode(path: Path, image: bytes) -> GpuBinary:
    try:
        return decode_binary(image)
    except ValueError as error:
        raise ArtifactError(
            "damaged-artifact", f"the artefact {path} holds a damaged kernel", reason=str(error)
        ) from error


# ---- saving ----


def save_artifact(
    path: str | PathLike[str],
    *,
    program: bytes,
    kernels: bytes,
    name: str,
    builder: Builder,
    constants: Mapping[str, torch.Tensor],
    roles: str = "",
    refusal: str = "",
    module_text: str = "",
    rounds_freely: bool = False,
) -> None:
    """Write a program with all it needs to `path`, for `load_artifact`.

    `program` and `kernels` are bytes as `coilwork_wrapper.encode_program` and `coilwork_ir.kernel_source`
    write them; `refusal` says why the native executor does not run the program, if it does not. `roles` are
    those of its inputs and results, as `coilwork_ir.calling_convention` writes them. `module_text` is the
    same program for people to read: nothing runs by it. With `rounds_freely`, libraries that the native
    executor calls itself may differ from ATen in the last bits of results. Kernels are built through
    `builder`, and so come out of its store where they are there. Constants are copied.

    Raises:
        ArtifactError: the file cannot be written, a role needs a callable of Python, or the program launches
            a kernel of the user's.
        ProgramBytesError: the program or the kernels are damaged.
        KernelBuildError, MissingCompilerError, MissingTritonError: as when loading the program.
    """
    tables, parts = read_program(program)
    _check_calls(tables)
    specs = load_kernels(kernels)
    contents: dict[str, bytes] = {PROGRAM: program, KERNELS: kernels}
    if module_text:
        contents[MODULE] = module_text.encode()
    if roles:
        _check_roles(roles)
        contents[ROLES] = roles.encode()
    built: dict[str, list[dict[str, Any]]] = {}
    for spec, binaries in zip(specs, builder.binaries(specs), strict=True):
        entries = built[spec.name] = []
        for number, (config, binary) in enumerate(binaries):
            record = f"kernels/{spec.name}.{number}.bin"
            contents[record] = binary if isinstance(binary, bytes) else encode_binary(binary)
            entries.append({"config": dict(config), "record": record})
    described: dict[str, dict[str, Any]] = {}
    for number, (key, value) in enumerate(sorted(constants.items())):
        record = f"constants/{number}.bin"
        contents[record] = encode_constant(value)
        described[key] = describe_constant(value) | {"record": record}
    facts = {
        "name": name,
        "refusal": refusal,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "targets": sorted({spec.target for spec in specs if spec.target}),
        "devices": sorted({"gpu" if spec.is_triton else "cpu" for spec in specs}),
        "memory": sorted({layout.device for part in parts for layout in part.layouts}),
        "rounds_freely": rounds_freely,
        "kernels": built,
        "constants": described,
    }
    write_records(Path(path), Records(runtime=__version__, facts=facts, contents=contents))


def _check_calls(tables: Tables) -> None:
    launches = {call.target for call in tables.calls if call.target.startswith(f"{NAMESPACE}.")}
    if launches:
        raise ArtifactError(
            "user-kernels",
            f"a program that launches kernels of the user's cannot be saved: {', '.join(sorted(launches))}",
            reason="the kernels are objects of this process",
            remedy="leave these launches out of the graph",
        )


def _check_roles(text: str) -> None:
    names = parse_roles(text).names
    if names:
        raise ArtifactError(
            "python-roles",
            f"a graph whose results are made by {', '.join(names)}, in Python, cannot be saved",
            remedy="leave out of the graph what makes sparse tensors and views of expanded inputs",
        )
