"""Prose of pages is within 110 columns, and `benchmarks.pages` wraps it without changing what a page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pages import find_long_lines, wrap_prose

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("benchmarks", "docs", "integration_tests", "packages")
PAGES = sorted([*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))])
WORDS = " ".join(["word"] * 12)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_prose_of_a_page_is_within_110_columns(page: Path) -> None:
    assert find_long_lines(page.read_text(encoding="utf-8")) == ()


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("one two\nthree", "one two\nthree"),
        ("one two three four", "one two\nthree four"),
        ("- one two three", "- one two\n  three"),
        ("10. one two three", "10. one two\n    three"),
        ("one `two three` four", "one\n`two three`\nfour"),
        ("[one two](three four five)", "[one\ntwo](three four five)"),
        ("one two three - four", "one two\nthree - four"),
        ("one two thre - four", "one two\nthre - four"),
        ("one two th 1. fo", "one two\nth 1. fo"),
    ],
)
def test_words_move_to_the_next_line(text: str, wrapped: str) -> None:
    assert wrap_prose(text, columns=12) == wrapped


@pytest.mark.parametrize(
    "text",
    [
        f"```\n{WORDS}\n```",
        f"- item\n\n    ```\n    {WORDS}\n    ```",
        f"    {WORDS}",
        f"| {WORDS} |\n|---|",
        f"# {WORDS}",
        f"> {WORDS}",
        f"{WORDS}  \nnext",
    ],
    ids=["fence", "fence in an item", "indented", "table", "heading", "quotation", "hard break"],
)
def test_code_and_tables_are_not_wrapped(text: str) -> None:
    assert wrap_prose(text, columns=20) == text
    assert find_long_lines(text, columns=20) == ()


def test_lines_are_counted_from_the_top_of_the_page() -> None:
    assert find_long_lines(f"# title\n\nshort\n\n- item\n- {WORDS}\n", columns=20) == (6,)
