"""Run-time checks inside kernels, such as an index out of range: from the failed check's number to an
exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def raise_check(kernel: str, checks: Sequence[str], number: int) -> NoReturn:
    """Raise the error of failed check `number` of `checks`, as `raise_failure` does."""
    raise_failure(f"{checks[number]} (in kernel {kernel})")


def raise_failure(message: str) -> NoReturn:
    """Raise the error that the text of a failed check says. `IndexError: …` names its own type.

    Raises:
        IndexError, ZeroDivisionError: the text begins with `IndexError: ` or `ZeroDivisionError: `.
        RuntimeError: any other.
    """
    kind, separator, rest = message.partition(": ")
    for error in (IndexError, ZeroDivisionError):
        if separator and kind == error.__name__:
            raise error(rest)
    raise RuntimeError(rest if separator and kind == "RuntimeError" else message)
