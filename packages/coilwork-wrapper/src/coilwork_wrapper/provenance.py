"""Name the source lines and operations that a piece of generated code implements, as comment lines."""

from __future__ import annotations

from coilwork_ir.loc import Origin

MOST_LINES = 6


def list_origin_lines(origins: tuple[Origin, ...]) -> tuple[str, ...]:
    """One line per source line, in order, naming its operations; at most `MOST_LINES`, then how many more
    there are.

    For example `model.py:12  h = self.norm(x)  [norm: var_mean, sub, mul]`.
    """
    groups: dict[tuple[str, int, str, str], list[str]] = {}
    for origin in origins:
        key = (origin.file, origin.line, origin.code, origin.module)
        ops = groups.setdefault(key, [])
        name = shorten_name(origin.op)
        if name not in ops:
            ops.append(name)
    lines = [_line(key, ops) for key, ops in groups.items()]
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"… and {len(lines) - MOST_LINES + 1} more source lines"]
    return tuple(lines)


def shorten_name(op: str) -> str:
    """`"aten.mul.Tensor"` is `mul`; operators of other libraries keep their namespace."""
    namespace, _, rest = op.partition(".")
    name = rest.partition(".")[0]
    if not name:
        return op
    return name if namespace == "aten" else f"{namespace}.{name}"


def _line(key: tuple[str, int, str, str], ops: list[str]) -> str:
    file, number, code, module = key
    parts: list[str] = []
    if file:
        parts.append(f"{file.rsplit('/', 1)[-1]}:{number}")
    if code:
        parts.append(code)
    listed = ", ".join(ops)
    if module:
        # Dynamo's name of the model itself tells a reader nothing
        listed = f"{module.removeprefix('L.self.')}: {listed}"
    parts.append(f"[{listed}]" if parts else listed)
    return "  ".join(parts)
