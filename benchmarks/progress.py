"""Progress on the terminal: rich where it is installed, plain lines where it is not."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

Report = Callable[[str], None]


@contextmanager
def progress(total: int) -> Iterator[tuple[Report, Callable[[], None]]]:
    """Yields `say(text)`, which tells what is going on, and `advance()`, which counts one of `total` steps as
    done.
    """
    if find_spec("rich") is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("starting", total=total)
            yield lambda text: bar.update(task, description=text), lambda: bar.advance(task)
        return
    start, done = time.monotonic(), 0

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.0f} s] {done}/{total} {text}", file=sys.stderr, flush=True)

    def advance() -> None:
        nonlocal done
        done += 1

    yield say, advance
