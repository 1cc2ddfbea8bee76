"""Progress of compilations: events for callbacks, the line on a terminal, phases as a trace."""

from __future__ import annotations

import json
import logging
import os
import pty
import sys
import threading
import time

import pytest

from coilwork_tools.explain import live_line
from coilwork_tools.explain.live_line import LiveLine, is_watched
from coilwork_tools.explain.progress import ProgressEvent, ProgressReporter, find_board, on_progress
from coilwork_tools.explain.report import CompileReport, StageClock, open_clock
from coilwork_tools.explain.trace_folder import Trace


def compile_something(clock: StageClock) -> None:
    with clock.stage("lower"):
        pass
    with clock.stage("build"):
        clock.count_kernels(1, 2, 0)
        clock.count_kernels(2, 2, 1)
    clock.finish(CompileReport(graph_id="g", role="inference", cache_hit=True), Trace(None))


def test_a_callback_gets_every_step_until_it_is_stopped() -> None:
    events: list[ProgressEvent] = []
    with on_progress(events.append):
        compile_something(open_clock("g", is_shown=False))
    compile_something(open_clock("other", is_shown=False))
    assert [(one.graph, one.event, one.stage, one.built, one.total, one.found) for one in events] == [
        ("g", "stage", "lower", 0, 0, 0),
        ("g", "stage", "build", 0, 0, 0),
        ("g", "kernels", "build", 1, 2, 1),
        ("g", "kernels", "build", 2, 2, 1),
        ("g", "done", "", 2, 2, 1),
    ]
    assert [one.cache_hit for one in events] == [False] * 4 + [True]
    assert all(0 <= one.seconds < 60 for one in events)


def test_a_callback_that_fails_is_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[ProgressEvent] = []

    def fail(event: ProgressEvent) -> None:
        calls.append(event)
        raise ValueError("of the user's")

    on_progress(fail)
    with caplog.at_level(logging.WARNING, "coilwork"):
        compile_something(open_clock("g", is_shown=False))
    assert len(calls) == 1 and len(caplog.records) == 1
    assert "of the user's" in caplog.text


def test_the_board_describes_all_graphs_that_are_compiled() -> None:
    board = find_board()
    one, other = ProgressReporter("one"), ProgressReporter("other")
    with one.stage("build"):
        one.count_kernels(3, 10, 2)
        assert board.measure_idle() == 0.0
        assert board.describe() == "build of one, 3 of 10 kernels, 1 from the cache"
        with other.stage("lower"):
            assert board.describe() == "lower of other, 3 of 10 kernels, 1 from the cache, 2 graphs at once"
    assert board.measure_idle() >= 0.0 and board.describe() == "tracing"


def test_phases_are_a_chrome_trace() -> None:
    written: dict[str, str] = {}

    class Folder(Trace):
        def write(self, name: str, text: str) -> None:
            written[name] = text

    clock = open_clock("g", is_shown=False)
    before_us = time.time() * 1e6
    with clock.stage("build"):
        time.sleep(0.01)
    with clock.stage("build"):
        pass
    clock.finish(CompileReport(graph_id="g", role="inference"), Folder(None))
    first, second = json.loads(written["phases.json"])["traceEvents"]
    assert first["ph"] == "X" and first["name"] == "build" and first["args"] == {"graph": "g"}
    assert before_us - 1e3 <= first["ts"] and first["ts"] + first["dur"] <= second["ts"] + 1e3
    assert 10e3 <= first["dur"] < 5e6
    assert (first["pid"], first["tid"]) == (os.getpid(), threading.get_native_id())
    assert clock.seconds["build"] == pytest.approx((first["dur"] + second["dur"]) * 1e-6)


def test_phases_and_reports_are_in_torchs_structured_trace() -> None:
    """tlparse reads events and artifacts from it. `TORCH_TRACE` adds a handler like this one."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    logger, keep = logging.getLogger("torch.__trace"), Keep()
    level = logger.level
    logger.addHandler(keep)
    logger.setLevel(logging.DEBUG)
    try:
        compile_something(open_clock("g", is_shown=False))
    finally:
        logger.removeHandler(keep)
        logger.setLevel(level)
    metadata = [vars(record).get("metadata", {}) for record in records]
    names = [one["artifact"]["name"] for one in metadata if "artifact" in one]
    assert names == ["coilwork_report_g", "coilwork_phases_g"]
    payloads = [
        json.loads(vars(record)["payload"])
        for record, one in zip(records, metadata, strict=True)
        if "chromium_event" in one
    ]
    assert [(one["name"], one["ph"]) for one in payloads] == [
        ("coilwork.lower", "B"),
        ("coilwork.lower", "E"),
        ("coilwork.build", "B"),
        ("coilwork.build", "E"),
    ]


# ---- the line on a terminal ----


class Terminal:
    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return self._answer


def test_only_people_at_terminals_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream, watched in ((Terminal(True), True), (Terminal(False), False), (None, False), ("", False)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert is_watched() is watched
    monkeypatch.setattr(sys, "stderr", Terminal(True))
    monkeypatch.setenv("CI", "true")
    assert not is_watched()


def test_a_short_compilation_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    LiveLine(lambda: "never", lambda: 60.0).run()
    assert capfd.readouterr() == ("", "")


def read_terminal(ours: int, shown: bytearray) -> None:
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:
            # the other end is closed
            return


def test_a_terminal_shows_a_line_that_goes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One graph is to be shown, and one is not."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(live_line, "PATIENCE_S", 0.1)
    monkeypatch.setattr(live_line, "IDLE_S", 0.1)
    ours, theirs = pty.openpty()
    shown = bytearray()
    reading = threading.Thread(target=read_terminal, args=(ours, shown))
    reading.start()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        for name, is_shown in (("quiet", False), ("loud", True)):
            reporter = ProgressReporter(name, is_shown=is_shown)
            with reporter.stage("build"):
                reporter.count_kernels(3, 10, 3)
                print("printed", flush=True)
                deadline_s = time.monotonic() + (30 if is_shown else 0.5)
                while b"kernels" not in shown and time.monotonic() < deadline_s:
                    time.sleep(0.05)
        for thread in threading.enumerate():
            if thread.name == "coilwork-progress":
                thread.join(timeout=10)
    reading.join(timeout=10)
    os.close(ours)
    assert capfd.readouterr() == ("printed\n" * 2, "")
    assert b"coilwork: build of loud, 3 of 10 kernels" in shown and b"quiet" not in shown
    # the last thing is that the line is erased
    assert shown.rindex(b"\x1b[2K") > shown.rindex(b"coilwork:")
