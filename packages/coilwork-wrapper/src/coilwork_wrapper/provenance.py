"""Which operations and source lines a piece of generated code implements, as comment lines."""

from __future__ import annotations

from coilwork_ir.loc import Origin

MOST_LINES = 6


def origin_lines(origins: tuple[Origin, ...]) -> tuple[str, ...]:
    """One line per source line, in order, naming its operations; at most `MOST_LINES`, then how many more there are."""
    groups: dict[tuple[str, int, str, str], list[str]] = {}
    for origin in origins:
        key = (origin.file, origin.line, origin.code, origin.module)
        ops = groups.setdefault(key, [])
        if origin.op not in ops:
            ops.append(origin.op)
    lines = [_line(key, ops) for key, ops in groups.items()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"… and {len(lines) - MOST_LINES + 1} more source lines"]
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
