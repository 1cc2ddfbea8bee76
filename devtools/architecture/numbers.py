"""Numbers at module level where code is chosen: each has a kind, and none is a measured fact of one machine.

What is measured of a machine stands in its data file (`coilwork_ir/machine/tuning`) and is asked of the
target. What else may be a number of a module stands in `numbers.toml` beside this file, by kind, with a
reason.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from architecture.sources import Source, Violation

CHOOSING = frozenset({"coilwork-lowering", "coilwork-scheduler", "coilwork-triton", "coilwork-cpp"})
"""Packages whose passes choose how things are computed."""

KINDS = ("limits", "formats", "weights")
TABLE = Path(__file__).with_name("numbers.toml")


def check_numbers(sources: Sequence[Source]) -> list[Violation]:
    """Every number at module level is allowed by a row, and every row allows one."""
    rows = read_rows()
    modules = {source.module: source for source in sources if source.package in CHOOSING}
    found, used = list[Violation](), set[str]()
    for module, source in modules.items():
        for line, name in numbers_of(source):
            row = next((row for row in (f"{module}:{name}", str(module)) if row in rows), None)
            if row is None:
                message = f"{name}: ask the target's machine, or name kind and reason in numbers.toml"
                found.append(source.violation(line, message))
            else:
                used.add(row)
    for row in sorted(rows.keys() - used):
        module = next((m for m in modules if str(m) == row.partition(":")[0]), None)
        if module is not None:
            found.append(modules[module].violation(1, f"numbers.toml: there is no number for {row}"))
    return sorted(found)


def find_missing_modules(sources: Sequence[Source]) -> list[str]:
    """The modules that rows name and that are not there."""
    there = {str(source.module) for source in sources}
    return sorted({row.partition(":")[0] for row in read_rows()} - there)


def read_rows() -> dict[str, str]:
    """The kind of each module, or name in a module, that may hold numbers."""
    tables = tomllib.loads(TABLE.read_text())
    assert tuple(tables) == KINDS, f"{TABLE}: the kinds are {', '.join(KINDS)}"
    rows: dict[str, str] = {}
    for kind, table in tables.items():
        for row, reason in table.items():
            assert row not in rows and reason.strip(), f"{TABLE}: {row} is there twice, or has no reason"
            rows[row] = kind
    return rows


def numbers_of(source: Source) -> Iterator[tuple[int, str]]:
    """Names that are bound to a number at module level, or to arithmetic with one."""
    for statement in source.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if _is_number(value):
            yield statement.lineno, name


def _is_number(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float()):
            return True
        case ast.UnaryOp(operand=operand):
            return _is_number(operand)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) or _is_number(right)
    return False
