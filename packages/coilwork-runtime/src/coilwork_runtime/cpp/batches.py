"""Several C++ kernels in one run of the compiler: starting it and the linker takes as long as compiling a
small kernel does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from coilwork_runtime.manifest.kernel_manifest import KernelSpec

MOST_TOGETHER: Final = 48
# Characters: from here on starting the compiler matters little, and kernels in one file compile one after the
# other.
LONGEST_TOGETHER: Final = 64_000
# What means all of a file, and so kernels that have nothing to do with it.
_FOR_THE_WHOLE_FILE: Final = re.compile(r"^\s*#\s*(include|define|undef)\b", re.MULTILINE)
# Declarations of functions of C: `extern "C" {`, a line for each, `}`.
_OF_C: Final = re.compile(r'^extern "C" \{\n((?:[^{}\n]*;\n)*)\}\n', re.MULTILINE)


def batches(kernels: Sequence[KernelSpec], workers: int) -> list[tuple[KernelSpec, ...]]:
    """`kernels` in groups, each to be compiled in one go, about equally long, and as many as give all
    `workers` something to do.
    """
    length = sum(len(kernel.source) for kernel in kernels)
    rounds = max(-(-len(kernels) // (workers * MOST_TOGETHER)), -(-length // (workers * LONGEST_TOGETHER)))
    groups: list[list[KernelSpec]] = [[] for _ in range(min(len(kernels), workers * rounds))]
    for kernel in sorted(kernels, key=_length, reverse=True):
        fitting = [group for group in groups if _fits(kernel, group)]
        if not fitting:
            groups.append([])
            fitting = groups[-1:]
        min(fitting, key=lambda group: sum(map(_length, group))).append(kernel)
    return [tuple(group) for group in groups if group]


def joined(kernels: Iterable[KernelSpec]) -> str:
    """One translation unit for all: what each defines lies in a namespace of its own, and the entries have
    their names in C.

    Declarations of functions of C stand before all namespaces. Within one, g++ 12 does not take `tanhf` for
    the function that it knows: some loops are not vectorised then, and the last bit depends on what a kernel
    is compiled with.
    """
    declarations: dict[str, None] = {}
    parts: list[str] = []
    for position, kernel in enumerate(kernels):
        for block in _OF_C.findall(kernel.source):
            declarations.update(dict.fromkeys(block.splitlines()))
        parts.append(f"namespace kernel_{position} {{\n{_OF_C.sub('', kernel.source)}\n}}")
    return "\n".join(['extern "C" {', *declarations, "}", *parts])


def _length(kernel: KernelSpec) -> int:
    return len(kernel.source)


def _fits(kernel: KernelSpec, group: Sequence[KernelSpec]) -> bool:
    if not group:
        return True
    if len(group) == MOST_TOGETHER or any(
        _FOR_THE_WHOLE_FILE.search(one.source) for one in (kernel, group[0])
    ):
        return False
    return kernel.features == group[0].features and all(kernel.entry != one.entry for one in group)
