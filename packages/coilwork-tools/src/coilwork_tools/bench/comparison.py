"""Compare several backends on one function of the user's, each in a fresh process, as data and as text.

`command.py` is the command that prints it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import dropwhile
from pathlib import Path
from types import MappingProxyType

import torch

from coilwork_tools.bench.worker import Finding
from coilwork_tools.measurement import is_measured_by_cuda


def measure_backends(
    script: str,
    name: str,
    backends: Sequence[str],
    *,
    backward: bool,
    timeout_s: float,
    places: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Finding]:
    """Yield one finding per backend, in order, as they come; a process that fails gives one that says so.

    `places` say, by a backend's name, where it stands (MODULE:FUNCTION) if torch has not been told of it.
    """
    for backend in backends:
        command = [sys.executable, "-m", "coilwork_tools.bench.worker", script, name, backend]
        command += ["--backward"] if backward else []
        place = places.get(backend.partition(":")[0].removesuffix("-max"))
        command += ["--place", place] if place else []
        with tempfile.TemporaryDirectory(prefix="coilwork-bench-", ignore_cleanup_errors=True) as folder:
            yield _make_finding(command, backend, Path(folder), timeout_s)


def _make_finding(command: Sequence[str], backend: str, folder: Path, timeout_s: float) -> Finding:
    environment = os.environ | {
        "COILWORK_CACHE_DIR": str(folder / "coilwork"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return Finding(backend=backend, failure=f"took longer than {timeout_s:.0f} s")
    if done.returncode != 0:
        return Finding(backend=backend, failure=find_reason(done.stderr) or f"exit status {done.returncode}")
    return Finding(**json.loads(done.stdout))


def find_reason(said: str) -> str:
    """Return why a process failed, in one line, by what it `said` at last: the error below the traceback,
    without Dynamo's advice.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    if not frames:
        return lines[-1].strip() if lines else ""
    error = dropwhile(lambda line: line.startswith(" "), lines[frames[-1] + 1 :])
    return " ".join(map(str.strip, error)).partition(" Set TORCHDYNAMO_VERBOSE")[0]


def to_json(subject: str, findings: Sequence[Finding]) -> str:
    """Return the findings, with share of a copy and speed-up over the first backend."""
    entries = [
        asdict(finding) | {"share_of_copy": share(finding), "speedup": compute_speedup(finding, findings[0])}
        for finding in findings
    ]
    facts = {"subject": subject, "torch": torch.__version__, "device": _device(findings), "backends": entries}
    return json.dumps(facts, indent=1) + "\n"


def to_markdown(subject: str, findings: Sequence[Finding]) -> str:
    """Return the findings as a table."""
    fewest = max((finding.fewest_bytes for finding in findings), default=0)
    lines = [
        f"`{subject}` on {_device(findings)}, torch {torch.__version__}: inputs, parameters and results "
        "together hold "
        f"{fewest / 1e6:.4g} MB; a share is the time of a copy that moves as many bytes over the time taken.",
        "",
        (
            f"| backend | us busy | share of a copy | times {findings[0].backend} | us to issue | kernels | "
            "peak MB | first call s | error |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in findings:
        peak = None if one.peak_bytes is None else one.peak_bytes / 1e6
        ratio, part = compute_speedup(one, findings[0]), share(one)
        cells = [
            one.backend,
            _number(one.busy_us),
            "–" if part is None else f"{part:.0%}",
            _number(ratio),
            _number(one.host_us),
            _number(one.kernels),
            _number(peak),
            _number(one.first_call_s),
            one.failure.replace("|", "\\|") or _number(one.error),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def share(finding: Finding) -> float | None:
    """Return the share of the bandwidth of a copy."""
    if finding.copy_us is None or not finding.busy_us:
        return None
    return finding.copy_us / finding.busy_us


def compute_speedup(finding: Finding, over: Finding) -> float | None:
    """Return how many times as fast as `over` it is."""
    if over.busy_us is None or not finding.busy_us:
        return None
    return over.busy_us / finding.busy_us


def _device(findings: Sequence[Finding]) -> str:
    name = next((finding.device for finding in findings if finding.device), "no device")
    return torch.cuda.get_device_name(name) if is_measured_by_cuda(name) else name


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
