"""Compares what each package exports with its last release, and fails where a user's program would break.

`python devtools/api_breaks.py [--against REF]`. A release of a package is a tag NAME-vVERSION, as
`coilwork-ir-v0.1.0`. What a package
exports are the names in `__all__` of its `__init__.py`, with all that users reach through them. A break is
allowed with a new
minor version before 1.0, and a new major one from then on: the packages declare each other by such ranges.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import griffe


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A released state of a package: the tag, or another name that git knows."""

    package: str
    ref: str

    def is_promised(self, version: str) -> bool:
        """True if `version` may not break what this release exports."""
        before = self.ref.removeprefix(f"{self.package}-v").split(".")
        now = version.split(".")
        kept = 2 if now[0] == "0" else 1
        return before[:kept] == now[:kept] or not before[0].isdigit()


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
    ).stdout


def find_release(root: Path, package: str) -> Release | None:
    """The last release of `package` in the history; None before the first."""
    tags = git(root, "tag", "--list", f"{package}-v[0-9]*", "--sort=-version:refname").split()
    return Release(package=package, ref=tags[0]) if tags else None


def list_breaks(root: Path, release: Release) -> Iterator[str]:
    """Yield what users of `release` would miss in the working tree, a line for each."""
    name = release.package.replace("-", "_")
    folder = f"packages/{release.package}/src"
    old = griffe.load_git(name, ref=release.ref, repo=root, search_paths=[folder], resolve_aliases=True)
    new = griffe.load(name, search_paths=[root / folder], resolve_aliases=True)
    assert isinstance(old, griffe.Module) and isinstance(new, griffe.Module)
    exported = {*_list_places(old)}
    direct = {f"{name}.{one}" for one in map(str, old.exports or ())}
    for breakage in griffe.find_breaking_changes(old, new):
        path = breakage.obj.canonical_path
        if breakage.obj.path in direct or any(f"{path}.".startswith(f"{one}.") for one in exported):
            yield re.sub(r"\x1b\[\d+m", "", breakage.explain(griffe.ExplanationStyle.ONE_LINE))


def _list_places(module: griffe.Module) -> Iterator[str]:
    """Yield where what a module exports is defined. What is assigned in a way that griffe does not follow has
    no place, and counts by its own name.
    """
    for name in map(str, module.exports or ()):
        with contextlib.suppress(griffe.AliasResolutionError):
            if name in module.members:
                yield module.members[name].canonical_path


def find_version(root: Path, package: str) -> str:
    """The version that stands in the package's source."""
    found = (
        re.search(r'^__version__\b[^"\n]*"([^"]+)"', path.read_text(), re.MULTILINE)
        for path in sorted((root / "packages" / package / "src").glob("*/*.py"))
    )
    return next(match.group(1) for match in found if match is not None)


def main(arguments: list[str], root: Path) -> int:
    """The exit status: 1 if a package breaks a promise."""
    parser = argparse.ArgumentParser(prog="api_breaks", description=__doc__)
    parser.add_argument(
        "--against", default="", help="a commit to compare with, instead of the last releases"
    )
    against = parser.parse_args(arguments).against
    failed = False
    for package in sorted(path.parent.name for path in root.glob("packages/*/pyproject.toml")):
        release = Release(package=package, ref=against) if against else find_release(root, package)
        if release is None:
            print(f"{package}: not released yet")
            continue
        if not git(root, "ls-tree", release.ref, f"packages/{package}/src"):
            print(f"{package}: not in {release.ref}")
            continue
        if not release.is_promised(find_version(root, package)):
            print(f"{package}: its version allows breaks of {release.ref}")
            continue
        breaks = [*list_breaks(root, release)]
        print(f"{package}: {len(breaks)} breaks of {release.ref}")
        print("".join(f"  {line}\n" for line in breaks), end="")
        failed |= bool(breaks)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path(__file__).resolve().parent.parent))
