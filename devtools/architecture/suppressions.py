"""Silenced tools, parked work and names that say nothing."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from architecture.sources import Source, Violation

SILENCED = re.compile(r"#\s*(type:\s*ignore|mypy:|pyright:)")
PARKED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
EMPTY_NAMES = frozenset({"util", "utils", "common", "manager", "helper", "helpers", "misc"})


def comments(source: Source) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def check_no_silenced_types(sources: Sequence[Source]) -> list[Violation]:
    return sorted(
        source.violation(line, f"silences the type checker: {text}")
        for source in sources
        for line, text in comments(source)
        if SILENCED.search(text)
    )


def check_no_parked_work(sources: Sequence[Source]) -> list[Violation]:
    return sorted(
        source.violation(line, f"parked work: {text}")
        for source in sources
        for line, text in comments(source)
        if PARKED.search(text)
    )


def check_file_names(sources: Sequence[Source]) -> list[Violation]:
    return sorted(
        source.violation(1, f"'{part}' names no idea")
        for source in sources
        for part in PurePosixPath(source.path).with_suffix("").parts
        if part.strip("_") in EMPTY_NAMES
    )
