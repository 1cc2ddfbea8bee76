"""The table of layout programs: cases as texts, processes that are told what to do, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.layout_programs import table
from benchmarks.layout_programs.cases import Case, list_cases
from benchmarks.layout_programs.table_page import make_page
from benchmarks.layout_programs.table_worker import BACKENDS

# Answers as a process with a GPU does, and ends at the case that says so.
WORKER = """
import json, sys
for line in sys.stdin:
    verb, case, *backend = line.split()
    if verb == "compile":
        if case.startswith("decoder"):
            break
        off = {f"{name} off": 0.0 for name in BACKENDS} | {f"{name} MB": 1.0 for name in BACKENDS}
        off |= {"coilwork repeatable": True, "coilwork strides": True}
        print(json.dumps({"case": case, "seconds": {}, **off}), flush=True)
        continue
    print(json.dumps({}), flush=True)
    kernels = [{"name": "k", "launches": 1, "total_us": {"inductor": 3.0}.get(backend[0], 2.0)}]
    print(json.dumps({"case": case, "backend": backend[0], "kernels": kernels}), flush=True)
"""


def test_a_case_is_its_text() -> None:
    cases = list(list_cases(("gated", "decoder"), ("train", "infer"), ("bf16", "strict"), ("own", "last")))
    assert len(set(cases)) == 16
    assert all(Case.parse(str(case)) == case for case in cases)
    # what takes long is compiled first
    assert cases[0].setting.train and not cases[-1].setting.train


def test_cases_are_measured_by_processes_of_which_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("answering.py").write_text(f"BACKENDS = {BACKENDS!r}\n{WORKER}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(table, "WORKER", "answering")
    cases = [f"{name}/infer/bf16/own" for name in ("gated", "decoder", "vit", "normed")]
    *_, found = table.measure(cases, 2, 60.0)
    assert found["decoder/infer/bf16/own"] == {"failed": "its process ended"}
    measured = [case for case, said in found.items() if set(said.get("kernels", ())) == set(BACKENDS)]
    assert sorted(measured) == sorted({*cases} - {"decoder/infer/bf16/own"})
    page = make_page(found, {"gpu": "none"})
    assert "| all | 3 | 1.50 | 1.50 |" in page
    assert "| vit, infer, bf16 | 2.0 | 3.0 | 2.0 | 1.50 |" in page
    assert "- decoder/infer/bf16/own: failed: its process ended" in page
