"""Loop IR: one node per operation of the captured graph."""

from coilwork_ir.loops.attention.nodes import Attention, AttentionGradient
from coilwork_ir.loops.nodes import (
    AssertSize,
    Check,
    Cond,
    Contraction,
    Extern,
    Graph,
    Mutation,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
    While,
)

__all__ = [
    "AssertSize",
    "Attention",
    "AttentionGradient",
    "Check",
    "Cond",
    "Contraction",
    "Extern",
    "Graph",
    "Mutation",
    "Node",
    "Pointwise",
    "Reduce",
    "Scan",
    "Scatter",
    "Sort",
    "View",
    "While",
]
