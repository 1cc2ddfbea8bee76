"""Loop IR: one node per operation of the captured graph, with its loops.

Open `nodes.py` first. `text.py` and `parser.py` are its text, `verify.py` its rules, `interpreter.py` its
meaning; `matrix_products.py`, `convolutions.py` and `attention.py` are nodes that libraries may compute.
"""

from coilwork_ir.loops.nodes import (
    AssertSize,
    Attention,
    AttentionGradient,
    Body,
    Check,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Groups,
    Loop,
    Mutation,
    Node,
    Pointwise,
    Reduce,
    Scan,
    Scatter,
    Sort,
    View,
    Window,
)

__all__ = [
    "AssertSize",
    "Attention",
    "AttentionGradient",
    "Body",
    "Check",
    "Cond",
    "Contraction",
    "Convolution",
    "Extern",
    "Graph",
    "Groups",
    "Mutation",
    "Node",
    "Pointwise",
    "Reduce",
    "Scan",
    "Scatter",
    "Sort",
    "View",
    "Loop",
    "Window",
]
