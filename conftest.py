"""What tests of all packages have in common: the option `--update`, quicker compiles, and the end of tests
that never end.

A time limit (`pyproject.toml`) is a signal, which waits for ever in native code that never ends. There, the
process ends.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator

import pytest

STDERR = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update` rewrites the texts that tests expect, in all packages: read the difference."""
    parser.addoption("--update", action="store_true", help="rewrite expected texts instead of comparing them")


def pytest_configure(config: pytest.Config) -> None:
    """Tests' own output goes elsewhere while they run."""
    config.stash[STDERR] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)


def pytest_collection_finish() -> None:
    """After all imports, of which few packages need torch, or Dynamo."""
    from integration_tests.quicker_compiles import collect_garbage_rarely, quicken_compiles

    if "torch._dynamo" not in sys.modules:
        collect_garbage_rarely()
        return
    import torch._dynamo

    quicken_compiles()
    # of what is compiled too often without a reset, eager would be compared with itself
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[STDERR])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """After twice the test's limit, all stacks, and the end. It needs no interpreter, which native code may
    hold.
    """
    limit = limit_of(item)
    if limit:
        faulthandler.dump_traceback_later(2 * limit, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def limit_of(item: pytest.Item) -> float:
    """Seconds that `item` may take; 0 for any number."""
    marker = item.get_closest_marker("timeout")
    if marker is not None and (marker.args or "timeout" in marker.kwargs):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    given = item.config.getoption("timeout")
    return float(given if given is not None else item.config.getini("timeout") or 0)
