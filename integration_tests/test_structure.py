"""What pages say of the packages' sizes and imports is what the sources say."""

from __future__ import annotations

from pathlib import Path

import pytest
import structure

PACKAGES = structure.read_packages(structure.ROOT)
AGAIN = "run `nox -s structure`"


def test_the_meta_package_is_thin() -> None:
    """It holds registration, options, wiring and the command line: an idea lies in a package that is about
    it."""
    assert PACKAGES[structure.META].lines <= structure.MOST_LINES_OF_META


def test_the_page_draws_the_imports() -> None:
    page = (structure.ROOT / structure.PAGE).read_text()
    assert structure.draw(PACKAGES) in page, AGAIN
    named = {name for name in PACKAGES if f"[{name}](packages/{name}.md)" in page}
    assert named == set(PACKAGES), AGAIN
    files = [path.name for path in PACKAGES[structure.META].modules]
    assert all(f"{name}` |" in page for name in files), AGAIN


@pytest.mark.parametrize("page", structure.LISTED)
def test_listed_files_have_the_lines_that_a_page_says(page: str) -> None:
    text = (structure.ROOT / page).read_text()
    assert structure.fill_lines(text, structure.ROOT / structure.LISTED[page]) == text, AGAIN


def test_sizes_and_imports_are_read_from_sources(tmp_path: Path) -> None:
    for name, text in (("coilwork-ir", "A = 1\n\n"), ("coilwork-cpp", "from coilwork_ir import A\n")):
        source = tmp_path / "packages" / name / "src" / name.replace("-", "_") / "a.py"
        source.parent.mkdir(parents=True)
        source.write_text(text)
        (tmp_path / "packages" / name / "pyproject.toml").write_text("")
    packages = structure.read_packages(tmp_path)
    assert {name: package.lines for name, package in packages.items()} == {
        "coilwork-ir": 2,
        "coilwork-cpp": 1,
    }
    assert structure.list_layers(packages) == [["coilwork-ir"], ["coilwork-cpp"]]
    assert structure.draw(packages).split() == ["coilwork-cpp", "coilwork-ir", "coilwork-ir", "-"]


def test_line_counts_are_filled_in(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1\n2\n3\n")
    page = "| file | what it is | lines |\n|---|---|---|\n| `a.py` | the `value` | 7 |\n"
    assert structure.fill_lines(page, tmp_path) == page.replace("7", "3")
