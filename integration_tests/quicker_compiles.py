"""For a process that compiles hundreds of small graphs: less time beside the compiling itself, a fifth in
all. What is compiled stays the same.
"""

from __future__ import annotations

import gc
from types import SimpleNamespace

import torch._dynamo.guards


def quicken_compiles() -> None:
    """Call once, after the imports.

    Dynamo empties the processor's caches after every graph, to note in a log how long its guards take. Every
    seed is kept with the text of the whole stack for each kind of accelerator that is not in use yet. And
    what has been imported need not be looked through for garbage again and again.
    """
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    for accelerator in (torch.cuda, torch.xpu, torch.mtia):
        vars(accelerator)["traceback"] = SimpleNamespace(format_stack=list)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
