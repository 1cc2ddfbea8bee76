"""Every error and warning of this package: one class, one stable code, one remedy.

A store never raises because the disk or the network failed: it warns and reports a miss, so that a broken
cache costs time and nothing else. Errors are left for what the caller got wrong (a malformed key, an insecure
folder, a damaged archive). `OnceAnnouncer` issues the first warning of each kind; the logger `coilwork.cache`
gets the others.

Messages read ``Class[code]: subject``, then ``reason`` and ``try``, each on its own line.
"""

from __future__ import annotations

import logging
import warnings
from typing import ClassVar, Protocol, runtime_checkable

from coilwork_cache.store import ForkedLock


def _message(name: str, code: str, subject: str, reason: str, remedy: str) -> str:
    return f"{name}[{code}]: {subject}\n  reason  {reason}\n  try     {remedy}"


class CacheWarning(UserWarning):
    """Base of all warnings of this package. `subject` is the file, key or address concerned."""

    code: ClassVar[str] = "cache"
    remedy: ClassVar[str] = "see the reason; the program goes on without this entry"

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(_message(type(self).__name__, self.code, subject, reason, self.remedy))
        self.subject = subject
        self.reason = reason


class CacheCorruptionWarning(CacheWarning):
    """A stored entry is truncated, altered or undecodable. It was removed and counted as a miss. Issued once
    per store and kind of entry."""

    code = "corrupt-entry"
    remedy = "nothing: the entry was removed and is rebuilt; if it happens again, check the disk"


class CacheFullWarning(CacheWarning):
    """The disk, or the user's quota, is full. The entry was not stored. Issued once per store."""

    code = "disk-full"
    remedy = (
        "free disk space, lower the option max_bytes, or name another folder in the option cache_dir; "
        "until then nothing new is cached"
    )


class CacheUnavailableWarning(CacheWarning):
    """The store can't be read or written. The operation was skipped. Issued once per store and operation."""

    code = "store-unavailable"
    remedy = (
        "check that the store (option cache_dir, or option redis_url) exists, is reachable and is "
        "writable by this user"
    )


class InsecureRootWarning(CacheWarning):
    """The cache folder could have been written by somebody else; this process goes on without a cache."""

    code = "insecure-root"
    remedy = "run chmod go-w on it, or name a folder of your own in the option cache_dir"


class EntryTooLargeWarning(CacheWarning):
    """One entry is larger than the whole store may be. It was not stored. Issued once per store."""

    code = "entry-too-large"
    remedy = "raise the limit; of the folder it is the option max_bytes"


class UntrustedEntryWarning(CacheWarning):
    """A shared entry has no valid signature. It was ignored and counted as a miss. Issued once per store."""

    code = "untrusted-entry"
    remedy = "use one secret (COILWORK_REDIS_KEY) on all machines, or one server or namespace per secret"


class UnencodableValueWarning(CacheWarning):
    """A value can't be written in its cache's format. It was not stored. Issued once per store and kind."""

    code = "unencodable-value"
    remedy = "store only what the codec documents (for JSON: no NaN or infinity, string keys)"


class CacheError(Exception):
    """Base of all errors of this package."""

    code: ClassVar[str] = "cache"
    remedy: ClassVar[str] = "see the reason"

    def __init__(self, subject: str, reason: str) -> None:
        super().__init__(_message(type(self).__name__, self.code, subject, reason, self.remedy))
        self.subject = subject
        self.reason = reason


class InvalidKeyError(CacheError, ValueError):
    """A key is not 64 lower-case hexadecimal digits, or a kind is not a short lower-case name."""

    code = "invalid-key"
    remedy = "make keys with coilwork_cache.content_key(kind, *parts)"


class InvalidSettingError(CacheError, ValueError):
    """A store was built with a setting outside its documented range."""

    code = "invalid-setting"
    remedy = "see the range in the reason"


class InsecureRootError(CacheError, PermissionError):
    """The cache folder belongs to another user, or others may write to it."""

    code = "insecure-root"
    remedy = InsecureRootWarning.remedy


class RootUnavailableError(CacheError, OSError):
    """The cache folder can't be created or examined."""

    code = "root-unavailable"
    remedy = "choose a writable root, for example with COILWORK_CACHE_DIR"


class CodecError(CacheError, ValueError):
    """Bytes that are not what a codec writes, or a value that it can't write."""

    code = "codec"
    remedy = "pass what the codec's encode() produced, respectively what it documents"


class ArchiveError(CacheError, ValueError):
    """An exported archive is damaged or not one of ours. Nothing was imported from it."""

    code = "bad-archive"
    remedy = "export the archive again with the same major version of coilwork-cache"


class MissingExtraError(CacheError, ImportError):
    """An optional dependency is not installed."""

    code = "missing-extra"
    remedy = "pip install 'coilwork-cache[redis]'"


WARNINGS: tuple[type[CacheWarning], ...] = (
    CacheCorruptionWarning,
    CacheFullWarning,
    CacheUnavailableWarning,
    InsecureRootWarning,
    EntryTooLargeWarning,
    UntrustedEntryWarning,
    UnencodableValueWarning,
)
ERRORS: tuple[type[CacheError], ...] = (
    InvalidKeyError,
    InvalidSettingError,
    InsecureRootError,
    RootUnavailableError,
    CodecError,
    ArchiveError,
    MissingExtraError,
)


# ---- one warning per kind ----


log = logging.getLogger("coilwork.cache")


class OnceAnnouncer:
    """Issues the first warning of each class and topic. Those that follow go to the logger `coilwork.cache`,
    as information."""

    def __init__(self) -> None:
        self._lock = ForkedLock()
        self._seen: set[tuple[type[CacheWarning], str]] = set()

    def announce(self, warning: CacheWarning, *, topic: str = "") -> None:
        """Issue `warning`, or log it if one of its class was issued for `topic` before."""
        with self._lock:
            mark = (type(warning), topic)
            is_first = mark not in self._seen
            self._seen.add(mark)
        if is_first:
            announce(warning, stacklevel=4)
        else:
            log.info("%s", warning)


@runtime_checkable
class AnnouncingStore(Protocol):
    """A store whose typed caches warn once, too."""

    @property
    def announcer(self) -> OnceAnnouncer: ...


def find_announcer(store: object) -> OnceAnnouncer:
    """Return the announcer of `store`; a new one if it has none."""
    return store.announcer if isinstance(store, AnnouncingStore) else OnceAnnouncer()


def announce(warning: CacheWarning, *, stacklevel: int = 3) -> None:
    """Issue `warning`. `stacklevel` 3 points at the caller of the store's method."""
    warnings.warn(warning, stacklevel=stacklevel)
