"""Prose of Markdown pages within 110 columns.

`python -m benchmarks.pages PAGE ...` wraps the paragraphs and list items of pages that have a longer line.
Tables, headings, fenced and indented examples stay as they are. Programs that write pages call `wrap_prose`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

COLUMNS: Final = 110

_ITEM: Final = re.compile(r"\s*([-*+]|\d+\.)\s+")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
# The first characters of lines that are no prose.
_OTHER: Final = ("|", "#", "<", ">", "!!!", "---", "===")
# A span of code with a space in it, or the end of a link, is one word: checks of pages read them line by
# line. What would open a list, a heading, a quotation or a table at the beginning of a line stays behind its
# word.
_WORD: Final = re.compile(r"(?:`[^`]*`|\]\([^)]*\)|\S)+(?: (?:[-+*>|]|#+|\d+[.)])(?= |$))*")


def wrap_prose(text: str, columns: int = COLUMNS) -> str:
    """Return the page `text` with each paragraph and list item that is wider than `columns` wrapped anew."""
    blocks = (_wrap(lines, columns) if is_prose else lines for lines, is_prose in _split_blocks(text))
    return "\n".join(line for block in blocks for line in block)


def find_long_lines(text: str, columns: int = COLUMNS) -> tuple[int, ...]:
    """Return the numbers of the lines that `wrap_prose` would break."""
    found: list[int] = []
    number = 0
    for lines, is_prose in _split_blocks(text):
        if is_prose and _wrap(lines, columns) != lines:
            found += [number + k for k, line in enumerate(lines, 1) if len(line) > columns]
        number += len(lines)
    return tuple(found)


def _split_blocks(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines of one paragraph or list item together, others alone; and whether they are prose."""
    block: list[str] = []
    is_fenced = False
    for line in text.split("\n"):
        is_fence = bool(_FENCE.match(line))
        is_fenced ^= is_fence
        is_alone = is_fence or is_fenced or not line.strip() or line.lstrip().startswith(_OTHER)
        if block and (is_alone or _ITEM.match(line)):
            yield block, True
            block = []
        if is_alone:
            yield [line], False
        else:
            block.append(line)
    if block:
        yield block, True


def _wrap(block: list[str], columns: int) -> list[str]:
    first = block[0]
    item = _ITEM.match(first)
    is_example = first.startswith("    ") and item is None
    has_breaks = any(line.endswith("  ") for line in block)
    if max(map(len, block)) <= columns or is_example or has_breaks:
        return block
    indent = item[0] if item else first[: len(first) - len(first.lstrip())]
    words = _WORD.findall(" ".join([first[len(indent) :], *(line.strip() for line in block[1:])]))
    lines = [indent + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) > columns:
            lines.append(" " * len(indent) + word)
        else:
            lines[-1] += f" {word}"
    return lines


def main(paths: list[str]) -> None:
    for path in map(Path, paths):
        path.write_text(wrap_prose(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
