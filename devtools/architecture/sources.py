"""The repository's Python files, parsed, with what each one imports and where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Violation:
    """A broken rule at one line. Prints as `file:line: what is wrong`."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSite:
    """One imported name. `from a.b import c` has module `a.b` and name `c`; `import a.b` has no name."""

    module: str
    name: str | None
    line: int
    typing_only: bool

    @property
    def dotted(self) -> str:
        return self.module if self.name is None else f"{self.module}.{self.name}"

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """One Python file. `package` is the distribution it is part of, `module` its dotted name; tests have no
    module.
    """

    path: str
    package: str | None
    module: str | None
    is_init: bool
    text: str
    tree: ast.Module

    @property
    def imports(self) -> tuple[ImportSite, ...]:
        return tuple(import_sites(self))

    def violation(self, line: int, message: str) -> Violation:
        return Violation(path=self.path, line=line, message=message)


def import_sites(source: Source) -> Iterator[ImportSite]:
    """Every import: at module level, inside functions, and by `import_module("...")` or
    `__import__("...")`.
    """
    typing_lines = lines_under_type_checking(source.tree)
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield site(alias.name, None, node.lineno, typing_lines)
            case ast.ImportFrom(module=module, names=names, level=level):
                base = absolute(source, module, level)
                for alias in names:
                    yield site(base, alias.name, node.lineno, typing_lines)
            case ast.Call(func=function, args=[ast.Constant(value=str(text)), *_]) if last_name(function) in (
                "import_module",
                "__import__",
            ) and not text.startswith("."):
                yield site(text, None, node.lineno, typing_lines)


def site(module: str, name: str | None, line: int, typing_lines: frozenset[int]) -> ImportSite:
    return ImportSite(module=module, name=name, line=line, typing_only=line in typing_lines)


def absolute(source: Source, module: str | None, level: int) -> str:
    """The absolute name of a relative import's module."""
    if level == 0:
        return module or ""
    here = (source.module or "").split(".")
    parents = level - 1 if source.is_init else level
    kept = here[: len(here) - parents]
    return ".".join([*kept, *([module] if module else [])])


def last_name(node: ast.expr) -> str | None:
    """`c` of the expressions `c` and `a.b.c`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def read_dotted_name(node: ast.expr) -> str | None:
    """`a.b.c` of an attribute chain that starts at a plain name, else None."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            base = read_dotted_name(value)
            return None if base is None else f"{base}.{attr}"
    return None


def lines_under_type_checking(tree: ast.Module) -> frozenset[int]:
    """The lines of `if TYPE_CHECKING:` bodies, which never run."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return frozenset(lines)


def find_docstrings(tree: ast.Module) -> frozenset[int]:
    """The ids of string constants that stand as statements: docstrings and the like, which no code reads."""
    return frozenset(
        id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    )


def module_name(path: Path, src: Path) -> str:
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_sources(root: Path) -> tuple[Source, ...]:
    """The files of `packages/*/src`: what is released."""
    found = []
    for package in sorted(p for p in (root / "packages").iterdir() if p.is_dir()):
        src = package / "src"
        for path in sorted(src.rglob("*.py")):
            found.append(read_one(path, root, package=package.name, module=module_name(path, src)))
    return tuple(found)


def read_other_files(root: Path) -> tuple[Source, ...]:
    """Tests, benchmarks and tools: Python files that are in no wheel."""
    folders = [
        *(root / "packages").glob("*/tests"),
        *(root / n for n in ("integration_tests", "benchmarks", "devtools")),
    ]
    paths = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return tuple(read_one(path, root, package=None, module=None) for path in paths)


def read_one(path: Path, root: Path, *, package: str | None, module: str | None) -> Source:
    text = path.read_text(encoding="utf-8")
    shown = path.relative_to(root).as_posix()
    tree = ast.parse(text, filename=shown)
    is_init = path.name == "__init__.py"
    return Source(path=shown, package=package, module=module, is_init=is_init, text=text, tree=tree)
