"""The text form of mappings: `parse_versions(format_versions(v), kernel) == v`.

mapping @softmax_a1b2 for cuda {
  when `s1 <= 4096` and `s1 % 16 == 0`:
    tile x0 by 4
    keep r0 by 4096
    lanes r0, x0 by 8
    warps ?warps in 4 8
    limit `128*warps` at most `1024`
  otherwise:
    tile x0 by 1
    loop r0 by 1024
    warps 8
    index i64
}
mapping @softmax_a1b2 for cpu {
  otherwise:
    functions vector
    nest store 0:
      threads over x0
      accumulators 64 pass 0
}
"""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final, Literal

from coilwork_ir.index import Expr, format_expr
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.mapping.arithmetic import Choose, Contract, Fetch, Functions, Limit, Order, Specialise, Unit
from coilwork_ir.mapping.directive import Directive, read_form
from coilwork_ir.mapping.memory import (
    Evict,
    Index,
    Prefetch,
    Privatise,
    Save,
    Select,
    Sort,
    Transpose,
    Values,
)
from coilwork_ir.mapping.nodes import Condition, Guard, Mapped, Mapping, Nest, Version, Versions
from coilwork_ir.mapping.threads import (
    Accumulators,
    Block,
    Fold,
    Grain,
    Invariant,
    Join,
    Lanes,
    Peel,
    Runs,
    Threads,
    Vector,
    Warps,
)
from coilwork_ir.mapping.tiling import (
    Coarsen,
    FlatGrid,
    Keep,
    Loop,
    Resident,
    Sequential,
    Share,
    Straddle,
    Tile,
)
from coilwork_ir.text.reader import Reader

# Every directive there is, in the order in which documentation lists them.
DIRECTIVES: Final[tuple[type[Directive], ...]] = (
    Tile, FlatGrid, Resident, Keep, Loop, Sequential, Share, Coarsen, Straddle,
    Lanes, Runs, Vector, Warps, Threads, Block, Grain, Join, Accumulators, Fold, Peel, Invariant,
    Transpose, Privatise, Sort, Select, Evict, Prefetch, Save, Index, Values,
    Unit, Fetch, Specialise, Order, Functions, Contract, Limit, Choose,
)  # fmt: skip
_BY_KEYWORD: Final[MappingOf[str, type[Directive]]] = MappingProxyType(
    {kind.keyword(): kind for kind in DIRECTIVES}
)


def format_mapping(mapping: Mapping, indent: str = "") -> str:
    """Canonical text of `mapping`, a directive per line."""
    lines = [indent + d.text for d in mapping.directives]
    for nest in mapping.nests:
        parts = [f"store {number}" for number in nest.stores]
        parts += [] if nest.check is None else [f"check {nest.check}"]
        lines.append(f"{indent}nest {', '.join(parts)}:")
        lines += [f"{indent}  {d.text}" for d in nest.directives]
    return "\n".join(lines)


def parse_mapping(text: str) -> Mapping:
    """Return the mapping that `text` spells.

    Raises:
        ParseError: with line, reason and a caret.
    """
    reader = Reader(text)
    mapping = read_mapping(reader)
    reader.finish()
    return mapping


def read_mapping(reader: Reader) -> Mapping:
    """Read a mapping up to what is no directive."""
    directives = _read_directives(reader)
    nests: list[Nest] = []
    while reader.accept("nest"):
        stores: list[int] = []
        check: int | None = None
        while not reader.accept(":"):
            if stores or check is not None:
                reader.expect(",")
            if reader.accept("check"):
                check = reader.integer()
            else:
                reader.expect("store")
                stores.append(reader.integer())
        nests.append(Nest(stores=tuple(stores), check=check, directives=_read_directives(reader)))
    return Mapping(directives=directives, nests=tuple(nests))


def _read_directives(reader: Reader) -> tuple[Directive, ...]:
    directives: list[Directive] = []
    while True:
        keyword = next((word for word in _BY_KEYWORD if reader.peek(word)), None)
        if keyword is None:
            return tuple(directives)
        reader.expect(keyword)
        kind = _BY_KEYWORD[keyword]
        directives.append(kind(**read_form(kind.TEMPLATE, reader)))


# Versions


def format_versions(versions: Versions) -> str:
    """Canonical text of `versions`."""
    lines = [f"mapping @{versions.kernel} for {versions.target} {{"]
    for version in versions.versions:
        if version.guard is None:
            lines.append("  otherwise:")
        else:
            conditions = (
                f"`{format_expr(c.left)} {c.relation} {format_expr(c.right)}`"
                for c in version.guard.conditions
            )
            lines.append(f"  when {' and '.join(conditions)}:")
        body = format_mapping(version.mapping, "    ")
        lines += [body] if body else []
    return "\n".join([*lines, "}"]) + "\n"


def format_mapped(kernel: Kernel, mapped: Sequence[Mapped]) -> str:
    """Return the mappings of `kernel`, for people, or each piece that a generator made of it and how that
    runs.
    """
    parts: list[str] = []
    for piece in mapped:
        if piece.kernel != kernel:
            parts.append(format_kernel(piece.kernel, origins=False))
        parts.append(format_versions(piece.versions))
    return "\n".join(parts)


def parse_versions(text: str, sizes: tuple[Expr, ...] = ()) -> Versions:
    """Return the mappings that `text` spells, whose guards are over `sizes`, a kernel's.

    Raises:
        ParseError: with line, reason and a caret.
    """
    reader = Reader(text)
    versions = read_versions(reader, {size.name: size for size in sizes})
    reader.finish()
    return versions


def read_versions(reader: Reader, sizes: MappingOf[str, Expr]) -> Versions:
    """Read the mappings of one kernel, whose guards are over `sizes`."""
    reader.expect("mapping")
    reader.expect("@")
    kernel = reader.name()
    reader.expect("for")
    target = reader.name()
    reader.expect("{")
    versions: list[Version] = []
    while not reader.accept("}"):
        guard: Guard | None = None
        if not reader.accept("otherwise"):
            reader.expect("when")
            conditions = [_read_condition(reader, sizes)]
            while reader.accept("and"):
                conditions.append(_read_condition(reader, sizes))
            guard = Guard(tuple(conditions))
        reader.expect(":")
        versions.append(Version(guard=guard, mapping=read_mapping(reader)))
    return Versions(kernel=kernel, target=target, versions=tuple(versions))


def _read_condition(reader: Reader, sizes: MappingOf[str, Expr]) -> Condition:
    reader.expect("`")
    left = reader.index(sizes, "<=`")
    relation: Literal["<=", "=="] = "<=" if reader.accept("<=") else "=="
    if relation == "==":
        reader.expect("==")
    right = reader.index(sizes, "`")
    reader.expect("`")
    return Condition(left, relation, right)
