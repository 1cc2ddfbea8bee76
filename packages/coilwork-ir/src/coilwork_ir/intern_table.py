"""Interning tables: the one kind of module-level mutable state in the compiler.

An interning table maps a structural key to the one live value with that structure, so that equality of values
is identity. It is safe for concurrent use and holds its values weakly: what nobody uses any more goes away.

Source: hash-consing as in Filliatre and Conchon, "Type-Safe Modular Hash-Consing", ML Workshop 2006.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sized
from threading import RLock
from typing import Generic, TypeVar
from weakref import ref

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Small enough that dead entries, their keys and what those keep alive stay in the processor's cache, and few
# enough to be no burden on the garbage collector.
_FIRST_SWEEP = 512


class InternTable(Generic[K, V]):
    """Weakly held canonical values, one per key.

    Values must be immutable and weakly referenceable. A key usually holds the value's parts, which keeps
    those parts alive for as long as the entry stays.

    There are no weak reference callbacks (these would run at arbitrary points, and could deadlock): a dead
    entry stays until the table has doubled since the last sweep. The table hence never holds more than twice
    the live entries (or a few hundred), and a sweep costs O(1) amortised per insertion.
    """

    __slots__ = ("_lock", "_refs", "insert", "lookup", "refs", "sweep_at")

    def __init__(self) -> None:
        self._renew_lock()
        # Another thread may hold it while this one forks. Tables live as long as the process.
        os.register_at_fork(after_in_child=self._renew_lock)
        self._refs: dict[K, ref[V]] = {}
        #  `dict.get` of the weak references, for callers that can't afford a Python call per look-up. It may
        # return
        #: a dead reference; the caller then builds the value and calls `add`.
        self.lookup: Callable[[K], ref[V] | None] = self._refs.get
        #  `dict.setdefault` of the weak references, for callers that can't afford one per new value either.
        # Unless it
        #  returns the very `ref(value)` that was given, and `len(refs) <= sweep_at` after it, the caller
        # calls `add`.
        self.insert: Callable[[K, ref[V]], ref[V]] = self._refs.setdefault
        #: For `len` alone.
        self.refs: Sized = self._refs
        self.sweep_at = _FIRST_SWEEP

    def _renew_lock(self) -> None:
        # Re-entrant: an allocation under the lock may run a finaliser, which may intern.
        self._lock = RLock()

    def __len__(self) -> int:
        """Number of entries, including dead ones that have not been swept yet."""
        return len(self._refs)

    def intern(self, key: K, make: Callable[[], V]) -> V:
        """Return the live value of `key`; if there is none, `make()`.

        `make` may run in two threads at once for one key; only one of the two results is ever returned.
        """
        reference = self._refs.get(key)
        if reference is not None:
            value = reference()
            if value is not None:
                return value
        return self.add(key, make())

    def add(self, key: K, value: V) -> V:
        """Make `value` the canonical value of `key`, unless there is a live one; return the canonical one."""
        mine = ref(value)
        with self._lock:
            # Atomic: an insertion without the lock comes before or after it.
            reference = self._refs.setdefault(key, mine)
            if reference is not mine:
                present = reference()
                if present is not None:
                    return present
                self._refs[key] = mine  # dead: nobody else changes the entry while the lock is held
            elif len(self._refs) > self.sweep_at:
                self._sweep()
        return value

    def _sweep(self) -> None:
        # A copy of the dict is atomic; a list of its items is not: making a pair may collect garbage, whose
        # finalisers may intern. Entries that they replace or sweep on the way are not the ones that were
        # found dead.
        dead = [item for item in self._refs.copy().items() if item[1]() is None]
        for key, reference in dead:
            if self._refs.get(key) is reference:
                del self._refs[key]
        self.sweep_at = max(_FIRST_SWEEP, 2 * len(self._refs))


class MemoTable(Generic[K, V]):
    """A bounded memo of a pure function on interned values.

    It holds keys and results strongly, and is emptied when it reaches `limit` entries: forgetting costs time,
    never correctness, because the function is pure and results are interned.
    """

    __slots__ = ("_entries", "_limit", "get")

    def __init__(self, limit: int = 1 << 16) -> None:
        self._entries: dict[K, V] = {}
        self._limit = limit
        #: `dict.get`: the result, or None.
        self.get: Callable[[K], V | None] = self._entries.get

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: K, value: V) -> V:
        """Remember `value` and return it."""
        if len(self._entries) >= self._limit:
            self._entries.clear()
        self._entries[key] = value
        return value
