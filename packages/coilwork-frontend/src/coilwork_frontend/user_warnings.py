"""Warnings at the user's line.

Between the user's call and the place that finds something to warn of lie Dynamo, AOTAutograd, autograd and
we, in numbers of frames that differ from release to release and from call to call. So a warning looks for the
nearest frame that is neither torch's nor ours: the call of `torch.compile`, or of what it returned, if that
compiles first when it is called.
"""

from __future__ import annotations

import inspect
import warnings
from types import FrameType
from typing import Final

# Packages whose frames are never the user's: they call, or are called, on the user's behalf.
_BETWEEN: Final = frozenset({"torch", "contextlib", "functools", "threading", "concurrent"})
_OURS: Final = "coilwork"


def warn_user(text: str, category: type[Warning]) -> None:
    """Warn with `text` at the line of the user's that is being run; in a thread without one, where
    `warn_user` is called."""
    frame = find_user_frame()
    if frame is None:
        # autograd runs a backward graph in a thread of its own
        warnings.warn(text, category, stacklevel=2)
        return
    scope = frame.f_globals
    registry = scope.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=scope.get("__name__"),
        registry=registry,
    )


def find_user_frame() -> FrameType | None:
    """The innermost frame of this thread that is neither torch's nor ours; None if there is none."""
    frame = inspect.currentframe()
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    return frame


def _is_between(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str):
        # code that torch generates is of no module
        return True
    package = module.partition(".")[0]
    return package in _BETWEEN or package == _OURS or package.startswith(f"{_OURS}_")
