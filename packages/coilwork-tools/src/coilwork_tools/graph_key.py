"""The key of a compiled graph in the cache that processes and machines share."""

from __future__ import annotations

from typing import Final

import torch

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


# The cache checks by itself what it reads; packages decide nothing about what is compiled.
STAGES: Final = tuple(name for name in COMPONENTS if name not in ("coilwork_aot", "coilwork_cache"))


def make_key_parts(graph_text: str, targets_text: str, options_text: str, identity: str) -> dict[str, str]:
    """Return what the key of a graph is made of, by name.

    That is the targets, too, for caches that machines share, and torch's version and the `identity` of the
    compiler (its `STAGES` and registered back ends), so that an upgrade never meets old entries.
    """
    return {
        "graph": graph_text,
        "targets": targets_text,
        "options": options_text,
        "torch": torch.__version__,
        "compiler": identity,
    }
