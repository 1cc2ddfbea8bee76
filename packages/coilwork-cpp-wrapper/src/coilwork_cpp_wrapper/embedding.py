"""Machine code of GPU kernels inside of a program's library, for processes without Python.

Each kernel is embedded as its manifest's bytes and one binary for each of its versions, which is the best
guess: nothing is timed where the program runs. `preamble/launching.cpp` reads it, by the headers of the
native executor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coilwork_runtime
from coilwork_cpp_wrapper.module import CppProgram
from coilwork_ir.syntax.cpp import string
from coilwork_runtime.manifest.kernel_manifest import KernelSpec, encode_manifest
from coilwork_runtime.triton_kernels.compilation import GpuBinary
from coilwork_runtime.triton_kernels.versions import get_version

_NATIVE: Final = Path(coilwork_runtime.__file__).parent / "executor" / "native"
# The rooms of the native executor that launching a kernel takes.
_ROOMS: Final = ("containers", "interfaces", "program")
Binaries = Sequence[tuple[Mapping[str, int], GpuBinary]]
"""Configurations of one kernel with their machine code, the best guess first."""


def read_launch_headers() -> Mapping[str, bytes]:
    """Return the headers that launching.cpp includes, by path."""
    paths = (path for room in _ROOMS for path in sorted((_NATIVE / room).glob("*.hpp")))
    return {path.relative_to(_NATIVE).as_posix(): path.read_bytes() for path in paths}


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """A unit that holds the kernels: its text, and the files that the assembler puts into it."""

    text: str
    files: Mapping[str, bytes]


def embed_kernels(
    program: CppProgram, specs: Mapping[str, KernelSpec], binaries: Mapping[str, Binaries]
) -> Embedded:
    """Return the kernels that `program` launches on a GPU; `specs` and `binaries` by their names.

    Raises:
        KeyError: a kernel, or a value of its configuration, is missing.
        ValueError: a kernel has no binary for all sizes.
    """
    files: dict[str, bytes] = {}
    images: list[str] = []
    kernels: list[str] = []
    for number, name in enumerate(program.gpu_kernels):
        spec = specs[name]
        versions = choose_binaries(spec, binaries[name])
        manifest = encode_manifest(spec)
        files[f"manifest_{number}.bin"] = manifest
        rows: list[str] = []
        for version, (config, binary) in enumerate(versions):
            files[f"image_{number}_{version}.bin"] = binary.image
            rows.append(_image_row(f"{number}_{version}", spec.values_of(config), binary, images))
        images.append(f"static const CoilworkImage images_{number}[] = {{\n  " + ",\n  ".join(rows) + "};")
        kernels.append(f"{{manifest_{number}, {len(manifest)}, images_{number}, {len(rows)}}}")
    text = "\n".join(
        (
            *_write_assembly(files),
            "",
            *images,
            f"const CoilworkEmbedded coilwork_embedded[{max(len(kernels), 1)}] = {{\n  "
            + ",\n  ".join(kernels)
            + "};",
            "",
        )
    )
    return Embedded(text=text, files=files)


def choose_binaries(spec: KernelSpec, built: Binaries) -> Binaries:
    """Return the best guess of each version of `spec`; in place of one that did not compile, that for all
    sizes.

    Raises:
        ValueError: there is none for all sizes.
    """
    first: dict[int, tuple[Mapping[str, int], GpuBinary]] = {}
    for config, binary in built:
        first.setdefault(get_version(spec, config), (config, binary))
    last = len(spec.guards) - 1
    if last not in first:
        raise ValueError(f"kernel {spec.name} has no binary for all sizes")
    return [first.get(version, first[last]) for version in range(last + 1)]


def _write_assembly(files: Mapping[str, bytes]) -> Iterator[str]:
    """Symbols whose memory holds the files' bytes."""
    for name in files:
        label = name.removesuffix(".bin")
        kind = "const char" if label.startswith("manifest") else "const unsigned char"
        yield f'extern "C" __attribute__((visibility("hidden"))) {kind} {label}[];'
        yield (
            f'asm(".section .rodata\\n.balign 64\\n.globl {label}\\n.hidden {label}\\n{label}:\\n"\n'
            f'    ".incbin \\"{name}\\"\\n.byte 0\\n.text\\n");'
        )


def _image_row(number: str, values: Sequence[int], binary: GpuBinary, declared: list[str]) -> str:
    listed = ", ".join(map(str, values)) or "0"
    declared.append(f"static const int64_t values_{number}[] = {{{listed}}};")
    return (
        f"{{{string(binary.name).text}, image_{number}, values_{number}, {len(values)}, {binary.threads}, "
        f"{binary.shared_bytes}, {binary.cluster}, {binary.scratch_bytes}, "
        f"{'true' if binary.cooperative else 'false'}}}"
    )
