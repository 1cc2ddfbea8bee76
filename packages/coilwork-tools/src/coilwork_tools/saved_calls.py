"""Calls of captured graphs as bytes, for `torch.compile(f).aot_compile(inputs).save_compiled_function(path)`.

The bytes hold what a warm cache would: the record of the traced graph, its programs and their kernels. Where
they are loaded, they go into the cache, and the call is made as in a process that finds its graph there.
Code for CPUs is laid out for a number of threads, and runs with any.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from coilwork_cache import (
    ArchiveError,
    Bundle,
    BundleCodec,
    CodecError,
    LocalStore,
    Store,
    TieredStore,
    TraceCache,
    export_archive,
    import_archive,
)
from coilwork_frontend.errors import CompileError
from coilwork_frontend.torch_compat.saved_functions import (
    GlobalState,
    SerializableCallable,
    leave_torch_cache,
)
from coilwork_frontend.torch_compat.traced_results import UnstorableError
from coilwork_frontend.traced_graphs import restore_guarded
from coilwork_tools.stored_traces import StoredTraces

_ENTRIES: Final = "entries.zip"


class SavedCall(SerializableCallable):
    """The call of a captured graph, which can be written down.

    Attributes:
        call: takes inputs one by one.
        entries: what a cache has to hold for the call to be made again; empty if the graph leaves no record.
        facts: what the loading process needs beside it: the key of the record, the settings, and torch's.
        state: torch's settings, which have to be the same in a call.
    """

    def __init__(self, call: Callable[..., Any], entries: bytes, facts: Mapping[str, Any]) -> None:
        self.call = call
        self.entries = entries
        self.facts = facts
        self.state = GlobalState(facts["state"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if changes := self.state.list_changes():
            raise CompileError(
                "other-state",
                "a saved function was compiled for other settings of torch",
                reason=changes,
                remedy="call it as it was compiled: with or without gradients, autocast, ...",
            )
        return self.call(*args, **kwargs)

    @classmethod
    @abstractmethod
    def open_traces(cls, settings: Mapping[str, Any]) -> StoredTraces:
        """Return the records of traced graphs that this process keeps, for these settings."""

    @classmethod
    def make(
        cls, make_call: Callable[[list[str]], Callable[..., Any]], settings: Mapping[str, Any], store: Store
    ) -> Self:
        """Return what `make_call` makes, with all that it puts into or takes from `store`.

        `make_call` appends the key of each record of a traced graph that it asks for.
        """
        folder = _find_folder(store)
        before = 0 if folder is None else folder.count_uses()
        keys: list[str] = []
        with leave_torch_cache():
            call = make_call(keys)
        entries = b""
        if folder is not None and len(keys) == 1 and folder.contains(keys[0]):
            with tempfile.TemporaryDirectory() as place:
                path = Path(place) / _ENTRIES
                export_archive(folder, path, keys=folder.list_used_keys(since=before))
                entries = path.read_bytes()
        facts = {"key": keys[0] if keys else "", "settings": dict(settings), "state": GlobalState.read().text}
        return cls(call, entries, facts)

    @classmethod
    def serialize_compile_artifacts(cls, fn: SavedCall) -> bytes:
        """Return the bytes of a call.

        Raises:
            CompileError: the graph leaves no record from which another process could make the call.
        """
        if not fn.entries:
            raise CompileError(
                "not-saved",
                "the compiled function cannot be saved",
                reason="its graph is traced in every process, or nothing is cached",
                remedy="the logger 'coilwork' says why at level DEBUG; coilwork.export saves models, too",
            )
        return BundleCodec().encode(Bundle(records={_ENTRIES: fn.entries}, metadata=fn.facts))

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> SavedCall:
        """Return the call of such bytes, which are a program: load only what you would run.

        Raises:
            CompileError: they are damaged, were made by another version, or the cache cannot be used.
        """
        try:
            bundle = BundleCodec().decode(data)
            entries, facts = bundle.records[_ENTRIES], bundle.metadata
            settings, key = facts["settings"], facts["key"]
            if not isinstance(settings, dict) or not isinstance(key, str):
                raise TypeError("no settings, or no key")
            traces = cls.open_traces(settings)
            with tempfile.TemporaryDirectory() as place:
                path = Path(place) / _ENTRIES
                path.write_bytes(entries)
                import_archive(traces.store, path)
            record: dict[str, Any] | None = TraceCache(traces.store).get(key)
            call = None if record is None else restore_guarded(traces, record)
            saved = None if call is None else cls(call, entries, facts)
        except (CodecError, ArchiveError, UnstorableError, LookupError, TypeError, ValueError) as error:
            raise _make_load_error(f"{type(error).__name__}: {error}"[:1000]) from error
        if saved is None:
            raise _make_load_error("the cache cannot be used, or this machine has other devices")
        return saved


def _find_folder(store: Store) -> LocalStore | None:
    """Return the folder of a store; None if it has none."""
    if isinstance(store, TieredStore):
        return _find_folder(store.fast)
    return store if isinstance(store, LocalStore) else None


def _make_load_error(reason: str) -> CompileError:
    return CompileError(
        "not-loaded", "the saved function does not load", reason=reason, remedy="compile and save it again"
    )
