"""Prose of pages is within 110 columns, `benchmarks.pages` wraps it without changing what a page says, and
the site lists every page."""

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


def test_the_site_has_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in sorted(pages) if f"- {page}\n" not in nav] == []


def test_the_list_of_decisions_has_every_decision_by_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = " ".join((folder / "index.md").read_text(encoding="utf-8").split())
    titles = {page.name: page.read_text(encoding="utf-8").splitlines()[0] for page in folder.glob("0*.md")}
    rows = [f"[{title.removeprefix('# ')}]({name})" for name, title in sorted(titles.items())]
    assert [row for row in rows if row not in listed] == []


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
