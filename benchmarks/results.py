"""The results of a run as data: one measurement per model, mode, dtype and backend, and their comparison."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One backend on one model. Figures that were not measured are None; `failure` says why nothing
    was, or by how much a result was wrong (such a backend is measured all the same).

    `first_call_s` is the first call, compilation and compiler imports included. `ms` is the median call: wall
    time on the CPU, between CUDA events (L2 flushed) on a GPU. `gpu_busy_ms` sums kernel and copy times;
    `host_ms` is what the host needs to issue a call. `peak_bytes` lies above parameters and inputs. `kernels`
    counts launches per call: GPU kernels, generated kernels plus library calls on the CPU, operators for
    eager. `relative_l2` is the worst judged tensor's error against float64, `eager_relative_l2` eager's error
    there.
    """

    model: str
    mode: str
    dtype: str
    backend: str
    failure: str = ""
    correct: bool | None = None
    relative_l2: float | None = None
    eager_relative_l2: float | None = None
    first_call_s: float | None = None
    ms: float | None = None
    ms_low: float | None = None
    ms_high: float | None = None
    gpu_busy_ms: float | None = None
    host_ms: float | None = None
    peak_bytes: int | None = None
    kernels: int | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what is measured, whoever compiles it."""
        return self.model, self.mode, self.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one `python -m benchmarks run` found. Without `batch`, each model was measured
    at its own.
    """

    command: str
    when: str
    size: str
    device: str
    threads: int
    machine: dict[str, str]
    measurements: tuple[Measurement, ...]
    batch: int | None = None


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Their quotient, None where either is missing or there is nothing to divide by."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def group_measurements(
    measurements: Iterable[Measurement],
) -> dict[tuple[str, str, str], dict[str, Measurement]]:
    """Measurements by what is measured, then by backend, in order of appearance."""
    groups: dict[tuple[str, str, str], dict[str, Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.key, {})[measurement.backend] = measurement
    return groups


def ratios(group: dict[str, Measurement], backend: str) -> dict[str, float | None]:
    """`backend` against each other one in the group: times and memory as other / own, so above 1
    is better.
    """
    own = group[backend]
    found: dict[str, float | None] = {}
    for name, other in group.items():
        if name == backend:
            continue
        found[f"speedup_vs_{name}"] = ratio(other.ms, own.ms)
        found[f"gpu_busy_speedup_vs_{name}"] = ratio(other.gpu_busy_ms, own.gpu_busy_ms)
        found[f"memory_saving_vs_{name}"] = ratio(other.peak_bytes, own.peak_bytes)
        found[f"compile_speedup_vs_{name}"] = ratio(
            compile_seconds(group, name), compile_seconds(group, backend)
        )
    return found


def compile_seconds(group: dict[str, Measurement], backend: str) -> float | None:
    """The backend's first call less eager's first call; None for eager itself or where one was
    not measured.
    """
    own, eager = group[backend], group.get("eager")
    if backend == "eager" or eager is None or own.first_call_s is None or eager.first_call_s is None:
        return None
    return own.first_call_s - eager.first_call_s


def to_json(run: Run) -> str:
    """The run as JSON, with the ratios spelled out beside each measurement."""
    groups = group_measurements(run.measurements)
    data = asdict(run)
    for entry, measurement in zip(data["measurements"], run.measurements, strict=True):
        group = groups[measurement.key]
        entry["compile_s"] = compile_seconds(group, measurement.backend)
        entry["ratios"] = ratios(group, measurement.backend)
    return json.dumps(data, indent=2) + "\n"


def read_json(path: Path) -> Run:
    """Read what `to_json` wrote; derived figures are computed again."""
    data = json.loads(path.read_text())
    derived = ("compile_s", "ratios")
    data["measurements"] = tuple(
        Measurement(**{name: value for name, value in entry.items() if name not in derived})
        for entry in data["measurements"]
    )
    return Run(**data)
