"""Kernels on a GPU under NVIDIA's compute-sanitizer: `python devtools/sanitize_kernels.py [options] [paths]`.

The tests marked `gpu` below the paths are run in parts, a few at a time, each part under each tool:
`memcheck` (accesses out of bounds), `racecheck` (races in shared memory) and `initcheck` (reads of what
nothing wrote). A part has a time limit. `summary.md` in the folder `--out` has a line for each part, and each
finding with its kernel and line; the logs lie beside it. Findings in kernels of torch's or NVIDIA's
libraries, which have no line of a text, are counted and passed over. The exit status is 1 if anything of ours
was found, a test failed, or a part did not end.

Needs a GPU, and compute-sanitizer, which comes with CUDA's toolkit.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck", "initcheck")
PATHS = ("packages/coilwork-triton/tests", "packages/coilwork-runtime/tests", "integration_tests/gpu")
_FINDING = re.compile(r"========= (?!COMPUTE-SANITIZER|\w+ SUMMARY|ERROR SUMMARY)(\S.*)")
_PLACE = re.compile(r"=========     at (?P<kernel>.+?)(?:\+0x[0-9a-f]+)?(?: in (?P<text>.+):(?P<line>\d+))?$")
_RACE = re.compile(r" at (?P<kernel>\S+?)(?:\+0x[0-9a-f]+)? in (?P<text>\S+):(?P<line>\d+)")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a tool found: `place` is a kernel with the line of its text, or "" in kernels of libraries."""

    what: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Tests that run in one process, under `tool`."""

    tool: str
    number: int
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """`memcheck-3 test_sorts.py`."""
        return f"{self.tool}-{self.number} {Path(self.tests[0].split('::')[0]).name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a part: the last line of pytest, or that it did not end, and what the tool found."""

    part: Part
    ended: bool
    passed: bool
    told: str
    ours: Counter[Finding]
    others: int


def list_tests(paths: Sequence[str]) -> list[str]:
    """The tests below `paths` that need a GPU."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tests = [line for line in done.stdout.splitlines() if "::" in line and not line.startswith(" ")]
    if not tests:
        raise SystemExit(f"no tests that need a GPU below {', '.join(paths)}\n{done.stdout[-2000:]}")
    return tests


def split(tests: Iterable[str], size: int, tools: Sequence[str]) -> list[Part]:
    """Parts of at most `size` tests, all of one file."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.split("::")[0], []).append(test)
    chunks = [tuple(of[at : at + size]) for of in files.values() for at in range(0, len(of), size)]
    return [Part(tool=tool, number=k, tests=chunk) for tool in tools for k, chunk in enumerate(chunks)]


def find_findings(log: str) -> Iterator[Finding]:
    """What a tool wrote of, in order."""
    lines = log.splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        found = _FINDING.match(line)
        if found is None:
            continue
        place = _PLACE.match(after) or _RACE.search(line)
        ours = place is not None and place["text"] is not None
        where = f"{place['kernel']}, line {place['line']}" if place is not None and ours else ""
        # what differs from thread to thread is no other finding
        yield Finding(re.sub(r"0x[0-9a-f]+|\(\d+,\d+,\d+\)", "…", found[1]), where)


def run_part(part: Part, sanitizer: str, out: Path, limit_s: int) -> Outcome:
    """Run the tests of `part`, and read what the tool wrote."""
    stem = part.name.replace(" ", "-").removesuffix(".py")
    log, told = out / f"{stem}.log", out / f"{stem}.txt"
    command = [sanitizer, "--tool", part.tool, "--target-processes", "all", "--log-file", str(log)]
    command += [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:xdist", "-p", "no:cacheprovider"]
    with told.open("w") as file:
        # a session of its own, so that all of it ends
        process = subprocess.Popen(
            [*command, *part.tests], cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
        timer = threading.Timer(limit_s, os.killpg, (process.pid, 9))
        timer.start()
        status = process.wait()
        timer.cancel()
    lines = told.read_text(errors="replace").splitlines() or [""]
    found = list(find_findings(log.read_text(errors="replace") if log.exists() else ""))
    return Outcome(
        part=part,
        ended=status != -9,
        passed=any(re.search(r"\d+ (passed|skipped)", line) for line in lines[-3:])
        and not any(line.startswith(("FAILED", "ERROR")) for line in lines),
        told=next((line.strip("= ") for line in reversed(lines) if " in " in line), lines[-1]),
        ours=Counter(one for one in found if one.place),
        others=sum(not one.place for one in found),
    )


def summarise(outcomes: Sequence[Outcome]) -> str:
    """A page: a line for each part, then what was found in kernels of ours."""
    lines = ["# Kernels under compute-sanitizer", "", "| part | tests | result | ours | libraries' |"]
    lines.append("|---|---|---|---|---|")
    for one in outcomes:
        result = one.told if one.ended else "did not end"
        lines.append(
            f"| {one.part.name} | {len(one.part.tests)} | {result} | {one.ours.total()} | {one.others} |"
        )
    lines += ["", "## Findings in generated kernels", ""]
    for one in outcomes:
        lines += [
            f"- {one.part.name}: {finding.place}: {finding.what} ({times} times)"
            for finding, times in one.ours.items()
        ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="*", default=list(PATHS))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--limit-s", type=int, default=600, help="seconds for one part")
    parser.add_argument("--at-once", type=int, default=4, help="parts that run beside each other")
    parser.add_argument("--size", type=int, default=16, help="tests in a part, at most")
    parser.add_argument("--out", type=Path, default=ROOT / ".nox" / "sanitized-kernels")
    given = parser.parse_args(arguments)
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    given.out.mkdir(parents=True, exist_ok=True)
    parts = split(list_tests(given.paths), given.size, given.tools)
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(given.at_once) as threads:
        for one in threads.map(lambda part: run_part(part, sanitizer, given.out, given.limit_s), parts):
            outcomes.append(one)
            # also where the rest never ends
            (given.out / "summary.md").write_text(summarise(outcomes))
            print(f"{one.part.name}: {one.told if one.ended else 'did not end'}", flush=True)
    print((given.out / "summary.md").read_text())
    return int(any(one.ours or not one.ended or not one.passed for one in outcomes))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
