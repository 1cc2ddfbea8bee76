"""A store shared through Redis, in which every entry is signed. Needs the extra `coilwork-cache[redis]`.

Entries become machine code in the processes that read them, and everybody who can reach a Redis server can
write to it. So each entry carries an HMAC-SHA256 over its key and bytes, made with a secret of at least 16
bytes that only trusted machines have; what is unsigned or signed otherwise is ignored with a warning.

A value in Redis: magic b"COILSIG\\n", format version (4 bytes, little endian), HMAC (32 bytes), payload.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

from coilwork_cache.codec import MAX_FRAME_BYTES, peek_kind
from coilwork_cache.errors import (
    CacheUnavailableWarning,
    EntryTooLargeWarning,
    InvalidSettingError,
    MissingExtraError,
    OnceAnnouncer,
    UntrustedEntryWarning,
)
from coilwork_cache.key import check_key, is_key
from coilwork_cache.store import EntryInfo, ForkedLock, StoreStats, Tally

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise MissingExtraError("redis", str(error)) from error

log = logging.getLogger("coilwork.cache")
MAGIC = b"COILSIG\n"
SIGNED_FORMAT = 1
MIN_SIGNING_KEY_BYTES = 16
# Redis refuses values above 512 MiB.
DEFAULT_MAX_ENTRY_BYTES = 256 << 20
# Seconds: whoever lists entries waits for a server with millions of them, not for one that never ends.
LONGEST_LISTING_S = 30.0
NAMES_PER_SCAN = 1000
_HEADER = struct.Struct("<8sI32s")
_DOMAIN = b"coilwork-cache/redis-entry\0"

T = TypeVar("T")


class RedisClient(Protocol):
    """The methods of `redis.Redis` that are used; any client that has them will do."""

    def get(self, name: str, /) -> object: ...

    def set(self, name: str, value: bytes, /, *, ex: int | None = None) -> object: ...

    def delete(self, name: str, /) -> object: ...

    def exists(self, name: str, /) -> object: ...

    def strlen(self, name: str, /) -> object: ...

    def getrange(self, key: str, start: int, end: int, /) -> object: ...

    def scan(self, cursor: int, *, match: str, count: int) -> object: ...


class RedisStore:
    """Signed entries under `NAMESPACE:1:KEY`, which expire `ttl_s` seconds after they were written (None:
    never).

    After a failed operation the server is left alone for `retry_after_s` seconds: an unreachable server then
    costs one timeout per interval, not one per kernel. Whatever a server answers costs no more than that:
    an operation that takes longer than `deadline_s` is ended by `abort`, which closes the connections of
    `client`. `clear` removes the namespace's entries for all users.

    Raises InvalidSettingError if `signing_key` has fewer than 16 bytes, or if another setting is out of
    range.
    """

    def __init__(
        self,
        client: RedisClient,
        *,
        signing_key: bytes,
        namespace: str = "coilwork",
        ttl_s: int | None = None,
        retry_after_s: float = 30.0,
        max_entry_bytes: int = DEFAULT_MAX_ENTRY_BYTES,
        deadline_s: float | None = None,
        abort: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if len(signing_key) < MIN_SIGNING_KEY_BYTES:
            # The key itself is a secret and stays out of the message.
            reason = f"it has {len(signing_key)} bytes; at least {MIN_SIGNING_KEY_BYTES} are needed"
            raise InvalidSettingError("signing_key", reason)
        if not namespace or not all(char.isalnum() or char in "-_.:" for char in namespace):
            raise InvalidSettingError(
                f"namespace={namespace!r}", "letters, digits and -_.: only, at least one"
            )
        if ttl_s is not None and ttl_s <= 0:
            raise InvalidSettingError(f"ttl_s={ttl_s}", "must be at least 1, or None")
        if max_entry_bytes <= 0:
            raise InvalidSettingError(f"max_entry_bytes={max_entry_bytes}", "must be at least 1")
        self._client = client
        self._signing_key = signing_key
        self._prefix = f"{namespace}:{SIGNED_FORMAT}:"
        self._ttl_s = ttl_s
        self._max_entry_bytes = max_entry_bytes
        self._deadline_s = deadline_s
        self._abort = abort
        self._tally = Tally()
        self.announcer = OnceAnnouncer()
        self._breaker = _Breaker(retry_after_s, clock)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        signing_key: bytes,
        namespace: str = "coilwork",
        ttl_s: int | None = None,
        timeout_s: float = 2.0,
    ) -> RedisStore:
        """Return a store on the server at `url` (redis://, rediss:// or unix://). Connects at first use, not
        here.

        Every operation is given up if the server is silent for `timeout_s` seconds, and after twice as long
        if it is not. Raises InvalidSettingError for a malformed `url`.
        """
        try:
            # by default the client tries again and again, with pauses
            client = redis.Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            # A URL may hold a password, so it stays out of the message.
            raise InvalidSettingError("url", str(error)) from error
        return cls(
            client,
            signing_key=signing_key,
            namespace=namespace,
            ttl_s=ttl_s,
            deadline_s=2 * timeout_s,
            abort=client.connection_pool.disconnect,
        )

    def get(self, key: str) -> bytes | None:
        name = self._name(key)
        value = self._attempt("reading", partial(self._client.get, name))
        if value is None:
            self._tally.miss()
            return None
        data = self._unsign(key, value)
        if isinstance(data, str):
            self._tally.add(StoreStats(misses=1, corrupt=1))
            self.announcer.announce(UntrustedEntryWarning(name, data))
            return None
        self._tally.hit(len(data))
        return data

    def put(self, key: str, data: bytes) -> None:
        name = self._name(key)
        if len(data) > self._max_entry_bytes:
            self.delete(key)
            reason = f"{len(data)} bytes, and max_entry_bytes is {self._max_entry_bytes}"
            self.announcer.announce(EntryTooLargeWarning(name, reason))
            return
        value = _HEADER.pack(MAGIC, SIGNED_FORMAT, self._mac(key, data)) + data
        if self._attempt("writing", partial(self._client.set, name, value, ex=self._ttl_s)) is not None:
            self._tally.put(len(data))

    def delete(self, key: str) -> None:
        name = self._name(key)
        self._attempt("removing", partial(self._client.delete, name))

    def contains(self, key: str) -> bool:
        name = self._name(key)
        return bool(self._attempt("reading", partial(self._client.exists, name)))

    def check(self, key: str) -> str | None:
        """Return what is wrong with an entry (`InspectableStore.check`).

        An entry with another secret's signature may be of use to others, and stays.
        """
        name = self._name(key)
        value = self._attempt("reading", partial(self._client.get, name))
        data = b"" if value is None else self._unsign(key, value)
        return str(UntrustedEntryWarning(name, data)) if isinstance(data, str) else None

    def entries(self) -> Iterator[EntryInfo]:
        """Yield the namespace's entries, by key. Signatures aren't checked here, so kinds are as claimed."""
        end = _HEADER.size + MAX_FRAME_BYTES - 1
        for name in self._names():
            size = self._attempt("reading", partial(self._client.strlen, name))
            head = self._attempt("reading", partial(self._client.getrange, name, _HEADER.size, end))
            if isinstance(size, int) and isinstance(head, bytes):
                key = name.removeprefix(self._prefix)
                kind = peek_kind(head)
                yield EntryInfo(key=key, kind=kind, size_bytes=size, last_used_s=None, location=name)

    def clear(self) -> int:
        removed = (self._attempt("removing", partial(self._client.delete, name)) for name in self._names())
        return sum(count for count in removed if isinstance(count, int))

    def stats(self) -> StoreStats:
        return self._tally.snapshot()

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _names(self) -> list[str]:
        listing = self._attempt("listing", self._scan, longest_s=LONGEST_LISTING_S)
        # A scan may return a name twice while the server resizes its table.
        names = {name.decode("utf-8", "replace") for name in listing or () if isinstance(name, bytes)}
        return sorted(name for name in names if is_key(name.removeprefix(self._prefix)))

    def _scan(self) -> list[object]:
        end_s = time.monotonic() + LONGEST_LISTING_S
        found: list[object] = []
        cursor = 0
        while True:
            page = self._client.scan(cursor, match=self._prefix + "*", count=NAMES_PER_SCAN)
            if not isinstance(page, tuple) or len(page) != 2:
                raise TypeError("the answer to a scan is no page")
            cursor, names = int(page[0]), page[1]
            found.extend(names)
            if not cursor:
                return found
            if time.monotonic() > end_s:
                raise TimeoutError(f"the listing has no end after {LONGEST_LISTING_S:.0f} s")

    def _mac(self, key: str, data: bytes) -> bytes:
        mac = hmac.new(self._signing_key, _DOMAIN + key.encode(), hashlib.sha256)
        mac.update(data)
        return mac.digest()

    def _unsign(self, key: str, value: object) -> bytes | str:
        """Return the payload, or as text the reason to reject it."""
        if isinstance(value, str):
            return "the client decodes responses; make it with decode_responses=False"
        if not isinstance(value, bytes):
            return f"a {type(value).__name__} in place of bytes"
        if len(value) < _HEADER.size:
            return f"unsigned or truncated: {len(value)} bytes"
        magic, version, mac = _HEADER.unpack_from(value)
        if magic != MAGIC:
            return "unsigned"
        if version != SIGNED_FORMAT:
            return f"signed in format {version}, expected {SIGNED_FORMAT}"
        data = value[_HEADER.size :]
        if not hmac.compare_digest(mac, self._mac(key, data)):
            return "its signature does not match: another signing key, or altered"
        return data

    def _attempt(self, doing: str, operation: Callable[[], T], *, longest_s: float | None = None) -> T | None:
        """Return the result of `operation`; None if the server failed or is not asked for a while."""
        if not self._breaker.is_closed():
            return None
        try:
            with self._deadline(longest_s or self._deadline_s):
                return operation()
        # Whatever goes wrong is the server's fault: what it sends may make the client raise anything.
        except Exception as error:
            log.info("redis, %s", doing, exc_info=True)
            self._breaker.open()
            self._tally.add(StoreStats(failures=1))
            reason = f"{doing}: {type(error).__name__}: {error}"
            self.announcer.announce(CacheUnavailableWarning("redis", reason))
            return None

    @contextmanager
    def _deadline(self, longest_s: float | None) -> Iterator[None]:
        """End what is going on with the server after `longest_s` seconds. The client's own timeouts begin
        anew with each byte."""
        if longest_s is None or self._abort is None:
            yield
            return
        timer = threading.Timer(longest_s, self._abort)
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            # the interpreter shuts down, and starts no threads any more
            yield
            return
        try:
            yield
        finally:
            timer.cancel()


class _Breaker:
    """Remembers until when a failing server is left alone."""

    def __init__(self, retry_after_s: float, clock: Callable[[], float]) -> None:
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._lock = ForkedLock()
        self._closed_from_s = float("-inf")

    def is_closed(self) -> bool:
        with self._lock:
            return self._clock() >= self._closed_from_s

    def open(self) -> None:
        with self._lock:
            self._closed_from_s = self._clock() + self._retry_after_s
