"""Decisions as text."""

from __future__ import annotations

from coilwork_ir.kernels import Decision
from coilwork_scheduler import explain
from coilwork_scheduler.optimization_remarks import Remarks


def test_a_line_per_decision() -> None:
    made = Decision(rule="fuse", subjects=("a", "b"), accepted=True, reason="cheaper", numbers=(("us", 1.5),))
    head, line, rest = explain([made]).split("\n")
    assert head.split() == ["done", "rule", "buffers", "reason", "numbers"]
    assert line.split() == ["yes", "fuse", "%a,", "%b", "cheaper", "us=1.5"]
    assert rest == ""


def test_the_record_is_bounded_and_rejections_do_not_crowd_out_the_rest() -> None:
    remarks = Remarks(10)
    for _ in range(100):
        remarks.note("reject", (), False, "no")
    remarks.note("fuse", (), True, "yes")
    assert [d.rule for d in remarks.decisions] == ["reject"] * 5 + ["fuse"]
