"""Writing an artefact: build the kernels, then put program, binaries and constants into one file."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from coilwork_runtime.artifact_file import (
    KERNELS,
    MODULE,
    PROGRAM,
    ROLES,
    Records,
    constant_bytes,
    describe_constant,
    write_records,
)
from coilwork_runtime.builder import Builder
from coilwork_runtime.errors import ArtifactError
from coilwork_runtime.executor.program_reader import read_program
from coilwork_runtime.manifest.roles import parse_roles
from coilwork_runtime.module_loader import load_kernels
from coilwork_runtime.triton_kernels.compilation import encode_binary
from coilwork_runtime.version import __version__


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

    `program` and `kernels` are bytes as `coilwork_wrapper.encode_program` and `coilwork_ir.manifest` write
    them; `refusal` says why the native executor does not run the program, if it does not. `roles` are those
    of its inputs and results, as `coilwork_ir.roles` writes them. `module_text` is the same program for
    people to read: nothing runs by it. With `rounds_freely`, libraries that the native executor calls itself
    may differ from ATen in the last bits of results. Kernels are built through `builder`, and so come out of
    its store where they are there. Constants are copied.

    Raises:
        ArtifactError: the file cannot be written, or a role needs a callable of Python.
        ProgramBytesError: the program or the kernels are damaged.
        KernelBuildError, MissingCompilerError, MissingTritonError: as when loading the program.
    """
    _, parts = read_program(program)
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
        contents[record] = constant_bytes(value)
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


def _check_roles(text: str) -> None:
    names = parse_roles(text).names
    if names:
        raise ArtifactError(
            "python-roles",
            f"a graph whose results are made by {', '.join(names)}, in Python, cannot be saved",
            remedy="leave out of the graph what makes sparse tensors and views of expanded inputs",
        )
