"""Origins: the place in the user's program that an operation came from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

# the two lines of a frame in a Python traceback
_FRAME: Final = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*(?:\n +(?P<code>[^\n]*))?')


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One ATen operation of the captured graph, as an IR node or kernel remembers it.

    Attributes:
        node: name of the FX node, e.g. `"mul_3"`.
        op: the operator, e.g. `"aten.mul.Tensor"`.
        file: the user's source file, or `""` when unknown.
        line: 1-based line in `file`, 0 when unknown.
        code: that source line, stripped.
        module: `nn.Module` path, e.g. `"layers.0.attn"`, or `""`.
    """

    node: str
    op: str
    file: str = ""
    line: int = 0
    code: str = ""
    module: str = ""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "?"
        return f"{self.op} at {where}" + (f" ({self.module})" if self.module else "")


def get_trace_origin(op: str, trace: object) -> Origin:
    """Return the operation `op`, of no node, with the innermost frame of `trace`, a traceback as text if
    there is one.
    """
    file, line, code = _find_innermost(trace) if isinstance(trace, str) else ("", 0, "")
    return Origin(node="", op=op, file=file, line=line, code=code)


@lru_cache(maxsize=4096)
def _find_innermost(trace: str) -> tuple[str, int, str]:
    """File, line and code of the innermost frame. Equal layers of a model have equal traces."""
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return "", 0, ""
    last = frames[-1]
    return last["file"], int(last["line"]), (last["code"] or "").strip()


UNKNOWN: tuple[Origin, ...] = ()


def merge_origins(*groups: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """Union of `groups` in first-seen order."""
    seen: dict[Origin, None] = {}
    for group in groups:
        for origin in group:
            seen.setdefault(origin)
    return tuple(seen)
