"""The key of a compiled graph in the cache that processes and machines share."""

from __future__ import annotations

from typing import Final

import torch

from coilwork.compile_options import CompileOptions
from coilwork_cache import (
    GraphCache,
    compiler_identity,
)
from coilwork_ir.device_traits import GROUP

COMPONENTS: Final = (
    "coilwork",
    "coilwork_aot",
    "coilwork_cache",
    "coilwork_cpp",
    "coilwork_cpp_wrapper",
    "coilwork_frontend",
    "coilwork_ir",
    "coilwork_lowering",
    "coilwork_runtime",
    "coilwork_scheduler",
    "coilwork_tools",
    "coilwork_triton",
    "coilwork_wrapper",
)
"""The packages that make one compiler."""


# The cache checks by itself what it reads; tools and packages decide nothing about what is compiled.
_STAGES: Final = tuple(
    name for name in COMPONENTS if name not in ("coilwork_aot", "coilwork_cache", "coilwork_tools")
)


def make_graph_key(graphs: GraphCache, graph_text: str, targets_text: str, options: CompileOptions) -> str:
    """Return the key of a graph in `graphs`.

    It contains the targets, for caches that machines share, and torch's version and the compiler's identity,
    so that an upgrade never meets old entries.
    """
    identity = compiler_identity(_STAGES, (GROUP,))
    return graphs.key(graph_text, targets_text, options.key_text(), torch.__version__, identity)
