"""The buffers of one graph by name, the memory that each lies in, and what that memory is called after it was overwritten."""

from __future__ import annotations

import re
from dataclasses import dataclass

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.loops import Node
from coilwork_ir.loops.access import defined, overwritten, shares_memory


@dataclass(frozen=True, slots=True)
class Alias:
    """A `View` node's result: it has to be made again once its source was overwritten."""

    source: str
    offset: Expr


class Buffers:
    """What has been declared so far, in a graph under construction."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._declared: dict[str, Buffer] = {}
        self._successor: dict[str, str] = {}
        self._views: dict[str, Alias] = {}
        # the memory that a buffer without one of its own lies in, and buffers that are but views of theirs
        self._root: dict[str, str] = {}
        self._lodgers: set[str] = set()
        self._definer: dict[str, Node] = {}

    def fresh(self, hint: str) -> str:
        """A buffer name not used before, close to `hint`."""
        base = re.sub(r"\W", "_", hint) or "buf"
        if base[0].isdigit():
            base = f"b{base}"
        name, count = base, 1
        while name in self._used:
            name = f"{base}_{count}"
            count += 1
        self._used.add(name)
        return name

    def declare(self, buffer: Buffer) -> None:
        """From here on `buffer` is found by its name."""
        self._declared[buffer.name] = buffer

    def __getitem__(self, name: str) -> Buffer:
        return self._declared[name]

    def note(self, node: Node) -> None:
        """What `node` says of the buffers that it makes: who made them, and whose memory they are in."""
        for buffer in defined(node):
            self._definer[buffer.name] = node
        for name, source in shares_memory(node):
            self._root[name] = self.root(source)
            if (source, name) not in overwritten(node) or source in self._lodgers:
                self._lodgers.add(name)

    def definer(self, name: str) -> Node | None:
        """The node that made the buffer `name`; None of inputs."""
        return self._definer.get(name)

    # whose memory

    def root(self, name: str) -> str:
        """The first name of the memory that buffer `name` lies in."""
        return self._root.get(name, name)

    def owns_memory(self, buffer: Buffer) -> bool:
        """Whether `buffer` is all of its memory, not a view or another operator's alias of it."""
        return buffer.name not in self._lodgers

    def note_view(self, buffer: Buffer, alias: Alias) -> None:
        """`buffer` is the result of a `View` node."""
        self._views[buffer.name] = alias

    def alias(self, buffer: Buffer) -> Alias | None:
        """What `buffer` is a view of, if a `View` node made it."""
        return self._views.get(buffer.name)

    def owner(self, buffer: Buffer) -> Buffer:
        """The buffer whose memory `buffer` views; `buffer` itself if it is no view."""
        alias = self.alias(buffer)
        return buffer if alias is None else self.owner(self[alias.source])

    def memory(self, buffer: Buffer) -> tuple[Buffer, Expr]:
        """The buffer of its type that owns the memory of `buffer`, and the offset of `buffer`'s first element in it."""
        alias = self.alias(buffer)
        if alias is None or self[alias.source].dtype is not buffer.dtype:
            return buffer, as_expr(0)
        owner, offset = self.memory(self[alias.source])
        return owner, offset + alias.offset

    # memory that was overwritten

    def overwrite(self, old: str, new: Buffer) -> None:
        """From here on the memory called `old` is called `new.name`."""
        self._successor[old] = new.name

    def is_stale(self, name: str) -> bool:
        """Whether the memory of buffer `name` was overwritten under another name."""
        if name in self._successor:
            return True
        alias = self._views.get(name)
        return alias is not None and self.is_stale(alias.source)

    def latest(self, name: str) -> Buffer:
        """What the memory called `name` is called now. It may be a view whose source was overwritten since."""
        while name in self._successor:
            name = self._successor[name]
        return self[name]
