"""Origins: the place in the user's program that an operation came from."""

from __future__ import annotations

from dataclasses import dataclass


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


UNKNOWN: tuple[Origin, ...] = ()


def merge_origins(*groups: tuple[Origin, ...]) -> tuple[Origin, ...]:
    """Union of `groups` in first-seen order."""
    seen: dict[Origin, None] = {}
    for group in groups:
        for origin in group:
            seen.setdefault(origin)
    return tuple(seen)
