"""Errors of the IR layer. Each has a stable code that the docs list."""

from __future__ import annotations

from typing import Final

from coilwork_ir.loc import Origin

_MOST_SOURCES: Final = 3


def _source_line(origin: Origin) -> str:
    where = f"{origin.file}:{origin.line}" if origin.file else "unknown"
    return f"  source  {where}   {origin.code or origin.op}"


class CoilworkIRError(Exception):
    """Base of every error raised by `coilwork_ir`.

    The message has the form `Kind[code]: what`, followed by indented `node`, `source`, `reason` and `try`
    lines for the facts that are known.
    """

    def __init__(
        self,
        code: str,
        what: str,
        *,
        node: str = "",
        origins: tuple[Origin, ...] = (),
        reason: str = "",
        remedy: str = "",
    ) -> None:
        self.code = code
        self.what = what
        self.node = node
        self.origins = origins
        self.reason = reason
        self.remedy = remedy
        super().__init__(self._render())

    def _render(self) -> str:
        lines = [f"{type(self).__name__}[{self.code}]: {self.what}"]
        if self.node:
            lines.append(f"  node    {self.node}")
        # Several ops of one source line say it once.
        sources = dict.fromkeys(_source_line(origin) for origin in self.origins)
        lines += list(sources)[:_MOST_SOURCES]
        if self.reason:
            lines.append(f"  reason  {self.reason}")
        if self.remedy:
            lines.append(f"  try     {self.remedy}")
        return "\n".join(lines)


class VerifyError(CoilworkIRError):
    """A graph, kernel or program breaks a rule of its IR. `code` is the rule's name."""


class ParseError(CoilworkIRError):
    """A text form could not be read. `node` holds the offending line with a caret below it."""


class InterpretError(CoilworkIRError):
    """The reference interpreter was given inputs that do not fit the graph."""


class EmitError(CoilworkIRError):
    """A code generator or wrapper met something its target cannot express."""
