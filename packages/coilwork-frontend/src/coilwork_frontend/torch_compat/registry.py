"""Torch's table of back ends, which threads fill from entry points without a lock.

`torch.compile(f, backend="coilwork")` looks whether the name is in a table, loads the entry point, and then
refuses a name that is in the table: of threads whose first compilations begin together, all but one fail.
Loading takes a second, so they do meet. What torch runs of ours between the two looks is the import of the
back end, and there the table becomes one in which the name may be entered again.
"""

from __future__ import annotations

from typing import Any

from torch._dynamo.backends import registry


class _Reentrant(dict[str, Any]):
    """Back ends by name. Some are never found, so that each look loads and enters them; all can be had."""

    def __init__(self, known: dict[str, Any], names: frozenset[str]) -> None:
        super().__init__(known)
        # another thread may be entering its own back end there
        self._before = known
        self._names = names

    def __contains__(self, name: object) -> bool:
        return name not in self._names and (super().__contains__(name) or name in self._before)

    def __missing__(self, name: str) -> Any:
        return self._before[name]


def allow_registering_again(name: str) -> None:
    """Let torch accept back end `name` as often as it is registered; call this while that is loaded."""
    known = getattr(registry, "_COMPILER_FNS", None)
    if isinstance(known, dict):
        vars(registry)["_COMPILER_FNS"] = _Reentrant(known, frozenset((name,)))
