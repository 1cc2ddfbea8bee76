"""Losses of types that eager has no kernel for. Torch decomposes these, whatever the types, before it asks a table of decompositions."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import torch
from torch import fx

from coilwork.capture.margin_calls import MULTILABEL, MULTILABEL_FORWARD, MarginCall, margin_call
from coilwork_lowering.facts.accepted_types import accepts

# operators that are others inside, which have the kernels
_KERNELS: Final = MappingProxyType({MULTILABEL: MULTILABEL_FORWARD})


def has_refused_types(gm: fx.GraphModule) -> bool:
    """Whether a loss in Dynamo's graph is of types that eager refuses, so that the captured graph raises eager's error.

    That has to be run: of no elements, eager refuses none of them.
    """
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    calls = [margin_call(node) for graph in graphs for node in graph.nodes]
    return any(call is not None and _is_refused(call) for call in calls)


def _is_refused(call: MarginCall) -> bool:
    kernel = _KERNELS.get(call.operator, call.operator)
    weighed = call.weight is not None and call.weight.dtype is not call.scores.dtype
    return weighed or call.labels.dtype is not torch.int64 or not accepts(kernel, {"self": call.scores})
