"""Records of searches in the store: one per kernel and kind of device, with an entry per magnitude of its
sizes.

An entry holds the closed mapping itself. So a reader need not have built what it was compared with, and can
hand it in for the kernel (docs/how-to/say-how-a-kernel-runs.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from coilwork_cache import Store, TuningCache, content_key
from coilwork_runtime.manifest.kernel_manifest import KernelManifest, KernelSpec, encode_manifest
from coilwork_runtime.triton_kernels.autotune.coordinate_descent import (
    Config,
    SearchResult,
    Space,
    Trial,
    make_config_key,
)
from coilwork_runtime.triton_kernels.versions import format_mapping, read_choice

FORMAT: Final = 4


def list_magnitudes(sizes: Sequence[int]) -> list[int]:
    """Return the bit lengths of sizes: equal for sizes up to the same power of two."""
    return [size.bit_length() for size in sizes]


def record_key(spec: KernelSpec, device_name: str) -> str:
    """The key of what was found for a kernel's source on such devices."""
    launched = KernelManifest(
        name="",
        language=spec.language,
        entry=spec.entry,
        args=spec.args,
        parameters=spec.parameters,
        grid=spec.grid,
        checks=spec.checks,
        target=spec.target,
    )
    return content_key(
        "tuning", "search", str(FORMAT), device_name, spec.source, encode_manifest(launched).hex()
    )


def recall(store: Store | None, spec: KernelSpec, device_name: str) -> Mapping[tuple[int, ...], Config]:
    """Return the configurations that were found, by magnitudes of sizes. A record that does not read is
    dropped.
    """
    tuning, key = TuningCache(store), record_key(spec, device_name)
    record = tuning.get(key)
    if record is None:
        return {}
    entries = _entries(record)
    if entries is None:
        tuning.delete(key)
        return {}
    space = Space.from_spec(spec)
    configs = {tuple(entry["magnitudes"]): find_config(spec, entry["mapping"]) for entry in entries}
    return {
        sizes: config
        for sizes, config in configs.items()
        if config is not None and _is_of(spec, space, config)
    }


def find_config(spec: KernelSpec, mapping: str) -> Config | None:
    """Return the configuration in which the first version of `spec` runs as the closed `mapping` says; None
    if it never does.
    """
    chosen = read_choice(spec.versions[0].mapping, mapping) if spec.versions else None
    return None if chosen is None else dict(spec.configs[0]) | chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFinding:
    """The outcome of a search of one kernel, for sizes of one magnitude: the closed mapping, and its gain
    over the proposed one.
    """

    kernel: str
    device: str
    sizes: tuple[int, ...]
    mapping: str
    gain: float


def list_searches(store: Store) -> Iterator[Mapping[str, Any]]:
    """Yield the records of searches in `store`: kernel, device, and `searches`, one entry per magnitude
    of sizes.
    """
    for _, record in TuningCache(store).list():
        if _entries(record) is not None:
            yield record


def list_findings(store: Store) -> Iterator[SearchFinding]:
    """Yield the outcomes of searches that the records in `store` hold."""
    for record in list_searches(store):
        for entry in record["searches"]:
            yield SearchFinding(
                kernel=str(record.get("kernel")),
                device=str(record.get("device")),
                sizes=tuple(entry["sizes"]),
                mapping=entry["mapping"],
                gain=_gain(entry),
            )


def _gain(entry: Mapping[str, Any]) -> float:
    proposed = next((t["milliseconds"] for t in entry["proposed"] if t["milliseconds"] is not None), None)
    best = entry["best"]["milliseconds"]
    return proposed / best if proposed and best else 1.0


def _is_of(spec: KernelSpec, space: Space, config: Config) -> bool:
    """Tell if `config` is a candidate of `spec`, or one step after the other away from one."""
    given = all(
        config[name] in {candidate[name] for candidate in spec.configs}
        for name in config
        if name not in space.values
    )
    return make_config_key(config) in map(make_config_key, spec.configs) or (given and space.allows(config))


def remember(
    store: Store | None, spec: KernelSpec, device_name: str, sizes: Sequence[int], result: SearchResult
) -> None:
    """Keep the outcome of a search, beside those for other sizes."""
    tuning, key = TuningCache(store), record_key(spec, device_name)
    known = tuning.get(key)
    entries = [] if known is None else _entries(known) or []
    own = list_magnitudes(sizes)
    kept = [entry for entry in entries if entry["magnitudes"] != own]
    fresh: dict[str, Any] = {
        "magnitudes": own,
        "sizes": list(sizes),
        "mapping": format_mapping(spec, result.best.config),
        "best": _to_plain_record(spec, result.best),
        "proposed": [_to_plain_record(spec, trial) for trial in result.proposed],
        "tried": [_to_plain_record(spec, trial) for trial in result.tried],
    }
    tuning.put(key, {"kernel": spec.name, "device": device_name, "searches": [*kept, fresh]})


def _to_plain_record(spec: KernelSpec, trial: Trial) -> dict[str, Any]:
    measured = (field.name for field in fields(trial) if field.name != "config")
    record: dict[str, Any] = {"mapping": format_mapping(spec, trial.config)}
    return record | {name: getattr(trial, name) for name in measured}


def _entries(record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the entries of a record, or None if it is none of a search."""
    entries = record.get("searches")
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        return None
    return entries


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    mapping, sizes = entry.get("mapping"), entry.get("magnitudes")
    return (
        isinstance(mapping, str) and isinstance(sizes, list) and all(isinstance(size, int) for size in sizes)
    )
