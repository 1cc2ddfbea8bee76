"""The parent's side of `coilwork bench`: figures and texts."""

from __future__ import annotations

import json
from pathlib import Path

from coilwork_tools.bench.comparison import (
    compute_speedup,
    find_reason,
    measure_backends,
    share,
    to_json,
    to_markdown,
)
from coilwork_tools.bench.worker import Finding

EAGER = Finding(backend="eager", device="cpu", busy_us=4.0, copy_us=2.0, fewest_bytes=1000, error=1e-7)
OURS = Finding(
    backend="coilwork", device="cpu", busy_us=2.5, copy_us=2.0, fewest_bytes=1000, peak_bytes=4_000_000
)
BROKEN = Finding(backend="broken", failure="exit status 1: a | b")


def test_shares_and_speedups() -> None:
    assert share(OURS) == 0.8 and compute_speedup(OURS, EAGER) == 1.6
    assert (
        share(BROKEN) is None
        and compute_speedup(BROKEN, EAGER) is None
        and compute_speedup(OURS, BROKEN) is None
    )


def test_a_failure_is_a_row() -> None:
    text = to_markdown("mine.py:case", [EAGER, OURS, BROKEN])
    assert "| eager | 4 | 50% | 1 |" in text
    assert "| coilwork | 2.5 | 80% | 1.6 |" in text
    assert "exit status 1: a \\| b |" in text
    assert "0.001 MB" in text


def test_json_has_the_derived_figures() -> None:
    facts = json.loads(to_json("mine.py:case", [EAGER, OURS, BROKEN]))
    assert [entry["share_of_copy"] for entry in facts["backends"]] == [0.5, 0.8, None]
    assert facts["device"] == "cpu" and facts["subject"] == "mine.py:case"


def test_a_process_that_hangs_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(600)\n")
    (found,) = measure_backends(str(script), "case", ["eager"], backward=False, timeout_s=1.0)
    assert found.failure == "took longer than 1 s"


def test_a_failure_is_told_by_its_error_and_not_by_the_advice_behind_it() -> None:
    said = (
        "warning: slow\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in <module>\n    call()\n    ~~~~^^\n'
        "BackendCompilerFailed: backend='coilwork' raised:\nOptionError[unknown-mode]: mode\n\n"
        'Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace. Set TORCH_LOGS="+dynamo"\n'
    )
    assert (
        find_reason(said)
        == "BackendCompilerFailed: backend='coilwork' raised: OptionError[unknown-mode]: mode"
    )
    assert find_reason("cannot load it\nkilled\n") == "killed"
    assert find_reason("") == ""
