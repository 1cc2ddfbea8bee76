"""Run-time checks inside kernels, such as an index out of range: from the failed check's number to an exception."""

from __future__ import annotations

from collections.abc import Sequence


def raise_check(kernel: str, checks: Sequence[str], number: int) -> None:
    """Raise the error of failed check `number` of `checks`. A text `IndexError: …` names its own type.

    Raises:
        IndexError, ZeroDivisionError: the text begins with `IndexError: ` or `ZeroDivisionError: `.
        RuntimeError: any other.
    """
    message = checks[number]
    kind, separator, rest = message.partition(": ")
    for error in (IndexError, ZeroDivisionError):
        if separator and kind == error.__name__:
            raise error(f"{rest} (in kernel {kernel})")
    raise RuntimeError(f"{rest if separator and kind == 'RuntimeError' else message} (in kernel {kernel})")
