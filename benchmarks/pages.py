"""Prose of Markdown pages within a number of columns.

`python devtools/markdown.py PAGE ...` wraps the paragraphs and list items of pages that have a longer line.
Tables, headings, fenced and indented examples stay as they are. Programs that write pages call `wrap_prose`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

COLUMNS: Final = 110

_ITEM: Final = re.compile(r"(\s*)([-*+]|\d+\.)(\s+)")
_FENCE: Final = re.compile(r"\s*(```|~~~)")
# A span of code with a space in it, or the end of a link, is one word: checks of pages read them line by line.
_WORD: Final = re.compile(r"(?:`[^`]*`|\]\([^)]*\)|\S)+")
# At the beginning of a line these would open a list, a heading, a quotation or a table.
_OPENS_A_BLOCK: Final = re.compile(r"([-+*]|#+|\d+[.)])$|[>|]")


def wrap_prose(text: str, columns: int = COLUMNS) -> str:
    """Return the page `text` with each paragraph and list item that has a line of more than `columns` columns
    laid out anew.
    """
    return "\n".join(line for block in _split_blocks(text) for line in _wrap_block(block, columns))


def find_long_lines(text: str, columns: int = COLUMNS) -> tuple[int, ...]:
    """Return the numbers of the lines that `wrap_prose` would break."""
    found: list[int] = []
    number = 0
    for block in _split_blocks(text):
        if _wrap_block(block, columns) != block:
            found += [number + k for k, line in enumerate(block, 1) if len(line) > columns]
        number += len(block)
    return tuple(found)


def _split_blocks(text: str) -> Iterator[list[str]]:
    """Yield the lines of the page, those of one paragraph or list item together."""
    block: list[str] = []
    fenced = False
    for line in text.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
            alone = True
        else:
            alone = fenced or not line.strip() or line.lstrip().startswith(("|", "#", "<", ">", "!!!"))
        if block and (alone or _ITEM.match(line) or _is_underline(line)):
            yield block
            block = []
        if alone:
            yield [line]
        else:
            block.append(line)
    if block:
        yield block


def _is_underline(line: str) -> bool:
    return bool(re.fullmatch(r"\s*(-{3,}|={3,})\s*", line))


def _wrap_block(block: list[str], columns: int) -> list[str]:
    first = block[0]
    item = _ITEM.match(first)
    indented = first.startswith("    ") and item is None
    prose = first.strip() and not first.lstrip().startswith(("|", "#", "<", ">", "!!!", "```"))
    if max(map(len, block)) <= columns or not prose or indented or any(x.endswith("  ") for x in block):
        return block
    indent = item[0] if item else first[: len(first) - len(first.lstrip())]
    later = " " * len(indent)
    lines = [indent]
    for word in _WORD.findall("\n".join([first[len(indent) :], *block[1:]]).replace("\n", " ")):
        begins = len(lines[-1].strip()) == 0 or lines[-1] == indent
        if not begins and len(lines[-1]) + 1 + len(word) > columns and not _OPENS_A_BLOCK.match(word):
            lines.append(later + word)
        else:
            lines[-1] += word if begins else f" {word}"
    return lines


def main(paths: list[str]) -> int:
    for path in map(Path, paths):
        text = path.read_text(encoding="utf-8")
        path.write_text(wrap_prose(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
