"""The page that shows how to read a kernel is made from kernels as they are."""

from __future__ import annotations

from benchmarks.traced_kernels import page


def test_the_page_shows_kernels_mappings_and_layouts() -> None:
    text = "\n\n".join(page())
    sections = {part.split("\n", 1)[0]: part for part in text.split("\n## ")[1:]}
    assert list(sections) == ["A norm", "A scatter", "A product", "Where tensors lie"]
    for title in ("A norm", "A scatter", "A product"):
        assert " for cuda {" in sections[title] and " for cpu {" in sections[title]
    assert "keep r0 by 1024" in sections["A norm"]
    assert "add = " in sections["A scatter"]
    assert "unit mma" in sections["A product"]
    assert "layout" in sections["Where tensors lie"].split("```")[1]
