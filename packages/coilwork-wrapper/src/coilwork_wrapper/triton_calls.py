"""Launches of Triton kernels by PyTorch's own Triton operator, for FX graphs.

The operator names a kernel by its number in torch's table, takes tensors and sizes by the names of the
kernel's parameters, and a grid whose extents may be symbolic. Passes, tracing and functionalization know it.
Needs `coilwork-wrapper[runtime]`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from coilwork_wrapper.torch_compat import enter_constants, enter_kernel

if TYPE_CHECKING:
    from coilwork_runtime.manifest.kernel_manifest import KernelSpec
    from coilwork_runtime.manifest.size_bytecode import SizeBytecode


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A Triton kernel of a program, whose launches become calls of torch's Triton operator."""

    spec: KernelSpec

    def choose(self, sizes: Sequence[int | None]) -> TritonLaunch:
        """Return how it is launched for these sizes; None is one that is known only when it is called.

        Raises:
            ImportError: Triton is not installed.
        """
        # Only here: programs for processors need no Triton.
        from coilwork_runtime.dtypes import get_torch_dtype
        from coilwork_runtime.triton_kernels.jit_functions import choose_launch, load_jit_kernel

        spec, chosen = self.spec, choose_launch(self.spec, sizes)
        key = (spec.name, spec.source, spec.args, os.environ.get("TRITON_INTERPRET"))
        return TritonLaunch(
            kernel=enter_kernel(_KERNELS.find(key, lambda: load_jit_kernel(spec))),
            constants=enter_constants(dict(chosen.constants)),
            passed=tuple(one.name for one in spec.args if one.elements is None),
            dtypes={one.name: get_torch_dtype(one.dtype) for one in spec.args},
            grid=chosen.grid,
            scratch=chosen.scratch,
        )


def find_triton_kernels(kernels: bytes) -> Mapping[str, TritonKernel]:
    """Return the Triton kernels among `kernels`, as `coilwork_ir.kernel_source` writes them, by name."""
    # reading a manifest takes the runtime, which graphs of other kernels do without
    if b"triton" not in kernels:
        return {}
    from coilwork_runtime.manifest.kernel_manifest import decode_kernels

    return {spec.name: TritonKernel(spec) for spec in decode_kernels(kernels) if spec.is_triton}


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonLaunch:
    """A kernel and its constants as entries of torch's tables.

    Attributes:
        kernel: number of the kernel.
        constants: number of what a launch passes beside tensors and sizes.
        passed: the parameters that a program passes, in order: tensors, then sizes.
        dtypes: by parameter, its type, or the one behind its pointer.
        grid: up to three extents, over the sizes.
        scratch: by parameter, elements of memory that the kernel needs beside, over the sizes.
    """

    kernel: int
    constants: int
    passed: tuple[str, ...]
    dtypes: Mapping[str, torch.dtype]
    grid: tuple[SizeBytecode, ...]
    scratch: Mapping[str, SizeBytecode]


class _Kernels:
    """The kernels that this process has loaded: torch's table keeps all that it is given."""

    def __init__(self) -> None:
        self._known: dict[object, Any] = {}
        self._lock = threading.Lock()

    def find(self, key: object, load: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._known:
                self._known[key] = load()
            return self._known[key]


_KERNELS: Final = _Kernels()


def run_code(code: SizeBytecode, sizes: Sequence[Any], operate: Callable[[str, Any, Any], Any]) -> Any:
    """Return the value of `code` for `sizes`; `operate` computes an operation, which it gets by name."""
    stack: list[Any] = []
    for step, operand in code.steps:
        if step.name == "CONSTANT":
            stack.append(operand)
        elif step.name == "SIZE":
            stack.append(sizes[operand])
        else:
            right = stack.pop()
            stack[-1] = operate(step.name, stack[-1], right)
    return stack[0]
