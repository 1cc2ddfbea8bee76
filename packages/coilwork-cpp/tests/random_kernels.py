"""Random kernels' results beside the reference interpreter's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from cpp_fixtures import TorchDType

from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel


def check_kernel(
    kernel: Kernel, run: Callable[..., int], torch_dtype: TorchDType, seed: int, note: str = ""
) -> None:
    """Run `kernel` at some sizes and compare with the interpreter."""
    for size in (1, 4, 37) if kernel.sizes else (0,):
        torch.manual_seed(seed)
        total = 1
        for r in kernel.ranges:
            total *= size if r.extent in kernel.sizes else r.extent.value
        given = {}
        for arg in kernel.args:
            kind = torch_dtype(arg.dtype)
            given[arg.name] = (
                torch.randn(total + 1).to(kind) if arg.role == "in" else torch.zeros(total, dtype=kind)
            )
        wanted = {name: value.clone() for name, value in given.items()}
        interpret_kernel(kernel, wanted, [size] if kernel.sizes else [])
        run(*given.values(), *([size] if kernel.sizes else []))
        for arg in kernel.args:
            if arg.role == "out":
                found = (given[arg.name], wanted[arg.name])
                torch.testing.assert_close(*found, rtol=2e-5, atol=2e-5, msg=f"{note}\n{kernel}\n{found}")
