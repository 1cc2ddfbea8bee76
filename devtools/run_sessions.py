"""Run nox sessions in stages, three at a time, and sum up their results.

    python devtools/run_sessions.py --reports FOLDER --stage build lint --stage "package(coilwork-ir)" ...

A stage starts when the one before it has ended; within one, the sessions start in their order. The output of
a session goes to a log, which is shown if the session fails. When the session `build` fails, the sessions
after it are not started: they install what it builds.

FOLDER receives one pytest report per session that runs tests (the sessions write it), the logs, and
`closing_line.txt` with the sum: `N passed, N failed`. A session without tests (lint, say) counts as one.

Each session has an environment and a folder for temporary files of its own, and both go when it has passed:
an environment with torch takes a gigabyte, and there are some twenty. Those of a session that failed are
kept. All sessions share a folder for large libraries, which the session `libraries` fills
(`noxfile.py`); it goes at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# For two cores: while one waits for the disk, making its environment, two others use them.
SESSIONS_AT_A_TIME = 3
SESSION_LIMIT_S = 55 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one session. Counts are of tests; `seconds` is wall-clock time."""

    session: str
    result: str
    seconds: float
    passed: int
    failed: int
    skipped: int


def count_tests(report: Path) -> tuple[int, int, int]:
    """Passed, failed (errors included) and skipped tests of a pytest report in JUnit's XML."""
    passed = failed = skipped = 0
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        bad = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        idle = int(suite.get("skipped", "0"))
        passed += int(suite.get("tests", "0")) - bad - idle
        failed += bad
        skipped += idle
    return passed, failed, skipped


def endless_test(log: str) -> str:
    """The test that `log` says was running when a time limit ended the process (`conftest.py`); empty if none
    was.
    """
    _, limit, stacks = log.rpartition("Timeout (")
    # the most recent call comes first
    found = re.findall(r'File "([^"]*)", line \d+ in (test_\w+)', stacks if limit else "")
    return ": ".join(found[-1]) if found else ""


def outcome_of(session: str, code: int, seconds: float, report: Path, log: str = "") -> Outcome:
    """Judge a session by its exit code, its report, if it left one, and what it wrote."""
    passed, failed, skipped = count_tests(report) if report.exists() else (int(code == 0), int(code != 0), 0)
    result = "passed" if code == 0 else f"FAILED (exit {code})"
    if code != 0 and not report.exists() and (endless := endless_test(log)):
        result = f"{result}: no end of {endless}"
    if report.exists() and passed + failed == 0:
        result = "FAILED (ran no test)"
    # Broken before or after its tests: the sum must not look clean.
    if result != "passed" and failed == 0:
        failed = 1
    # fmt: off
    return Outcome(session=session, result=result, seconds=seconds, passed=passed, failed=failed,
    skipped=skipped)
    # fmt: on


def run_session(session: str, reports: Path, libraries: Path, running: set[int]) -> Outcome:
    """Run one nox session to its end, or to the time limit; print a line about it.

    `libraries` is the folder of libraries that sessions share. While the session runs, its process group is
    in `running`.
    """
    # Near the root of the file system: paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="nox-"))
    (folder / "tmp").mkdir()
    environment = {
        **os.environ,
        "NOX_WHEELHOUSE": str(ROOT / "dist"),
        "NOX_LIBRARIES": str(libraries),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(folder / "tmp"),
    }
    if session.startswith("package("):
        # Sessions share the cores.
        environment.setdefault("OMP_NUM_THREADS", "1")
    log = reports / f"{session}.log"
    command = [
        sys.executable,
        "-m",
        "nox",
        "--non-interactive",
        "--no-color",
        "--envdir",
        str(folder / "environment"),
    ]
    command += ["-s", session]
    start = time.monotonic()
    with log.open("wb") as stream:
        # A process group of its own, so that the time limit and an interrupt end its children too.
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running.add(process.pid)
        try:
            code = process.wait(timeout=SESSION_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            stream.write(f"\nstopped: {session} took more than {SESSION_LIMIT_S} s\n".encode())
            code = 124
        finally:
            running.discard(process.pid)
    written = log.read_text(errors="replace")
    outcome = outcome_of(session, code, time.monotonic() - start, reports / f"{session}.xml", written)
    print(row(outcome), flush=True)
    if outcome.failed == 0:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"its environment and temporary files are kept in {folder}", flush=True)
        print(
            f"---- log of {session}\n{written}---- end of the log of {session}",
            flush=True,
        )
    return outcome


def row(outcome: Outcome) -> str:
    counts = f"{outcome.passed:6} passed {outcome.failed:4} failed {outcome.skipped:4} skipped"
    return f"{outcome.session:32} {outcome.seconds:8.1f} s  {counts}  {outcome.result}"


def run_stages(stages: Sequence[Sequence[str]], reports: Path) -> list[Outcome]:
    """Run the stages in order; `build` failing ends the run. An interrupt ends what is running."""
    outcomes: list[Outcome] = []
    running: set[int] = set()
    # beside the environments: files are linked within a file system
    with tempfile.TemporaryDirectory(prefix="nox-libraries-", ignore_cleanup_errors=True) as libraries:
        run = partial(run_session, reports=reports, libraries=Path(libraries), running=running)
        for stage in stages:
            outcomes += run_stage(stage, run, running)
            if any(o.session == "build" and o.failed for o in outcomes):
                break
    return outcomes


def run_stage(stage: Sequence[str], run: Callable[[str], Outcome], running: set[int]) -> list[Outcome]:
    """Run the sessions of one stage; an interrupt ends the process groups in `running`."""
    with ThreadPoolExecutor(SESSIONS_AT_A_TIME) as pool:
        try:
            return list(pool.map(run, stage))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for group in tuple(running):
                os.killpg(group, signal.SIGKILL)
            raise


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=Path, required=True, help="folder for reports, logs and the sum")
    parser.add_argument("--stage", action="append", nargs="+", required=True, help="sessions of one stage")
    arguments = parser.parse_args()
    reports: Path = arguments.reports
    reports.mkdir(parents=True, exist_ok=True)
    # Being told to stop ends the sessions as Ctrl-C does; they are in process groups of their own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.monotonic()
    outcomes = run_stages(arguments.stage, reports)
    print("\nsession" + " " * 29 + "time")
    for outcome in outcomes:
        print(row(outcome))
    passed, failed, skipped = (sum(getattr(o, k) for o in outcomes) for k in ("passed", "failed", "skipped"))
    print(f"{len(outcomes)} sessions in {time.monotonic() - start:.0f} s; logs in {reports}", flush=True)
    (reports / "closing_line.txt").write_text(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
