"""New names that nothing else has: of buffers in graphs, and of variables in generated text."""

from __future__ import annotations

from collections.abc import Container, Iterable


class FreshNames:
    """Gives out names, each once, and none of those that were `taken` before or are in one of `shared`.

    `shared` are looked into and not copied: many texts may each have names of their own beside them.
    Equal requests in equal order give equal names. Reading a text, one finds a name's line by its number.
    """

    def __init__(self, taken: Iterable[str] = (), *, shared: Iterable[Container[str]] = ()) -> None:
        self._taken = set(taken)
        self._shared = tuple(shared)
        # the number that the next name with this stem gets, if it is free
        self._next: dict[str, int] = {}

    def close_to(self, wanted: str, *, second: int = 1) -> str:
        """`wanted`; where that is taken, with `_1` behind it, or a higher number; or from `second` on."""
        if not self._is_taken(wanted):
            self._taken.add(wanted)
            return wanted
        return self._first_free(f"{wanted}_", second)

    def make_suffixed(self, stem: str) -> str:
        """`stem_0`, or a higher number."""
        return self._first_free(f"{stem}_", 0)

    def make_numbered(self, stem: str) -> str:
        """`stem` with a number that no name had that was counted, whatever its stem."""
        return self._first_free(stem, 0, counter="")

    def _first_free(self, stem: str, first: int, counter: str | None = None) -> str:
        key = stem if counter is None else counter
        number = self._next.get(key, first)
        while self._is_taken(f"{stem}{number}"):
            number += 1
        self._next[key] = number + 1
        name = f"{stem}{number}"
        self._taken.add(name)
        return name

    def _is_taken(self, name: str) -> bool:
        return name in self._taken or any(name in names for names in self._shared)
