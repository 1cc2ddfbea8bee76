"""The folder `packages/` is the list of packages. What cannot read it, as settings of tools and pages, names
each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from architecture import layers
from coilwork_tools.graph_key import COMPONENTS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")))


def test_tables_have_every_package() -> None:
    assert set(layers.ALLOWED) == set(PACKAGES)
    assert {name.replace("_", "-") for name in COMPONENTS} == set(PACKAGES)


@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("pyproject.toml", '"$MYPY_CONFIG_FILE_DIR/packages/{}/src"'),
        ("mkdocs.yml", "- packages/{}.md"),
        ("mkdocs.yml", "- reference/{}.md"),
        ("mkdocs.yml", "- packages/{}/src"),
        ("README.md", "[{}](packages/{})"),
        ("docs/index.md", "[{}](packages/{}.md)"),
        ("docs/packages-alone.md", "| [{}](packages/{}.md) |"),
        ("docs/architecture.md", "`{_}`"),
        ("integration_tests/consumers/full_stack/installed.txt", "{}\n"),
    ],
)
def test_files_name_every_package(file: str, form: str) -> None:
    text = (ROOT / file).read_text()
    names = {name: form.replace("{}", name).replace("{_}", name.replace("-", "_")) for name in PACKAGES}
    assert [name for name, written in names.items() if written not in text] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_has_its_pages(name: str) -> None:
    folder = ROOT / "packages" / name
    pages = (folder / "README.md", folder / "CHANGELOG.md", folder / "LICENSE", folder / "tests")
    source = folder / "src" / name.replace("-", "_")
    assert all(path.exists() for path in (*pages, source / "py.typed", source / "__init__.py"))
    for room in ("packages", "reference"):
        assert (ROOT / "docs" / room / f"{name}.md").is_file()
