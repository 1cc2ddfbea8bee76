"""Coilwork's store of compiled results, on local disk or in Redis, and the typed caches over it.

Open `store.py` first: it says what a store is, and `key.py` what its keys are. `local_store.py`,
`memory_store.py`, `redis_store.py` (extra `coilwork-cache[redis]`) and `tiered_store.py` are stores;
`typed_cache.py` has the caches.
"""

from coilwork_cache.codec import (
    Bundle,
    BundleCodec,
    BytesCodec,
    Codec,
    JsonCodec,
    JsonValue,
    MappedCodec,
    extract,
)
from coilwork_cache.errors import (
    ERRORS,
    WARNINGS,
    ArchiveError,
    CacheCorruptionWarning,
    CacheError,
    CacheFullWarning,
    CacheUnavailableWarning,
    CacheWarning,
    CodecError,
    EntryTooLargeWarning,
    InsecureRootError,
    InsecureRootWarning,
    InvalidKeyError,
    InvalidSettingError,
    MissingExtraError,
    RootUnavailableError,
    UnencodableValueWarning,
    UntrustedEntryWarning,
)
from coilwork_cache.folder import find_default_root
from coilwork_cache.key import compiler_identity, content_key
from coilwork_cache.local_store import Limits, LocalStore, open_local_store
from coilwork_cache.maintenance import (
    ArchiveReport,
    KindTotal,
    StoreReport,
    VerifyReport,
    clear,
    describe,
    export_archive,
    import_archive,
    load,
    save,
    verify,
)
from coilwork_cache.memory_store import MemoryStore, NullStore
from coilwork_cache.store import (
    ClaimableStore,
    CountingStore,
    EntryInfo,
    InspectableStore,
    Store,
    StoreStats,
    UseCount,
)
from coilwork_cache.tiered_store import TieredStore, connect_shared, open_store
from coilwork_cache.typed_cache import (
    Entry,
    GraphCache,
    GraphEntry,
    KernelCache,
    RemedyCache,
    TraceCache,
    TuningCache,
    TypedCache,
)

__version__ = "0.1.0"

__all__ = [
    # stores
    "Store",
    "ClaimableStore",
    "InspectableStore",
    "LocalStore",
    "Limits",
    "open_local_store",
    "find_default_root",
    "MemoryStore",
    "TieredStore",
    "NullStore",
    "open_store",
    "connect_shared",
    "content_key",
    "compiler_identity",
    # typed caches and what they hold
    "TypedCache",
    "GraphCache",
    "GraphEntry",
    "KernelCache",
    "TuningCache",
    "RemedyCache",
    "TraceCache",
    "Entry",
    "Codec",
    "BytesCodec",
    "JsonCodec",
    "JsonValue",
    "MappedCodec",
    "Bundle",
    "BundleCodec",
    "extract",
    # inspection
    "EntryInfo",
    "StoreStats",
    "CountingStore",
    "UseCount",
    "StoreReport",
    "KindTotal",
    "VerifyReport",
    "describe",
    "clear",
    "verify",
    "ArchiveReport",
    "export_archive",
    "import_archive",
    "save",
    "load",
    # errors and warnings
    "CacheError",
    "InvalidKeyError",
    "InvalidSettingError",
    "InsecureRootError",
    "RootUnavailableError",
    "CodecError",
    "ArchiveError",
    "MissingExtraError",
    "ERRORS",
    "CacheWarning",
    "CacheCorruptionWarning",
    "CacheFullWarning",
    "CacheUnavailableWarning",
    "InsecureRootWarning",
    "EntryTooLargeWarning",
    "UntrustedEntryWarning",
    "UnencodableValueWarning",
    "WARNINGS",
]
