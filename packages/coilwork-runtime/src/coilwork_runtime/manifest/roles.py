"""The calling convention as data: what a program neither takes nor gives as it is, one role per value.

`docs/decisions/0044` says how roles are applied; wrappers of the meta-package do the same in code so far.
Roles have a text form, a line each, which reads back to an equal value:

    sizes n0
    in 0 aligned update
    in 1 negated
    out 0 fresh
    out 1 view of out 0 size (4; n0) stride (n0; 1) offset 0
    out 2 is in 1
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from coilwork_runtime.manifest.readable import Names, format_code
from coilwork_runtime.manifest.size_code import SizeCode

InputKind = Literal[
    "given",
    "aligned",
    "donated",
    "unwrapped",
    "number",
    "symbol",
    "negated",
    "conjugated",
    "generator",
    "group",
]
OutputKind = Literal["fresh", "view", "is", "number", "sparse", "subclass", "negated", "conjugated"]
Side = Literal["in", "out"]

_VIEW: Final = re.compile(r"(.*) size \((.*)\) stride \((.*)\) offset (.*)")
_SOURCE: Final = re.compile(r"(?:view of|is) (in|out) (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRole:
    """How an input comes to the program.

    Attributes:
        kind: `given` as it is; `aligned`: a copy if it does not start at a multiple of 16 bytes; `donated`:
            its memory is the program's; `unwrapped`: a subclass is taken apart; `number`: a tensor of one
            element is read; `symbol`: only its sizes are; `negated`, `conjugated`: made plain; `generator`,
            `group`: no tensor.
        is_update: the program writes it, so what was done is undone afterwards.
    """

    kind: InputKind = "given"
    is_update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An input or a result, by its position."""

    side: Side
    position: int

    def __str__(self) -> str:
        return f"{self.side} {self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRole:
    """How a result goes to the caller.

    Attributes:
        kind: `fresh` as the program gives it; `view` of `source`; `is`: `source` itself, one object; `number`;
            `sparse`, `subclass`: made of several results; `negated`, `conjugated`: torch's mark is set.
        source: of a view, or what it is.
        size, stride, offset: of a view, over the program's sizes.
    """

    kind: OutputKind = "fresh"
    source: Source | None = None
    size: tuple[SizeCode, ...] = ()
    stride: tuple[SizeCode, ...] = ()
    offset: SizeCode | None = None

    def __post_init__(self) -> None:
        if (self.source is not None) != (self.kind in ("view", "is")):
            raise ValueError(f"a result that is {self.kind!r} and its source do not go together")
        if (self.offset is not None) != (self.kind == "view") or len(self.size) != len(self.stride):
            raise ValueError("a view has a size, as long a stride, and an offset; other results have none")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingConvention:
    """The roles of all inputs and results of a program; `sizes` are what views are computed of."""

    inputs: tuple[InputRole, ...]
    outputs: tuple[OutputRole, ...]
    sizes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for position, role in enumerate(self.outputs):
            if role.source is None:
                continue
            # a result is made of those before it
            limit = len(self.inputs) if role.source.side == "in" else position
            if role.source.position >= limit:
                raise ValueError(f"out {position} is made of {role.source}, which is not there before it")


def format_roles(convention: CallingConvention) -> str:
    """The text of a convention."""
    lines = [f"sizes {' '.join(convention.sizes)}".rstrip()]
    for position, one in enumerate(convention.inputs):
        lines.append(f"in {position} {one.kind}{' update' * one.is_update}")
    for position, role in enumerate(convention.outputs):
        lines.append(f"out {position} {_format_output(role, convention.sizes)}")
    return "\n".join(lines) + "\n"


def parse_roles(text: str) -> CallingConvention:
    """The convention that `text` is of.

    Raises:
        ValueError: it has another form.
    """
    first, *lines = text.splitlines() or [""]
    if first.split(" ")[0] != "sizes":
        raise ValueError("roles begin with the names of sizes")
    sizes = tuple(first.split()[1:])
    names = Names(["size:i64"] * len(sizes), sizes)
    inputs: list[InputRole] = []
    outputs: list[OutputRole] = []
    for line in lines:
        side, _, rest = line.partition(" ")
        number, _, role = rest.partition(" ")
        if side == "in" and number == str(len(inputs)) and not outputs:
            inputs.append(_parse_input(role))
        elif side == "out" and number == str(len(outputs)):
            outputs.append(_parse_output(role, names))
        else:
            raise ValueError(f"{line!r} is no role, or not in order")
    return CallingConvention(inputs=tuple(inputs), outputs=tuple(outputs), sizes=sizes)


def _format_output(role: OutputRole, sizes: Sequence[str]) -> str:
    if role.kind == "is":
        return f"is {role.source}"
    if role.kind != "view" or role.offset is None:
        return role.kind

    def listed(codes: Sequence[SizeCode]) -> str:
        return "(" + "; ".join(format_code(code, sizes, ()) for code in codes) + ")"

    offset = format_code(role.offset, sizes, ())
    return f"view of {role.source} size {listed(role.size)} stride {listed(role.stride)} offset {offset}"


def _parse_input(text: str) -> InputRole:
    kind, _, update = text.partition(" ")
    for known in get_args(InputKind):
        if kind == known and update in ("", "update"):
            return InputRole(kind=known, is_update=bool(update))
    raise ValueError(f"{text!r} is no role of an input")


def _parse_output(text: str, names: Names) -> OutputRole:
    layout = _VIEW.fullmatch(text)
    source = _SOURCE.fullmatch(layout[1] if layout else text)
    if source is not None:
        side: Side = "in" if source[1] == "in" else "out"
        of = Source(side=side, position=int(source[2]))
        if layout is None:
            return OutputRole(kind="is", source=of)
        size, stride = (tuple(map(names.code, filter(None, layout[k].split("; ")))) for k in (2, 3))
        return OutputRole(kind="view", source=of, size=size, stride=stride, offset=names.code(layout[4]))
    for known in get_args(OutputKind):
        if text == known and known not in ("view", "is"):
            return OutputRole(kind=known)
    raise ValueError(f"{text!r} is no role of a result")
