"""For a process that compiles hundreds of small graphs: less time beside the compiling itself, a quarter in
all. What is compiled stays the same.
"""

from __future__ import annotations

import gc
import runpy
import sys
from types import SimpleNamespace


def quicken_compiles() -> None:
    """Call once, after the imports.

    Dynamo empties the processor's caches after every graph, to note in a log how long its guards take, and
    looks for garbage. Every seed is kept with the text of the whole stack for each kind of accelerator that
    is not in use yet.
    """
    import torch._dynamo.guards

    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    torch._dynamo.config.run_gc_after_compile = False
    for accelerator in (torch.cuda, torch.xpu, torch.mtia):
        vars(accelerator)["traceback"] = SimpleNamespace(format_stack=list)
    collect_garbage_rarely()


def collect_garbage_rarely() -> None:
    """Leave out of the garbage collection what has been imported, and make it rare.

    After each graph it took a tenth of a small graph's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700_000, 20, 100)


if __name__ == "__main__":
    # `python -m integration_tests.quicker_compiles MODULE WORDS...` runs another module like that
    quicken_compiles()
    module, *words = sys.argv[1:]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
