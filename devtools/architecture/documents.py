"""Pages name files, folders and modules that are there, and have no fragments of sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from architecture.sources import Violation

_PATH: Final = re.compile(r"[\w.*-]+(/[\w.*-]+)*(/|\.(py|hpp|cpp|triton|md|toml))")
_MODULE: Final = re.compile(r"coilwork(_\w+)?(\.[A-Za-z_]\w*)+")
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
# A line that ends a sentence, and one behind it that begins none.
_FRAGMENT: Final = re.compile(r"(?<=[a-z)`]\.\n)[ ]*[a-z].*")
# What Coilwork and builds of it write.
_WRITTEN: Final = frozenset({"dist/", "dump/", "kernels/", "module.py"})
_TOPS: Final = ("benchmarks", "devtools", "docs", "integration_tests", "packages")
_BUILT: Final = frozenset({"__pycache__", "build", "dist", "site"})


def check_documents(root: Path) -> list[Violation]:
    """Paths and modules in back quotes, outside of examples, and the targets of links.

    A path may begin anywhere in the package whose page it is on; on other pages, anywhere.
    """
    paths = frozenset(_paths(root))
    endings: dict[str, frozenset[str]] = {}
    found: list[Violation] = []
    for page in sorted(path for path in paths if path.endswith(".md")):
        parts = page.split("/")
        home = "/".join(parts[:2]) + "/" if parts[0] == "packages" else ""
        near = endings[home] = endings.get(home) or _endings(path for path in paths if path.startswith(home))
        text = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), Path(root, page).read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            for name in re.findall(r"`([^`]+)`", line):
                if not _stands_for_something(root, name, paths, near):
                    found.append(Violation(path=page, line=number, message=f"there is no {name}"))
            for target in re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", line):
                if not Path(root, page).parent.joinpath(target).exists():
                    found.append(
                        Violation(path=page, line=number, message=f"a link to {target}, which is not there")
                    )
    return found


def check_fragments(root: Path) -> list[Violation]:
    """Lines in the middle of a sentence, behind the end of one: what is left where two edits met."""
    found: list[Violation] = []
    for page in sorted(path for path in _paths(root) if path.endswith(".md")):
        text = _FENCE.sub(lambda m: "\n" * m[0].count("\n"), Path(root, page).read_text(encoding="utf-8"))
        for match in _FRAGMENT.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Violation(path=page, line=line, message=f"a fragment: {match[0].strip()[:40]}"))
    return found


def _paths(root: Path) -> Iterator[str]:
    """Files, and folders with a slash behind them."""
    pending = [path for path in root.iterdir() if path.is_file() or path.name in _TOPS]
    while pending:
        path = pending.pop()
        if path.name.startswith(".") or path.name in _BUILT:
            continue
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            pending += path.iterdir()
            yield f"{name}/"
        else:
            yield name


def _endings(paths: Iterable[str]) -> frozenset[str]:
    """All that `paths` end with, from any of their folders on."""
    found: set[str] = set()
    for path in paths:
        parts = path.split("/")
        found.update("/".join(parts[k:]) for k in range(len(parts) - path.endswith("/")))
    return frozenset(found)


def _stands_for_something(root: Path, name: str, paths: frozenset[str], near: frozenset[str]) -> bool:
    """Tell if `name` is that of a file, folder or module that there is, or none at all. `NAME` and `*` are
    any name.
    """
    if not _PATH.fullmatch(name):
        return not _MODULE.fullmatch(name) or _is_module(root, name.split("."), paths)
    if name in _WRITTEN:
        return True
    wanted = name.replace("NAME", "*")
    if "*" in wanted:
        return any(fnmatch(path, wanted) for path in (*paths, *near))
    return wanted in paths or wanted in near


def _is_module(root: Path, parts: list[str], paths: frozenset[str]) -> bool:
    """Tell if modules of ours lead to a module, or to a name that a package gives out; names in modules are
    not looked up.
    """
    folder = f"packages/{parts[0].replace('_', '-')}/src/{parts[0]}/"
    for part in parts[1:]:
        if f"{folder}{part}.py" in paths:
            return True
        if f"{folder}{part}/" not in paths:
            gate = Path(root, folder, "__init__.py")
            return gate.exists() and part in re.findall(r"\w+", gate.read_text(encoding="utf-8"))
        folder += f"{part}/"
    return True
