"""Gradients that come into a joint graph, in the shapes of the results that they belong to.

AOTAutograd asks torch's meta functions for the shape of a gradient, and traces results through
decompositions. Where the former are wrong (norms along a last dimension of one element, in torch 2.11) the
joint graph sees a gradient of another shape than it gets.
"""

from __future__ import annotations

import torch

from coilwork_lowering.torch_compat.graphs import tangents_of
from coilwork_lowering.torch_compat.sizes import surely


def shape_tangents(joint: torch.fx.GraphModule) -> int:
    """Correct the shapes of incoming gradients in `joint`; returns of how many."""
    count = 0
    for tangent, result in tangents_of(joint):
        given, made = tangent.meta.get("val"), result.meta.get("val")
        if not isinstance(given, torch.Tensor) or not isinstance(made, torch.Tensor):
            continue
        if given.dim() != made.dim() and surely(given.numel() == made.numel()):
            tangent.meta["val"] = given.view(made.shape)
            count += 1
    return count
