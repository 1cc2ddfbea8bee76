"""Hardware counters of a case's kernels, by Nsight Compute (`ncu`), where that is installed and permitted.

It runs every kernel several times with emptied caches, so its times are no benchmark's; what it says is why a
kernel takes its time: bytes that passed the memory's pins, instructions, warps in flight.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gpus import gpu_environment
from benchmarks.session import cache_variables

MODULE: Final = "benchmarks.memory_bound.ncu_process"
READ: Final = "dram__bytes_read.sum"
WRITTEN: Final = "dram__bytes_write.sum"
INSTRUCTIONS: Final = "smsp__thread_inst_executed.sum"
WARPS: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
REGISTERS: Final = "launch__registers_per_thread"
NANOSECONDS: Final = "gpu__time_duration.sum"
METRICS: Final = (READ, WRITTEN, INSTRUCTIONS, WARPS, REGISTERS, NANOSECONDS)


class NoCountersError(Exception):
    """There are none; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """One launch.

    Attributes:
        kernel: its name.
        us: microseconds, caches empty.
        read_bytes, written_bytes: what went through the memory's pins.
        instructions: of all threads.
        warps: share of the most warps that a multiprocessor holds, 0 to 100, in the mean.
        registers: per thread.
    """

    kernel: str
    us: float
    read_bytes: float
    written_bytes: float
    instructions: float
    warps: float
    registers: float


def count(
    arguments: Sequence[str], backend: str, folder: Path, *, timeout_s: float, gpu: str = ""
) -> list[Counters]:
    """Each launch of one call, in order. `arguments` are those of the case's process, `folder` has the
    compiler's caches.

    Raises:
        NoCountersError: `ncu` is missing, not permitted, or failed.
    """
    tool = shutil.which("ncu")
    if tool is None:
        raise NoCountersError("ncu (Nsight Compute) is not on the PATH")
    command = [
        tool,
        "--csv",
        "--print-units=base",
        "--profile-from-start=off",
        "--target-processes=application-only",
    ]
    command += ["--clock-control=none", f"--metrics={','.join(METRICS)}"]
    command += [sys.executable, "-m", MODULE, *arguments, f"--backend={backend}"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, **cache_variables(folder), **gpu_environment(gpu)},
        )
    except subprocess.TimeoutExpired:
        raise NoCountersError(f"ncu took more than {timeout_s:.0f} s") from None
    found = parse_counters(done.stdout.splitlines())
    if done.returncode or not found:
        raise NoCountersError(_reason(done.stdout + done.stderr))
    return found


def parse_counters(lines: Iterable[str]) -> list[Counters]:
    """Launches from the CSV that `ncu` prints among other lines: one line per launch and metric."""
    table = [line for line in lines if line.startswith('"')]
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for row in csv.DictReader(table):
        _, values = launches.setdefault(row["ID"], (row["Kernel Name"], {}))
        values[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return [
        Counters(
            kernel=kernel,
            us=values.get(NANOSECONDS, 0.0) / 1e3,
            read_bytes=values.get(READ, 0.0),
            written_bytes=values.get(WRITTEN, 0.0),
            instructions=values.get(INSTRUCTIONS, 0.0),
            warps=values.get(WARPS, 0.0),
            registers=values.get(REGISTERS, 0.0),
        )
        for kernel, values in launches.values()
    ]


def _reason(output: str) -> str:
    told = [line.strip("= ") for line in output.splitlines() if "ERR" in line or "==ERROR==" in line]
    lines = told or [line for line in output.splitlines() if line.strip()]
    return f"ncu: {lines[0] if told else lines[-1] if lines else 'no output'}"[:300]
