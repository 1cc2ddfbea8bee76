"""Where an FX node is from, by its metadata: the user's source line, and what calls made in its place
inherit.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import torch

from coilwork_ir.loc import Origin
from coilwork_lowering.torch_compat.operators import Overload, qualified_name

# the two lines of a frame in a Python traceback
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*(?:\n +(?P<code>[^\n]*))?')
# where a node comes from, and which part of the joint graph it belongs to
_INHERITED: Final = (
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "seq_nr",
    "from_node",
    "partitioner_tag",
    "recompute",
    "ac_graph_id",
)


def operator_name(node: torch.fx.Node) -> str:
    """The operator of `node` as the IR spells it: `"aten.add.Tensor"`, or the function's name."""
    return name_of_target(node.target)


def name_of_target(target: object) -> str:
    """Return what the IR calls an operator or function."""
    if isinstance(target, Overload):
        return qualified_name(target)
    return target if isinstance(target, str) else str(getattr(target, "__name__", repr(target)))


def origin_of(node: torch.fx.Node) -> Origin:
    """The captured operation `node`, with the innermost frame of its stack trace."""
    found = origin_of_trace(operator_name(node), node.meta.get("stack_trace"))
    return replace(found, node=node.name, module=_module_of(node))


def origin_of_trace(op: str, trace: object) -> Origin:
    """The operation `op`, of no node, with the innermost frame of `trace`, a traceback as text if there is
    one.
    """
    file, line, code = "", 0, ""
    if isinstance(trace, str):
        frames = list(_FRAME.finditer(trace))
        if frames:
            last = frames[-1]
            file, line, code = last["file"], int(last["line"]), (last["code"] or "").strip()
    return Origin(node="", op=op, file=file, line=line, code=code)


def inherit_metadata(node: torch.fx.Node) -> dict[str, Any]:
    """Metadata that a call made in the place of `node`, or for it, has in common with it."""
    return {key: node.meta[key] for key in _INHERITED if key in node.meta}


def _module_of(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return re.sub(r"L\['self'\]\.?|\['?([^'\]]*)'?\]", lambda m: f".{m[1]}" if m[1] else "", path).lstrip(".")
