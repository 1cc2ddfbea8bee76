"""How a kernel is launched without Python: its address and parameters, in the form that the native executor reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coilwork_runtime.dtypes import torch_dtype
from coilwork_runtime.executor.formulas import formula
from coilwork_runtime.specs import Argument, CppKernel, TritonKernel, parse_argument

POINTER, SIZE64, SIZE32, SCRATCH = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLaunch:
    """What a launcher offers to those who can do without it, under the name `NATIVE` in its namespace.

    Attributes:
        form: bytes for the native executor (native/program/plans.hpp); `None` as long as the configuration is not settled.
        report: raises the error of a failed check, by its number, counted from 1.
    """

    form: Callable[[], bytes | None]
    report: Callable[[int], None] | None = None


NATIVE = "coilwork_native"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEntry:
    """A function on a device, as the driver knows it."""

    launch_address: int
    set_context_address: int
    context: int
    handle: int
    device: int
    threads: int
    shared_bytes: int
    compiler_scratch_bytes: int
    cluster: int = 1
    cooperative: bool = False
    launch_ex_address: int = 0


def cpu_form(spec: CppKernel, address: int) -> bytes:
    """The form of a C++ kernel whose entry is at `address`."""
    arguments = [parse_argument(text) for text in spec.args]
    names = spec.arg_names or tuple(f"a{position}" for position in range(len(arguments)))
    named = list(zip(names, arguments, strict=True))
    return _head(spec.name, address, bool(spec.checks), named, {}, gpu=False)


def gpu_form(
    spec: TritonKernel,
    arguments: Sequence[tuple[str, Argument]],
    constants: Mapping[str, int],
    entry: GpuEntry,
) -> bytes | None:
    """The form of a Triton kernel in a configuration, whose compile-time parameters are `constants`.

    `None` if its grid is something else than an expression over sizes and those.
    """
    try:
        return _gpu_form(spec, arguments, constants, entry)
    except ValueError:
        return None


def join_forms(forms: Sequence[bytes], guards: Sequence[str], sizes: Sequence[str]) -> bytes | None:
    """The form of a Triton kernel that is launched by the first of `forms` whose guard, an expression over `sizes`, is 0.

    The last one has no guard. `None` if a guard is something else than an expression over sizes.
    """
    try:
        *conditions, _ = ((formula(guard, sizes, {}) if guard else b"") for guard in guards)
    except ValueError:
        return None
    *others, found = forms
    for form, condition in zip(reversed(others), reversed(conditions), strict=True):
        found = form[:-1] + b"\1" + condition + found
    return found


def _gpu_form(
    spec: TritonKernel,
    arguments: Sequence[tuple[str, Argument]],
    constants: Mapping[str, int],
    entry: GpuEntry,
) -> bytes:
    sizes = [name for name, argument in arguments if argument.role == "size"]
    grid = [*spec.grid, *["1"] * (3 - len(spec.grid))]
    return b"".join(
        (
            _head(spec.name, entry.handle, False, arguments, constants, gpu=True),
            struct.pack("<QQQ", entry.launch_address, entry.set_context_address, entry.context),
            struct.pack(
                "<iIIQ", entry.device, entry.threads, entry.shared_bytes, entry.compiler_scratch_bytes
            ),
            # the plain function costs less
            struct.pack(
                "<QIB",
                0 if entry.cluster == 1 and not entry.cooperative else entry.launch_ex_address,
                entry.cluster,
                entry.cooperative,
            ),
            *(formula(text, sizes, constants) for text in grid),
            # no other form
            b"\0",
        )
    )


def _head(
    name: str,
    address: int,
    checks: bool,
    arguments: Sequence[tuple[str, Argument]],
    constants: Mapping[str, int],
    *,
    gpu: bool,
) -> bytes:
    text = name.encode()
    sizes = [name for name, argument in arguments if argument.role == "size"]
    parts = [bytes((gpu,)), struct.pack("<I", len(text)), text, struct.pack("<QB", address, checks)]
    parts.append(struct.pack("<I", len(arguments)))
    for _, argument in arguments:
        match argument.role:
            case "size":
                parts.append(struct.pack("<BI", SIZE32 if gpu and argument.dtype == "i32" else SIZE64, 0))
            case "scratch":
                parts.append(struct.pack("<BI", SCRATCH, torch_dtype(argument.dtype).itemsize))
                parts.append(formula(argument.elements, sizes, constants))
            case _:
                parts.append(struct.pack("<BI", POINTER, 0))
    return b"".join(parts)
