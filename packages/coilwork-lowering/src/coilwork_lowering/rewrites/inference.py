"""Clean-up of inference graphs, which see no partition; `partition` cleans up joint graphs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from coilwork_lowering.rewrites.clean_up import clean_up
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite
from coilwork_lowering.torch_compat import copied_graph


def cleaned_up(gm: fx.GraphModule, rewrites: Sequence[Rewrite]) -> tuple[fx.GraphModule, tuple[Fired, ...]]:
    """A copy of `gm` after `clean_up`, and what `rewrites` did to it."""
    made = fx.GraphModule(gm, copied_graph(gm.graph))
    made.meta.update(gm.meta)
    fired = clean_up(made, rewrites)
    return made, fired
