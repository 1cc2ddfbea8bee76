"""Code of the packages that nobody uses: `python devtools/dead_code.py`.

vulture names functions, classes, methods, attributes and values that are mentioned nowhere but where they are
defined. Users are the packages, the benchmarks, these tools and the projects in
`integration_tests/consumers`; tests are none, since a test keeps nothing alive but itself. What is meant for
others, or is read by them under a name that no program of ours mentions, has a row with its reason in
`dead_code.toml`.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vulture import Vulture

ROOT: Final = Path(__file__).resolve().parent.parent
USERS: Final = ("benchmarks", "devtools", "integration_tests/consumers")
# Commands are called by their names in a terminal.
DECORATORS: Final = ("@cache.command", "@click.command", "@click.group", "@main.command")
LEAST_CONFIDENCE: Final = 60


@dataclass(frozen=True, slots=True, order=True)
class Unused:
    """A name that only its definition mentions, and where that is."""

    path: str
    line: int
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: unused {self.kind} {self.name!r}"


def read_allowed(path: Path) -> Mapping[str, str]:
    """The reasons by name of what is used by others.

    Raises:
        ValueError: a name stands there twice.
    """
    allowed: dict[str, str] = {}
    for row in tomllib.loads(path.read_text(encoding="utf-8"))["used_by_others"]:
        for name in row["names"]:
            if name in allowed:
                raise ValueError(f"{path}: {name!r} stands there twice")
            allowed[name] = row["reason"]
    return allowed


def list_unused(root: Path) -> list[Unused]:
    """Return what vulture finds in the sources of the packages below `root`."""
    finder = Vulture(ignore_decorators=list(DECORATORS))
    sources = sorted(root.glob("packages/*/src"))
    finder.scavenge([*map(str, sources), *(str(root / name) for name in USERS if (root / name).exists())])
    found = []
    for item in finder.get_unused_code(min_confidence=LEAST_CONFIDENCE):
        path = Path(item.filename).resolve().relative_to(root)
        is_special = item.name.startswith("__") and item.name.endswith("__")
        if path.parts[0] == "packages" and not is_special:
            found.append(Unused(path.as_posix(), item.first_lineno, item.typ, item.name))
    return sorted(found)


def judge(unused: Iterable[Unused], allowed: Mapping[str, str]) -> list[str]:
    """Return what is wrong: code without a use or a row, and rows that are for nothing any more."""
    found = list(unused)
    wrong = [str(one) for one in found if one.name not in allowed]
    names = {one.name for one in found}
    return wrong + [
        f"devtools/dead_code.toml: {name!r} needs no row" for name in allowed if name not in names
    ]


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    wrong = judge(list_unused(ROOT), read_allowed(ROOT / "devtools" / "dead_code.toml"))
    print("\n".join(wrong) if wrong else "no dead code")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
