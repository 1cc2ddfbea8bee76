"""Hardware counters of the memory-bound benchmark, with a stand-in for `ncu`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.memory_bound.counters import METRICS, NoCountersError, count, parse_counters
from benchmarks.memory_bound.report import markdown
from benchmarks.memory_bound.results import Figure, MemoryRun, Row, read_json, to_json

HEADER = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
VALUES = {
    "dram__bytes_read.sum": "67,116,032",
    "dram__bytes_write.sum": "40,476,672",
    "smsp__thread_inst_executed.sum": "60,817,408",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "84.20",
    "launch__registers_per_thread": "16",
    "gpu__time_duration.sum": "31,488",
}


def launch(number: int, kernel: str) -> list[str]:
    return [f'"{number}","507","{kernel}","{name}","unit","{value}"' for name, value in VALUES.items()]


OUTPUT = ["==PROF== Connected to process 507", HEADER]


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *, prints: list[str], code: int = 0) -> Path:
    """An `ncu` that prints, and notes how it was called."""
    tool, noted = folder / "ncu", folder / "called.json"
    tool.write_text(
        f"#!{sys.executable}\nimport json, sys\n"
        f"json.dump(sys.argv[1:], open({str(noted)!r}, 'w'))\n"
        f"print({chr(10).join(prints)!r})\nsys.exit({code})\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return noted


def test_launches_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(VALUES) == set(METRICS)
    noted = stand_in(tmp_path, monkeypatch, prints=[*OUTPUT, *launch(0, "add_12"), *launch(1, "mul_7")])
    first, second = count(["--case=softmax"], "coilwork", tmp_path, timeout_s=60)
    assert (first.kernel, second.kernel) == ("add_12", "mul_7")
    assert (first.us, first.read_bytes, first.warps) == (31.488, 67116032, 84.2)
    called = json.loads(noted.read_text())
    assert called[-2:] == ["--case=softmax", "--backend=coilwork"]
    assert "--print-units=base" in called


def test_names_of_kernels_may_hold_commas() -> None:
    lines = [HEADER, *launch(3, "void at::k<4, A>(int, T2)")]
    (found,) = parse_counters(lines)
    assert found.kernel == "void at::k<4, A>(int, T2)" and found.registers == 16


def test_why_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCountersError, match="not on the PATH"):
        count([], "coilwork", tmp_path, timeout_s=60)
    stand_in(tmp_path, monkeypatch, prints=["==ERROR== ERR_NVGPUCTRPERM - no permission"], code=1)
    with pytest.raises(NoCountersError, match="ERR_NVGPUCTRPERM"):
        count([], "coilwork", tmp_path, timeout_s=60)


def test_the_page_has_them_or_says_why_not(tmp_path: Path) -> None:
    counters = {"coilwork": parse_counters([HEADER, *launch(0, "add_12")])}
    rows = (
        Row(
            case="sum", set="main", copy_us=2.0, figures={"coilwork": Figure(busy_us=4.0)}, counters=counters
        ),
        Row(
            case="max", set="main", copy_us=2.0, figures={"coilwork": Figure(busy_us=4.0)}, uncounted="no ncu"
        ),
    )
    run = MemoryRun(
        command="c", when="now", device="cuda", seconds=1.0, machine={}, backends=("coilwork",), rows=rows
    )
    page = markdown(run)
    assert "Not available: no ncu." in page
    assert "| sum | coilwork | add_12 | 31.5 | 67.1 | 40.5 | 60.8 | 84% | 16 |" in page
    (tmp_path / "run.json").write_text(to_json(run))
    assert read_json(tmp_path / "run.json").rows == rows
