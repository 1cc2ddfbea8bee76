"""Torch's lock of compilations, which a forked child finds taken if a thread of its parent's compiles:
`eager` waits for ever there, too.

Servers that fork workers while a thread warms a model up meet this. In a child no other thread goes on, so
the lock becomes another one. A thread that forks while it compiles itself gives back the lock that it took,
as `with` keeps hold of that.
"""

from __future__ import annotations

import os
import threading

from torch._dynamo import convert_frame


def free_compile_lock_in_children() -> None:
    """From now on a forked child may compile, whatever its parent's threads were doing. To be called once in
    a process.
    """
    os.register_at_fork(after_in_child=_renew_lock)


def _renew_lock() -> None:
    if hasattr(convert_frame, "compile_lock"):
        vars(convert_frame)["compile_lock"] = threading.RLock()
