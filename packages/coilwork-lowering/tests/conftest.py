"""Lets test files import the modules beside them, under pytest's importlib mode, and compile without what
only takes time.
"""

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def quick_compiles() -> None:
    """Dynamo empties the processor's caches after every graph, to note in a log how long its guards take: 40
    ms.
    """
    import torch._dynamo.guards

    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def nothing_in_eager() -> None:
    """What is compiled too often without a reset fails: Dynamo would leave it to eager, which tests would
    compare with itself.
    """
    import torch._dynamo

    torch._dynamo.config.fail_on_recompile_limit_hit = True
