"""Which operations and source lines a piece of emitted code implements."""

from __future__ import annotations

from typing import Final

from coilwork_ir.loc import Origin

MOST_LINES: Final = 6


def origin_lines(origins: tuple[Origin, ...]) -> tuple[str, ...]:
    """Comment lines: one per source line, naming its operations; at most `MOST_LINES`, then how many more
    there are.
    """
    groups: dict[tuple[str, int, str, str], list[str]] = {}
    for origin in origins:
        ops = groups.setdefault((origin.file, origin.line, origin.code, origin.module), [])
        if origin.op not in ops:
            ops.append(origin.op)
    lines = [_line(key, ops) for key, ops in groups.items()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} more source lines"]
    return tuple(lines)


def _line(key: tuple[str, int, str, str], ops: list[str]) -> str:
    file, number, code, module = key
    parts = [", ".join(ops)]
    if file:
        parts.append(f"{file.rsplit('/', 1)[-1]}:{number}")
    if module:
        parts.append(f"[{module}]")
    if code:
        parts.append(code)
    return "  ".join(parts)


def error_lines(what: str, origins: tuple[Origin, ...]) -> str:
    """Return what a failing instruction adds to its message: what it is, and up to three source lines."""
    lines = [f"  node    {what}"]
    for origin in origins[:3]:
        where = f"{origin.file}:{origin.line}" if origin.file else "unknown"
        lines.append(f"  source  {where}   {origin.code or origin.op}")
    return "\n".join(lines)
