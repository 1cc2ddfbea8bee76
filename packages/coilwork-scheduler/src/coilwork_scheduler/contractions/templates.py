"""Templates: kernels that compute a convolution, attention or its gradient as one node.

Other implementations say which nodes they are, and the node is gone. A template leaves the node in the graph.
Pointwise neighbours then become its prologues and its epilogue, as far as it claims the node with them
(`inlining/absorb.py`), and the node becomes a kernel with a core (`coilwork_ir.kernels.nodes`), which a
generator has the text for. A target whose generator declares no cores of that kind is asked about none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol, TypeAlias

from coilwork_ir.kernels.nodes import CoreKind
from coilwork_ir.loops import Attention, AttentionGradient, Convolution
from coilwork_ir.target import Capabilities, Target
from coilwork_scheduler.contractions.implementations import Quote, Surroundings

CoreNode: TypeAlias = Convolution | Attention | AttentionGradient
"""A node that a kernel can have as its core."""


class Template(Protocol):
    """A kernel that computes nodes as they are, prologues and epilogue included."""

    def claims(self, node: CoreNode, target: Target, /) -> str | None:
        """Why it does not compute `node` on `target`; None if it does.

        It sees bodies and the layouts of what they read and make. Asked again about the node with a neighbour
        in it, it says which prologues and epilogues it takes.
        """
        ...

    def quote(self, node: CoreNode, target: Target, /) -> Quote:
        """Cost of `node`, which it claims, on `target`. Pure, and as cheap as a cost model."""
        ...

    def least_gain_us(self, node: CoreNode, rival: Quote, /) -> float:
        """The gain over `rival` from which on it is chosen: models err."""
        ...


MakeTemplate: TypeAlias = Callable[[Surroundings], Template]
"""Makes a template that knows what is around the nodes that it is asked about."""


def kind_of_node(node: CoreNode) -> CoreKind:
    """The kind of the core that `node` becomes."""
    match node:
        case Convolution():
            return "convolution"
        case Attention():
            return "attention"
        case AttentionGradient():
            return "attention-gradient"


def why_no_core(node: CoreNode) -> str | None:
    """Why no kernel has `node` as its core, whatever the generator; None if one can."""
    if isinstance(node, Convolution):
        made = [output is not None for output in node.outputs]
        if made.count(True) != 1 or any(made[2:]):
            return "a kernel makes one gradient of a convolution"
        return None if node.accumulate.is_float else "a core multiplies floats"
    if node.weights.form != "plain" or node.weights.dropout:
        return "a core leaves nothing for its gradient but its results"
    if isinstance(node, Attention) and node.logsumexp is not None and node.logsumexp_at is None:
        return "its logsumexp is memory that nothing is stored in"
    return None


def find_template(
    node: CoreNode,
    target: Target,
    capabilities: Capabilities,
    templates: Sequence[Template],
    rival: Quote | None = None,
) -> tuple[Template, Quote] | None:
    """The template that computes `node` for least, and its quote; None if none is worth it beside `rival`."""
    if not templates or kind_of_node(node) not in capabilities.cores or why_no_core(node):
        return None
    claimed = [template for template in templates if template.claims(node, target) is None]
    quotes = [(template.quote(node, target), template) for template in claimed]
    quote, best = min(quotes, key=lambda pair: pair[0].us, default=(None, None))
    if quote is None or best is None or quote.us == inf:
        return None
    if rival is not None and not (
        quote.us < rival.us and quote.us + best.least_gain_us(node, rival) <= rival.us
    ):
        return None
    return best, quote
