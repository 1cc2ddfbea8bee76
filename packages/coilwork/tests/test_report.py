"""The report's JSON holds what the report holds."""

from __future__ import annotations

import json

from coilwork_tools.explain.report import CompileReport


def test_json_round_trip() -> None:
    report = CompileReport(
        graph_id="forward_1f", role="forward", kernels=3, seconds={"lower": 0.25}, peak_bytes_predicted=64
    )
    assert CompileReport(**json.loads(report.to_json())) == report
