"""A compiled graph as torch's operators, one by one: for calls that its kernels are not for.

Kernels read memory. A call with tensors that have none (fake, functional, batched, meta ones), or while a
dispatch mode watches operators, gets what eager gives, because the graph's own operators run. Few programs
ever see one of these calls, so what is kept is the graph's text, a hundredth of its nodes, and it is compiled
when it is first needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from torch import fx

Call = Callable[[list[Any]], Sequence[Any]]


def operator_call(gm: fx.GraphModule) -> Call:
    """A call that runs the operators of `gm`, for one list of inputs, which it empties. It keeps no node."""
    code = gm.graph.python_code(root_module="self")
    text, names = code.src, code.globals
    attributes = {
        node.target.partition(".")[0] for node in gm.graph.nodes if node.op in ("get_attr", "call_module")
    }
    owner = SimpleNamespace(**{name: getattr(gm, name) for name in attributes})

    @functools.cache
    def forward() -> Callable[..., Sequence[Any]]:
        scope = dict(names)
        exec(compile(text, "<coilwork operators>", "exec"), scope)
        made: Callable[..., Sequence[Any]] = functools.partial(scope["forward"], owner)
        return made

    def call(args: list[Any]) -> Sequence[Any]:
        values = tuple(args)
        args.clear()
        return forward()(*values)

    return call
