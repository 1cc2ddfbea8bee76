"""Marks that one package leaves in an FX graph for another: keys of `node.meta`, and messages of assertions.

The frontend and lowering work on the same ATen graphs and import none of each other; they agree here.
"""

from __future__ import annotations

from typing import Final

FREE_STRIDES: Final = "coilwork_free_strides"
"""Key of `node.meta`: a value saved for the backward graph that may lie in memory as the forward graph
likes."""

OWN_PADDING: Final = "own_padding"
"""Key of `node.meta`: rows of a value were padded here, so that what is between them is nobody's."""

SQUEEZED_ONE: Final = "squeeze() of a size from data: it is 1, and the graph was captured for all others"
"""Message of the assertion that a squeezed size, known when the program runs, is not 1."""
