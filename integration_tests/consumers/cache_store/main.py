"""Use coilwork-cache by itself, as the store of a program that has nothing to do with a compiler.

Slow results are kept under a key made of everything that determines them. Damage costs time, never a wrong
answer.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

from coilwork_cache import CacheCorruptionWarning, JsonCodec, JsonValue, LocalStore, TypedCache, describe


def primes_below(limit: int) -> dict[str, JsonValue]:
    print(f"computing the primes below {limit}")
    return {"primes": [n for n in range(2, limit) if all(n % d for d in range(2, int(n**0.5) + 1))]}


def main() -> None:
    root = Path(tempfile.mkdtemp()) / "store"
    store = LocalStore(root)
    primes = TypedCache(store, kind="primes", codec=JsonCodec())
    key = primes.key("version 1", "below", "30")

    print("first:", primes.get_or_make(key, lambda: primes_below(30))["primes"])
    print("second:", primes.get_or_make(key, lambda: primes_below(30))["primes"])
    print("entries:", len(describe(store).entries))

    # Another process, or this one later, sees a damaged file: a warning and a miss.
    (entry,) = store.entries()
    damaged = Path(entry.location)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print("after damage:", primes.get_or_make(key, lambda: primes_below(30))["primes"])
    print("warned:", any(issubclass(w.category, CacheCorruptionWarning) for w in caught))


main()
