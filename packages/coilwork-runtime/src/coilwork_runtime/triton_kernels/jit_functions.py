"""Kernels as functions of Triton's own JIT, for graphs that launch them by torch's Triton operator.

Triton compiles such a function when it is first called, in this process. Sizes have the types that the
manifest names, and are not specialized but for divisibility, so that the kernel computes what its other
launchers compute. A launch has one configuration: the best guess for the sizes that are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coilwork_runtime.folders import new_folder
from coilwork_runtime.manifest.kernel_manifest import KernelSpec
from coilwork_runtime.manifest.size_bytecode import SizeBytecode
from coilwork_runtime.triton_kernels.compilation import TYPES
from coilwork_runtime.triton_kernels.triton_interpreter import InterpretedKernel, is_interpreting
from coilwork_runtime.triton_kernels.versions import get_version
from coilwork_runtime.triton_kernels.worker import load_function


@dataclass(frozen=True, slots=True, kw_only=True)
class JitLaunch:
    """The launch of a kernel of Triton's JIT.

    Attributes:
        constants: what is passed by name beside tensors and sizes: compile-time parameters, and options of
            the compiler.
        grid: up to three extents, over the sizes.
        scratch: by name, how many elements of memory the kernel needs beside, over the sizes.
    """

    constants: Mapping[str, Any]
    grid: tuple[SizeBytecode, ...]
    scratch: Mapping[str, SizeBytecode]


def choose_launch(spec: KernelSpec, sizes: Sequence[int | None]) -> JitLaunch:
    """Return the launch of `spec` for these sizes; None is one that is known only when it is called."""
    number = _choose_version(spec, sizes)
    config = next(one for one in spec.configs if get_version(spec, one) == number)
    values = spec.values_of(config)
    constants: dict[str, Any] = dict(config)
    if "enable_fp_fusion" in constants:
        constants["enable_fp_fusion"] = bool(constants["enable_fp_fusion"])
    if spec.checks and not is_interpreting():
        # device assertions exist in debug mode only; the overflow checks that come with it are not wanted
        constants |= {"debug": True, "sanitize_overflow": False}
    return JitLaunch(
        constants=constants,
        grid=tuple(code.bind(values) for code in spec.grid),
        scratch={one.name: one.elements.bind(values) for one in spec.args if one.elements is not None},
    )


def _choose_version(spec: KernelSpec, sizes: Sequence[int | None]) -> int:
    """Return the first version that is for `sizes` and has a configuration; the last one, which is for all
    sizes, if they are not known.
    """
    known = [size for size in sizes if size is not None]
    last = len(spec.guards) - 1
    if len(known) < len(sizes):
        return last
    first = spec.first_version(known)
    own = {get_version(spec, config) for config in spec.configs}
    return first if first in own else last


def load_jit_kernel(spec: KernelSpec) -> Any:
    """Return `spec` as an object of Triton's: `kernel[grid](...)` launches it, with all arguments by name.

    Where Triton is told to interpret, it is an object of ours that is launched the same way.

    Raises:
        ImportError: Triton is not installed.
    """
    if is_interpreting():
        return InterpretedKernel(spec)
    # Only here: what is compiled ahead needs no Triton in this process.
    import triton
    from triton.experimental import gluon

    found = load_function(spec.source, spec.entry, new_folder("triton"))
    function, jit = found.fn, gluon.jit if found.is_gluon() else triton.jit
    sizes = [one for one in spec.args if one.role == "size"]
    # a size that fits 32 bits is passed as one, unless its type is written down
    function.__annotations__.update({one.name: TYPES[one.dtype] for one in sizes})
    return jit(function, do_not_specialize=[one.name for one in sizes if not one.aligned])
