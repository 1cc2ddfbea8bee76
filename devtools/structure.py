"""The packages as they are: sizes, who imports whom, and what the meta-package holds.

`python devtools/structure.py` writes `docs/structure.md`, and the numbers of lines in pages that list the
files of an example. Lines are all lines of Python below `src`, blank ones and docstrings among them.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from architecture.layers import distribution, is_ours
from architecture.sources import read_sources

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = "docs/structure.md"
META: Final = "coilwork"
MOST_LINES_OF_META: Final = 2000
"""The meta-package holds registration, options, wiring and the command line (decision 0054)."""
LISTED: Final[Mapping[str, str]] = MappingProxyType(
    {"docs/how-to/add-a-device.md": "integration_tests/consumers/example_device"}
)
"""Pages with a table of an example's files, by the folder that the files are in."""
_ROW: Final = re.compile(r"^\| `(?P<file>[^`]+)` \|(?P<what>.*)\| (?P<lines>\d+) \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One package: its modules with their lines, and the packages of ours that it imports."""

    name: str
    modules: Mapping[Path, int]
    imports: frozenset[str]

    @property
    def lines(self) -> int:
        return sum(self.modules.values())


def read_packages(root: Path) -> dict[str, Package]:
    """The packages below `root`, by name."""
    imports: dict[str, set[str]] = {}
    for source in read_sources(root):
        used = {distribution(site.top) for site in source.imports if is_ours(site.top)}
        imports.setdefault(source.package or "", set()).update(used - {source.package})
    found = {}
    for folder in sorted(path.parent for path in root.glob("packages/*/pyproject.toml")):
        modules = {path: count_lines(path) for path in sorted((folder / "src").rglob("*.py"))}
        used = imports.get(folder.name, set())
        found[folder.name] = Package(name=folder.name, modules=modules, imports=frozenset(used))
    return found


def count_lines(path: Path) -> int:
    """The lines of a text."""
    return len(path.read_text(encoding="utf-8").splitlines())


def list_layers(packages: Mapping[str, Package]) -> list[list[str]]:
    """The packages from the bottom up: those of a layer import of the layers below it alone."""
    layers: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(packages):
        layer = [
            name for name, package in packages.items() if name not in placed and package.imports <= placed
        ]
        if not layer:
            raise ValueError(f"packages import each other: {sorted(packages.keys() - placed)}")
        layers.append(layer)
        placed.update(layer)
    return layers


def draw(packages: Mapping[str, Package]) -> str:
    """Return who imports whom, the top layer first."""
    rows = []
    for layer in reversed(list_layers(packages)):
        for name in layer:
            rows.append(f"{name:<22}{', '.join(sorted(packages[name].imports)) or '-'}")
        rows.append("")
    return "\n".join(rows).rstrip()


def write_page(packages: Mapping[str, Package]) -> str:
    """The text of the page."""
    sizes = "\n".join(
        f"| [{name}](packages/{name}.md) | {package.lines:,} | {len(package.modules)} |"
        for name, package in packages.items()
    )
    meta = packages[META]
    held = "\n".join(
        f"| `{path.name if path.parent.name == META else f'{path.parent.name}/{path.name}'}` | {lines} | "
        f"{_first_sentence(path)} |"
        for path, lines in meta.modules.items()
    )
    return f"""# The packages as they are

`nox -s structure` writes this page. Lines are those of Python below `src`.

## Who imports whom

The top layer first. A package imports of the layers below its own alone;
[the architecture test](architecture.md) says which it may.

```
{draw(packages)}
```

## Sizes

| package | lines | modules |
|---|---|---|
{sizes}

## What the meta-package holds

Registration, options, wiring and the command line, in {meta.lines:,} lines;
[what lies elsewhere](decisions/0054-what-the-meta-package-holds.md).

| file | lines | what it is |
|---|---|---|
{held}
"""


def _first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("|", "\\|")


def fill_lines(page: str, folder: Path) -> str:
    """`page` with the numbers of lines of the files in `folder` that its table lists."""

    def fill(row: re.Match[str]) -> str:
        return f"| `{row['file']}` |{row['what']}| {count_lines(folder / row['file'])} |"

    return _ROW.sub(fill, page)


def main() -> int:
    """Write the page and the numbers; the exit status is 1 if the meta-package has grown too large."""
    packages = read_packages(ROOT)
    (ROOT / PAGE).write_text(write_page(packages), encoding="utf-8")
    for name, folder in LISTED.items():
        page = ROOT / name
        page.write_text(fill_lines(page.read_text(encoding="utf-8"), ROOT / folder), encoding="utf-8")
    meta = packages[META].lines
    print(f"{META} has {meta} lines, at most {MOST_LINES_OF_META} are for registration, options and wiring")
    return 1 if meta > MOST_LINES_OF_META else 0


if __name__ == "__main__":
    sys.exit(main())
