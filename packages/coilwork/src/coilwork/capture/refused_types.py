"""What eager refuses of operators that torch decomposes whatever they are given, before it asks a table of decompositions.

Losses of types that eager has no kernel for; `hardshrink` by a number that does not fit the tensor's type.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import torch
from torch import fx

from coilwork.capture.margin_calls import MULTILABEL, MULTILABEL_FORWARD, MarginCall, margin_call
from coilwork_lowering.facts.accepted_numbers import accepts_numbers
from coilwork_lowering.facts.accepted_types import accepts

# operators that are others inside, which have the kernels
_KERNELS: Final = MappingProxyType({MULTILABEL: MULTILABEL_FORWARD})
_HARDSHRINK: Final = torch.ops.aten.hardshrink.default
_SHRINKING: Final = frozenset({torch.hardshrink, _HARDSHRINK, _HARDSHRINK.overloadpacket})


def has_refused_types(gm: fx.GraphModule) -> bool:
    """Whether a call in Dynamo's graph is of types or numbers that eager refuses, so that the captured graph raises eager's error.

    That has to be run: of no elements, eager refuses none of them.
    """
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    nodes = [node for graph in graphs for node in graph.nodes]
    calls = [margin_call(node) for node in nodes]
    return any(call is not None and _is_refused(call) for call in calls) or any(
        map(_shrinks_by_too_much, nodes)
    )


def _shrinks_by_too_much(node: fx.Node) -> bool:
    if node.op != "call_function" or node.target not in _SHRINKING or not node.args:
        return False
    given = node.args[0]
    value = given.meta.get("example_value") if isinstance(given, fx.Node) else None
    bound = node.args[1] if len(node.args) > 1 else node.kwargs.get("lambd")
    return not accepts_numbers(_HARDSHRINK, {"self": value, "lambd": bound})


def _is_refused(call: MarginCall) -> bool:
    kernel = _KERNELS.get(call.operator, call.operator)
    weighed = call.weight is not None and call.weight.dtype is not call.scores.dtype
    return weighed or call.labels.dtype is not torch.int64 or not accepts(kernel, {"self": call.scores})
