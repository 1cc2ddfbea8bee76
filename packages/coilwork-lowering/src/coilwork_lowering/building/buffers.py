"""The buffers of one graph by name, their memory, and that memory's name after it was overwritten."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.loops import Node
from coilwork_ir.loops.access import list_defined_buffers, list_memory_aliases, list_overwritten_buffers

# What the name of memory that was overwritten ends in.
_SUCCESSOR: Final = re.compile(r"_new(_\d+)?$")


@dataclass(frozen=True, slots=True)
class Alias:
    """A `View` node's result: it has to be made again once its source was overwritten."""

    source: str
    offset: Expr


class Buffers:
    """The buffers that a graph under construction has declared."""

    def __init__(self) -> None:
        self._names = FreshNames()
        self._declared: dict[str, Buffer] = {}
        self._successor: dict[str, str] = {}
        self._views: dict[str, Alias] = {}
        # the memory that a buffer without one of its own lies in, and buffers that are but views of theirs
        self._root: dict[str, str] = {}
        self._lodgers: set[str] = set()
        self._definer: dict[str, Node] = {}

    def make_name(self, hint: str) -> str:
        """Return a buffer name not used before, close to `hint`."""
        base = re.sub(r"\W", "_", hint) or "buf"
        if base[0].isdigit():
            base = f"b{base}"
        return self._names.close_to(base)

    def make_successor_name(self, name: str) -> str:
        """A name for the memory called `name` after it is overwritten, no longer than the last such name."""
        return self.make_name(f"{_SUCCESSOR.sub('', name)}_new")

    def declare(self, buffer: Buffer) -> None:
        """Let `buffer` be found by its name from here on."""
        self._declared[buffer.name] = buffer

    def __getitem__(self, name: str) -> Buffer:
        return self._declared[name]

    def note(self, node: Node) -> None:
        """Note that `node` makes its buffers, and whose memory they are in."""
        for buffer in list_defined_buffers(node):
            self._definer[buffer.name] = node
        for name, source in list_memory_aliases(node):
            self._root[name] = self.root(source)
            if (source, name) not in list_overwritten_buffers(node) or source in self._lodgers:
                self._lodgers.add(name)

    def definer(self, name: str) -> Node | None:
        """Return the node that made the buffer `name`; None of inputs."""
        return self._definer.get(name)

    # whose memory

    def root(self, name: str) -> str:
        """Return the first name of the memory that buffer `name` lies in."""
        return self._root.get(name, name)

    def owns_memory(self, buffer: Buffer) -> bool:
        """Tell whether `buffer` is all of its memory, not a view or another operator's alias of it."""
        return buffer.name not in self._lodgers

    def note_view(self, buffer: Buffer, alias: Alias) -> None:
        """`buffer` is the result of a `View` node."""
        self._views[buffer.name] = alias

    def alias(self, buffer: Buffer) -> Alias | None:
        """Return the source and offset of `buffer`, if a `View` node made it; else None."""
        return self._views.get(buffer.name)

    def owner(self, buffer: Buffer) -> Buffer:
        """Return the buffer whose memory `buffer` views; `buffer` itself if it is no view."""
        while (alias := self.alias(buffer)) is not None:
            buffer = self[alias.source]
        return buffer

    def memory(self, buffer: Buffer) -> tuple[Buffer, Expr]:
        """Return the buffer of its type that owns the memory of `buffer`, and the offset of `buffer`'s first
        element in it.
        """
        offset = as_expr(0)
        while (alias := self.alias(buffer)) is not None and self[alias.source].dtype is buffer.dtype:
            buffer, offset = self[alias.source], offset + alias.offset
        return buffer, offset

    # memory that was overwritten

    def overwrite(self, old: str, new: Buffer) -> None:
        """Call the memory `old` from here on `new.name`."""
        self._successor[old] = new.name

    def is_stale(self, name: str) -> bool:
        """Tell if the memory of buffer `name` was overwritten under another name."""
        while name not in self._successor:
            alias = self._views.get(name)
            if alias is None:
                return False
            name = alias.source
        return True

    def latest(self, name: str) -> Buffer:
        """Return the current buffer of the memory called `name`; its source may have been overwritten
        since.
        """
        passed: list[str] = []
        while name in self._successor:
            passed.append(name)
            name = self._successor[name]
        for earlier in passed:
            self._successor[earlier] = name
        return self[name]
