"""Kernels that have so little to do that their best guess is as good as any configuration."""

from __future__ import annotations

import ast
from typing import Final

from coilwork_runtime.manifest.kernel_manifest import KernelSpec

# Half a microsecond of an H200's memory, one of an A100's. Such a kernel takes about two, nearly all of which
# is its start and the way of one load to a register, whatever its blocks are; the timing of candidates does
# not tell them apart.
FEW_BYTES: Final = 2_000_000
# What makes a program's threads wait for each other again and again, so that its time is not that of its
# bytes.
_CHAINS: Final = frozenset({"associative_scan", "cumsum", "cumprod", "sort", "dot"})


def best_guess_does(spec: KernelSpec) -> bool:
    """Tell whether `spec` moves few bytes, in a number that is known, and does it in one go: no loops, scans,
    sorts or products.
    """
    moved = None if spec.traffic is None else spec.traffic.constant
    if moved is None or moved > FEW_BYTES:
        return False
    try:
        nodes = tuple(ast.walk(ast.parse(spec.source)))
    except (SyntaxError, ValueError):
        return False
    return not any(
        isinstance(node, ast.For | ast.While) or (isinstance(node, ast.Attribute) and node.attr in _CHAINS)
        for node in nodes
    )
