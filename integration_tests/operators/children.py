"""Work in a forked process, which leaves nothing behind in this one.

Torch marks a process that has taken gradients: forks of it can take none. Calls that eager refuses are made
in forks, so whoever judges gradients of calls takes its own in a fork, too.
"""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

import torch

from integration_tests.forks import die_with_parent

Result = TypeVar("Result")


def run_in_child(compute: Callable[[], Result]) -> Result:
    """What `compute` returns, which is pickled. A signal that ends the child ends this process, too.

    Raises:
        ChildProcessError: `compute` raises an error, which is printed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(compute, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        os.kill(os.getpid(), os.WTERMSIG(status))
    if status != 0:
        raise ChildProcessError(f"a child ends with status {status}")
    found: Result = pickle.loads(text)
    return found


def _answer(compute: Callable[[], object], writing: int) -> None:
    """In the child: write the result and end. OpenMP's threads don't come along with a fork: one
    has to do.
    """
    die_with_parent()
    torch.set_num_threads(1)
    status = 1
    try:
        with os.fdopen(writing, "wb") as answer:
            pickle.dump(compute(), answer)
        status = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(status)
