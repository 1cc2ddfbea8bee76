"""Decisions as text."""

from __future__ import annotations

from coilwork_ir.kernels import Decision
from coilwork_scheduler import remarks
from coilwork_scheduler.remarks import Journal


def test_a_line_per_decision():
    made = Decision(rule="fuse", subjects=("a", "b"), accepted=True, reason="cheaper", numbers=(("us", 1.5),))
    head, line, rest = remarks([made]).split("\n")
    assert head.split() == ["done", "rule", "buffers", "reason", "numbers"]
    assert line.split() == ["yes", "fuse", "%a,", "%b", "cheaper", "us=1.5"]
    assert rest == ""


def test_the_record_is_bounded_and_rejections_do_not_crowd_out_the_rest():
    journal = Journal(10)
    for _ in range(100):
        journal.note("reject", (), False, "no")
    journal.note("fuse", (), True, "yes")
    assert [d.rule for d in journal.decisions] == ["reject"] * 5 + ["fuse"]
